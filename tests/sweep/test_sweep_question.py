"""A sweep's question: what its file says, what was typed in its place, what is refused."""

import itertools
import json
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing import refused
from sweeps import REFUSALS, write_sweep

from transformer_norms.comparison.sweep_record import baseline_of, label
from transformer_norms.config.overrides import as_typed, parse
from transformer_norms.names import option_files, options
from transformer_norms.sweep.design import Tuning
from transformer_norms.sweep.drive import plan_sweep
from transformer_norms.sweep.planning import Jobs
from transformer_norms.sweep.power_table import count_comparisons, count_pairs
from transformer_norms.sweep.question import read_question, read_request

ROOT = Path(__file__).parents[2]
READY = [name for name in options("sweep") if name != "none"]
SMALL = ["model=nano", "data=stories", "tracking=none"]
BASE = "question: Which?\nbaseline: {placement: pre}\nvary: {placement: [pre, post]}\n"
TUNED = BASE + "tune: {optimizer.lr: [1e-3, 4e-3], seed: [100]}\nseeds: [0, 1]\n"


@pytest.fixture(autouse=True)
def no_source(monkeypatch):
    """Planning a job hashes no source file, which takes longer than the rest of it."""
    monkeypatch.setattr("transformer_norms.run.identity.code", lambda config: {})


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes a sweep's file, and asks it with what is typed in addition."""
    monkeypatch.chdir(tmp_path)
    return lambda content, *typed: read_request([*write_sweep(content, ""), *typed])


@pytest.mark.parametrize("name", READY)
def test_each_ready_sweep_plans_runs_that_can_be_trained_and_differ_and_have_a_baseline(name):
    wide = ["model.width=256"] if name == "width" else []  # at 128 its factors 128/d are one
    plans = read_request([f"sweep={name}", "data=stories", *wide])
    question, variants = plans.question, plans.question.variants
    assert question.question.endswith(("?", "."))
    assert all(baseline_of(one, question.baseline, variants) is not None for one in variants)
    # Every value of every axis and of the grid once: that they go together is tested elsewhere.
    jobs, point, vary = Jobs(plans), question.tune.points[-1], question.vary
    rows = range(max(map(len, vary.values()), default=0))
    grid = [{key: values[row % len(values)] for key, values in vary.items()} for row in rows]
    for one in [*grid, *question.together]:
        assert jobs.make("result", one, point, question.first_seeds[-1]).run.variant in variants
    if question.together:  # a typed `auto`, for example, comes before the choice of a preset
        listed = {jobs.make("result", one, point, 0).run.identity for one in variants}
        assert len(listed) == len(variants)


def introduction(request):
    jobs = Jobs(request)
    return jobs.introduction(jobs.first_stage())


@pytest.mark.parametrize(("typed", "lines"), [
    ("placement=pre,post,peri", ["the variants start differently: init=mup (peri, pre), "
     "init=transformer2017 (post); for one start, type init=mup"]),
    ("placement=pre,mixln", ["the variants start differently: init=mup (pre), init=mixln "
     "(mixln); for one start, type init=mup architecture.tied=true"]),
    ("placement=pre,mixln init=mup architecture.tied=true", []),
    ("placement=pre,peri", []),
    ("placement=pre,post init=mup,scaled", []),
])  # fmt: skip
def test_a_sweep_says_which_starts_its_variants_bring_and_what_to_type_for_one(typed, lines):
    said = introduction(read_request([*typed.split(), *SMALL]))
    assert [line for line in said if "for one start" in line] == lines


def test_seeds_of_weights_and_order_are_crossed_and_a_rate_is_tuned_once_for_all_orders(mine):
    crossed = TUNED.replace("[0, 1]", "{init: [0, 1, 2], order: [7, 8]}")
    request = mine(crossed, *SMALL)
    jobs, question = Jobs(request), request.question
    grid = [(p, o) for p in ("pre", "post") for o in (7, 8)]
    assert [(v["placement"], v["data.seed"]) for v in question.variants] == grid
    assert (question.first_seeds, count_comparisons(question)) == ([0, 1, 2], 0)
    tuning = jobs.first_stage()
    assert len({job.run.identity for job in tuning}) == 2 * 2  # placements x rates
    assert not any("data.seed" in text for job in tuning for text in job.overrides)
    more = mine(crossed + "together: [{placement: out, schedule.warmup: 0}]\n").question
    whole = {"placement": "out", "schedule.warmup": 0}
    assert more.variants == [*question.variants, *({**whole, "data.seed": o} for o in (7, 8))]
    each = itertools.product(question.variants, question.first_seeds)
    results = [jobs.make("result", v, {"optimizer.lr": 1e-3}, s) for v, s in each]
    assert len({job.run.identity for job in results}) == 4 * 3
    words = {text for job in results for text in job.overrides}
    assert {text for text in words if "data.seed" in text} == {"data.seed=7", "data.seed=8"}


@pytest.mark.parametrize(("tuning", "results", "two"), [
    ("[100]", "[0, 1, 2, 3, 4, 5]", "[100, 101]"),
    ("[3]", "{first: 3, until: decided, most: 6}", "[3, 4]"),
    ("[100]", "{first: 3, until: decided, most: 5}", None),
    ("[100, 101]", "[0, 1, 2, 3, 4, 5]", None),
])  # fmt: skip
def test_where_more_than_five_seeds_decide_a_sweep_says_that_two_should_tune(
    mine, tuning, results, two
):
    content = TUNED.replace("[100]", tuning).replace("[0, 1]", results)
    said = [line for line in introduction(mine(content, *SMALL)) if "seeds decide" in line]
    line = f"from seed to seed; write seed: {two} under tune in the sweep's file"
    assert [one.partition("moves ")[2] for one in said] == [line] * bool(two)


def test_ready_sweeps_that_more_than_five_seeds_decide_tune_on_two_of_their_own():
    """Unless they were run before: then on the seeds of the packed record."""
    questions = {name: read_question(name) for name in READY}
    for name in (n for n, q in questions.items() if q.tune.grid and q.most_seeds > 5):
        own = questions[name].tune.seed
        if packed := [*(ROOT / "experiments").glob(f"**/{name}/runs.tar.xz")]:
            with tarfile.open(packed[0]) as runs:
                file = next(one for one in runs if one.name.endswith(f"sweep-{name}.json"))
                assert json.load(runs.extractfile(file))["tune_seeds"] == own
        else:
            others = {s for n, q in questions.items() if n != name for s in q.tune.seed}
            assert (len(own) >= 2, others & {*own}) == (True, set()), name


@pytest.mark.parametrize(("name", "by_hand"), [
    ("placements_124m", 2 * 2 * 8 * ((5 + 2) + 5)),  # optimizers, starts, placements; rates, seeds
    ("placements_124m_pilot", 2 * 8 + 4),
    ("stream_or_table_124m", 4 * 4 * ((4 + 2) + 5)),  # placements, cells; rates, seeds
])  # fmt: skip
def test_what_a_study_says_of_its_plan_is_what_it_plans(name, by_hand):
    text = option_files("sweep")[name].read_text()
    question = read_request([f"sweep={name}"]).question
    tuning = question.tune.budget * len(question.tune.seed)
    assert len(question.variants) * (tuning + len(question.seeds)) == by_hand
    assert f"Planned: {by_hand} runs" in text
    fixed = question.fixed
    tokens = by_hand * fixed["trainer.steps"] * fixed["trainer.batch_size"] * 1024
    assert f"{tokens:.2e}".replace("e+", "e") in text
    if name.endswith("_pilot"):
        assert fixed == read_question(name.removesuffix("_pilot")).fixed


def test_typed_values_stand_in_the_place_of_the_files(mine):
    question = mine(TUNED, "placement=pre,out", "seed=7", "optimizer.lr=1e-3,2e-3").question
    assert (question.vary, question.seeds) == ({"placement": ["pre", "out"]}, [7])
    assert question.tune == Tuning({"optimizer.lr": [0.001, 0.002]}, [100])
    typed_rate = mine(TUNED, "optimizer.lr=2e-3").question
    assert typed_rate.tune.grid == {}
    assert typed_rate.fixed["optimizer.lr"] == 0.002
    further = mine(BASE + "fixed: {norm: dyt}\n", "norm=a,b")
    assert further.question.vary == {"placement": ["pre", "post"], "norm": ["a", "b"]}
    assert "norm" not in further.question.fixed
    # A typed axis without the baseline's value.
    asked = mine(BASE, "placement=post,out")
    assert asked.question.baseline == {"placement": "post"}
    assert "placement=post is the baseline" in asked.remarks[0]


def test_contrasts_whose_variants_are_typed_away_are_left_out_and_said(mine):
    content = BASE.replace("[pre, post]", "[pre, post, out]") + "contrasts: [post - out, out - pre]"
    assert mine(content).question.contrasts == ["post - out", "out - pre"]
    fewer = mine(content, "placement=pre,out")
    assert fewer.question.contrasts == ["out - pre"]
    (remark,) = fewer.remarks
    assert re.search("left out.*'post' names no variant", remark)
    # Over a further axis that is crossed with it, a contrast is a mean.
    assert mine(content, "norm=rmsnorm,dyt").question.contrasts == ["post - out", "out - pre"]


def test_a_typed_model_is_in_the_place_of_the_sizes_that_the_file_fixes(mine):
    file = BASE + "fixed: {model.depth: 4, model.width: 64, trainer.steps: 600}\n"
    one = mine(file, "model=124m", "model.width=32")
    fixed = {"plugins": "mine", "trainer.steps": 600}
    assert one.question.fixed == {**fixed, "model": "124m", "model.width": 32}
    assert one.remarks == ("model=124m is in the place of this sweep's model.depth=4",)
    two = mine(file, "model=micro,mini").question
    assert (two.fixed, two.vary["model"]) == (fixed, ["micro", "mini"])
    plain = mine(file, "model.width=32")
    sizes = {"model.depth": 4, "model.width": 32}
    assert (plain.question.fixed, plain.remarks) == ({**fixed, **sizes}, ())


def test_the_study_is_the_sweeps_name_unless_one_is_typed(mine):
    assert (mine(BASE).study, mine(BASE).question.margin) == ("mine", 0.02)
    assert mine(BASE, "study=other").study == "other"
    assert read_request(["norm=a,b"]).study == "main"
    bare = read_request(["norm=a,b", "study=other"])
    assert (bare.study, bare.name) == ("other", "main")


def test_without_a_file_each_axis_first_value_is_the_baseline():
    typed = ["norm=a,b", "model.depth=4,16", "seed=0,1", "trainer.steps=5"]
    question = read_request(typed).question
    assert question.baseline == {"norm": "a", "model.depth": 4}
    assert (question.seeds, question.fixed) == ([0, 1], {"trainer.steps": 5})
    assert len(question.variants) == 4
    ordered = read_request(["placement=pre,post", "data.seed=7,8", "seed=0,1"]).question
    assert read_request(["norm=rmsnorm,dyt", "data.seed=7,8", "seed=3..6"]).question.until_decided
    assert ordered.baseline == {"placement": "pre"}  # in each order
    assert (count_pairs(ordered), count_comparisons(ordered)) == (2, 0)


def test_each_variant_is_compared_with_itself_at_the_baselines_values_and_labelled_by_its_own():
    variants = [{"model.depth": d, "placement": p} for d in (4, 16) for p in ("pre", "post")]
    found = baseline_of(variants[3], {"placement": "pre"}, variants)
    assert found == {"model.depth": 16, "placement": "pre"}
    whole = [{"placement": "pre"}, {"placement": "post", "schedule.warmup": 0}]
    assert baseline_of(whole[1], {"placement": "pre"}, whole) == {"placement": "pre"}
    beside = {"model.depth": 4, "placement": "out", "optimizer.lr": 2e-3}
    assert baseline_of(beside, {"placement": "pre"}, [*variants, beside]) == variants[0]
    deeper = beside | {"model.depth": 8}
    assert baseline_of(deeper, {"placement": "pre"}, [*variants, deeper]) is None
    assert label({"norm": "rmsnorm", "model.depth": 16}) == "rmsnorm depth=16"
    assert label({"qk_norm": "head", "trainer.compile": "block"}) == "qk_norm=head compile=block"


@pytest.mark.parametrize("case", REFUSALS["file"], ids=lambda case: case[0][-30:])
def test_a_file_that_contradicts_itself_is_one_line_that_names_the_key(mine, case):
    content, *fragments = case
    line = refused(mine, content.replace("BASE\n", BASE))
    assert [part for part in fragments if part not in line] == [], line


@pytest.mark.parametrize(("typed", "said"), REFUSALS["command"])
def test_a_command_that_asks_for_what_cannot_be_is_one_line(mine, typed, said):
    mine(BASE)
    Path("mine/configs/sweep/mine.yaml").rename("mine/configs/sweep/my own.yaml")
    assert said in refused(plan_sweep, tuple(typed))


WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=8)
LEAVES = st.one_of(
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    # ~ is the home folder, also in quotes.
    WORDS.filter(lambda word: word not in ("???", "~") and not re.match(r"~/|.*\$\{", word)),
)


@given(st.one_of(LEAVES, st.lists(LEAVES, max_size=3), st.dictionaries(st.just("k"), LEAVES)))
def test_a_value_survives_being_typed(value):
    assert parse([as_typed("key.x", value)])[0].value == value
