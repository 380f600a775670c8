"""W&B groups, filters and averages by words that mean what they say, and shows what was drawn."""

from run_folders import config_of, make_record, make_run, planned

from transformer_norms.run.reader import SavedRun
from transformer_norms.tracking import view

PRE, POST = {"placement": "pre"}, {"placement": "post"}


def fields(folder):
    return view.opening(SavedRun(folder))


def totals(folder):
    return view.totals(SavedRun(folder).summary)


def typed(study, overrides, seed=0, **keys):
    return make_run(study, config_of(overrides, seed, **keys), 2.0)


def test_what_the_command_types_goes_before_what_its_run_began_with(tmp_path):
    saved = SavedRun(typed(tmp_path, ["placement=pre"], tracking__project="old"))
    asked = view.opening(saved, {"type": "wandb", "project": "mine", "entity": "team"})["asked"]
    assert (asked["project"], asked["entity"]) == ("mine", "team")
    assert view.opening(saved)["asked"]["project"] == "old"


def test_the_seeds_of_a_variant_share_its_name_and_no_other_run_does(tmp_path):
    first, second = (typed(tmp_path, ["placement=pre"], seed) for seed in (0, 1))
    others = [
        typed(tmp_path, ["placement=post"]),
        typed(tmp_path, ["placement=pre"], optimizer__lr=1e-2),
        typed(tmp_path, ["placement=pre", "data.seed=5"]),
    ]
    configs = [fields(folder)["config"] for folder in (first, second, *others)]
    names = [config["variant"] for config in configs]
    assert names[0] == names[1]
    assert len(set(names)) == 4
    assert names[0].startswith("pre-")
    assert [config["seed"] for config in configs[:2]] == [0, 1]


def test_what_a_sweep_planned_has_its_label_its_stage_and_its_question(tmp_path):
    stages = {0: "result", 1: "result", 100: "tune"}
    pre = {seed: config_of(["placement=pre"], seed) for seed in stages}
    variant = PRE | {"model.depth": 2}
    make_record(tmp_path, [planned(pre[seed], variant, stages[seed]) for seed in stages])
    shown = [fields(make_run(tmp_path, config, 2.0)) for config in pre.values()]
    assert {one["config"]["variant"] for one in shown} == {"pre depth=2"}
    for found in ([one["job_type"] for one in shown], [one["config"]["stage"] for one in shown]):
        assert found == [*stages.values()]
    assert {one["notes"] for one in shown} == {"Which placement?"}
    beside = fields(typed(tmp_path, ["placement=post"]))
    assert (beside["job_type"], beside["notes"]) == ("train", None)


def test_a_later_attempt_is_what_the_first_was_planned_for(tmp_path):
    config = config_of(["placement=pre"])
    make_record(tmp_path, [planned(config, PRE)])
    make_run(tmp_path, config, 2.0)
    again = fields(make_run(tmp_path, config, 2.0, attempt=2))
    assert (again["job_type"], again["config"]["variant"]) == ("result", "pre")
    config = config_of(["placement=post"])
    first, again = (fields(make_run(tmp_path, config, 2.0, attempt=n)) for n in (1, 2))
    assert first["config"]["variant"] == again["config"]["variant"]


def test_a_broken_record_hides_neither_its_run_nor_another_record(tmp_path):
    config = config_of(["placement=pre"])
    folder = make_run(tmp_path, config, 2.0)
    (tmp_path / "sweep-a.json").write_text('{"runs": 5')
    assert fields(folder)["job_type"] == "train"
    make_record(tmp_path, [planned(config, PRE)], name="b")
    (tmp_path / "sweep-c.json").mkdir()
    assert fields(folder)["job_type"] == "result"


def test_a_result_of_one_sweep_is_one_although_another_tuned_there(tmp_path):
    config = config_of(["placement=pre"])
    make_record(tmp_path, [planned(config, PRE, "tune")], name="a")
    make_record(tmp_path, [planned(config, POST)], name="b")
    assert fields(make_run(tmp_path, config, 2.0))["job_type"] == "result"


def test_a_typed_equation_is_whole_in_the_config_and_a_tag_of_its_own(tmp_path):
    start = "x + norm(f(norm(x), q=norm, k=norm, v=norm, head_norm=norm, ctx=norm"
    equations = [f"{start}))", f"{start}, mid=norm))"]
    shown = [fields(typed(tmp_path, [f"placement.equation={text}"])) for text in equations]
    assert [one["config"]["choices"]["placement"] for one in shown] == equations
    tags = [tag for one in shown for tag in one["tags"] if tag.startswith("placement=x + norm(f(")]
    assert len(set(tags)) == 2
    assert all(len(tag) <= 64 for one in shown for tag in one["tags"])


def test_a_diverged_run_counts_as_a_share_of_its_group(tmp_path):
    ended = {"finished": 2.0, "diverged": None, "failed": None}
    values = [totals(make_run(tmp_path, config_of(seed=seed), loss, status=status))
              for seed, (status, loss) in enumerate(ended.items())]  # fmt: skip
    assert [value.get("final/diverged") for value in values] == [0, 1, None]
    assert [value.get("val_loss") for value in values] == [2.0, None, None]
