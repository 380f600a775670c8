"""A branch is the separate run: the same bits in weights, moments, rows and losses, however the run
before it and its own process ended. The separate runs never read another run's state."""

import json
import shutil
from pathlib import Path

import pytest
import short_runs
import sweeps
import torch
from short_runs import here, same, stop_at  # noqa: F401

from transformer_norms import cli, compose
from transformer_norms.commands import runs as runs_command
from transformer_norms.comparison.sweep_record import read_record
from transformer_norms.config.building import build_schedulers
from transformer_norms.run import run as running
from transformer_norms.sweep.question import read_request
from transformer_norms.training.schedule import SCHEDULES, shared_steps
from transformer_norms.training.trainer import Trainer

HORIZONS = (10, 20, 40)  # decay over the last fifth: the first step of another rate is 8, 16, 32
BRANCHES = "trainer.branches=[10,20,40]"
WSD = ["schedule=wsd", "trainer.log_every=6", "trainer.eval_every=10", "data.val_tokens=300"]
NUMBERS = (
    "val_loss best_val_loss test_loss initial_loss start spikes batch_chain step tokens".split()
)


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    monkeypatch.setattr("transformer_norms.run.run.draw_curve", lambda *_: None)


@pytest.fixture
def steps(monkeypatch):
    """The step before each step that is trained."""
    made, train_step = [], Trainer.train_step

    def stepped(self):
        made.append(self.step)
        return train_step(self)

    monkeypatch.setattr(Trainer, "train_step", stepped)
    return made


def go(*typed):
    return short_runs.go(*WSD, *typed)


def branch(horizon, *typed):
    return go(*typed, BRANCHES, f"trainer.steps={horizon}")


def separate(horizon, *typed):
    return go(*typed, f"trainer.steps={horizon}", "study=separate")


def check_equal(one, other):
    assert same(one["folder"], other["folder"])
    assert [one[key] for key in NUMBERS] == [other[key] for key in NUMBERS]
    assert one["identity"] == other["identity"]
    assert one["folder"] != other["folder"]


def kept(run):
    """The steps of the states that a run keeps for longer ones."""
    return [int(path.name[5:]) for path in Path(run["folder"], "branches").glob("*")]


@pytest.mark.parametrize(
    "typed",
    [
        ["placement=pre", "trainer.accumulation=4"],
        ["placement=hybrid", "optimizer=muon"],
        ["preset=ngpt", "model.dropout=0"],
        ["norm=dyt", "trainer.replicas=2", "trainer.threads=2", "model.dropout=0"],
        # With running averages.
        ["norm=batchnorm", "norm.allow_noncausal=true", "trainer.precision=bf16"],
    ],
)
def test_each_branch_is_the_separate_run_and_trains_the_rest_of_it_alone(typed, steps):
    runs = [branch(horizon, *typed) for horizon in HORIZONS]
    # The rate of step 0.8 H + 1, the first of the decay, is still 1.
    assert steps == [*range(10), *range(9, 20), *range(17, 40)]
    assert [(run["branched_from"], run["branch_step"]) for run in runs] == [
        (None, None),
        (Path(runs[0]["folder"]).name, 9),
        (Path(runs[1]["folder"]).name, 17),
    ]
    for run, horizon in zip(runs, HORIZONS, strict=True):
        check_equal(run, separate(horizon, *typed))
        assert kept(run) == []  # the longer one has ended


def test_runs_says_which_of_them_are_branches(capsys):
    runs = [branch(horizon) for horizon in HORIZONS[:2]]
    capsys.readouterr()
    assert runs_command.main([]) == 0
    assert "1 of 2 began at a step of a run with a shorter horizon" in capsys.readouterr().err
    assert runs_command.main(["--json", "branch_step=9"]) == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert listed["branched_from"] == Path(runs[0]["folder"]).name


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_horizons_share_the_steps_before_their_rates_differ(schedule, steps):
    """With a constant rate the shorter run is the beginning of the longer one, whose row of that
    step has no loss."""
    typed = [f"schedule={schedule}", "trainer.eval_every=0"]
    runs = [branch(horizon, *typed) for horizon in HORIZONS]
    first = {"constant": (10, 20), "cosine": (5, 5), "linear": (5, 5)}[schedule]  # warm-up: 4
    assert steps == [*range(10), *range(first[0], 20), *range(first[1], 40)]
    for run, horizon in zip(runs, HORIZONS, strict=True):
        check_equal(run, separate(horizon, *typed))


def test_shared_steps_are_those_of_equal_rates_by_torch():
    for name in ("wsd", "cosine", "linear", "constant"):
        shorter, longer = (
            compose(["model=nano", f"schedule={name}", "schedule.warmup=7", f"trainer.steps={n}"])
            for n in (50, 90)
        )
        rates = []
        for config in (shorter, longer):
            optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
            (scheduler,) = build_schedulers(config, [optimizer])
            rates.append([scheduler.lr_lambdas[0](step) for step in range(50)])
        unequal = [i for i, (a, b) in enumerate(zip(*rates, strict=True)) if a != b]
        schedule = SCHEDULES.maker(shorter.schedule)
        assert shared_steps(schedule, 50, 90) == (unequal or [50])[0]


@pytest.mark.parametrize(("short", "long"), [(6, None), (9, 19), (None, 12)])
def test_stops_before_and_in_the_decay_of_either_run_change_no_bit(short, long, stop_at):  # noqa: F811
    stops = {10: [short, None] if short else [None], 20: [long, None] if long else [None]}
    stop_at(*stops[10], *stops[20], None)
    runs = [branch(horizon) for horizon, each in stops.items() for _ in each]
    assert [run["status"] == "preempted" for run in runs] == [
        stop is not None for each in stops.values() for stop in each
    ]
    check_equal(runs[-1], separate(20))


def lose_checkpoints(run):
    """As a run is that was killed before its first one."""
    shutil.rmtree(Path(run["folder"], "checkpoints"))


def test_a_run_that_began_at_step_0_takes_no_branch_when_it_goes_on(steps, stop_at):  # noqa: F811
    stop_at(5, None, None, None)
    lose_checkpoints(branch(20))
    branch(10)
    del steps[:]
    run = branch(20)
    assert steps == [*range(20)]
    assert run["branched_from"] is None
    check_equal(run, separate(20))


def spoil_branch(shorter):
    (file,) = Path(shorter["folder"]).glob("branches/*/model.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"!")


def spoil_record(shorter, **changed):
    file = Path(shorter["folder"], "summary.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: shutil.rmtree(Path(run["folder"], "branches")), ""),
        (spoil_branch, "model.safetensors"),
        (lambda run: Path(run["folder"], "metrics.jsonl").write_text("?\n"), "metrics.jsonl"),
        (lambda run: spoil_record(run, source={}), "had another source"),
        (lambda run: spoil_record(run, threads=7, device="another"), "device, threads"),
    ],
)
def test_without_a_sound_branch_of_this_code_and_machine_all_steps_are_trained(
    spoil,
    said,
    steps,
    stop_at,  # noqa: F811
    capsys,
):
    stop_at(None, 12, None, None)
    shorter = branch(10)
    lose_checkpoints(branch(20))
    spoil(shorter)
    del steps[:]
    run = branch(20)
    assert steps == [*range(20)]
    assert run["branched_from"] is None
    assert said in capsys.readouterr().err
    check_equal(run, separate(20))


# ------------------------------------------------------------------------------------- sweeps


def test_a_sweep_tunes_each_horizon_along_shared_steps(capsys, steps):
    Path("mine/configs/sweep").mkdir(parents=True)
    Path("mine/configs/sweep/along.yaml").write_text(
        "question: Which norm?\nbaseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\n"
        "tune: {optimizer.weight_decay: [0, 0.1], seed: [9]}\nseeds: [0]\n"
        f"fixed: {{{BRANCHES.replace('=', ': ')}, schedule: wsd, schedule.warmup: 4}}\n"
        "contrasts: [(layernorm - rmsnorm) under steps=40 - (layernorm - rmsnorm) under steps=10]\n"
    )
    typed = ["plugins=mine", "sweep=along", "trainer.checkpoint_every=0"]
    answer, code, err = sweeps.sweep(capsys, *typed, short=[*short_runs.BASE[:8], "tracking=none"])
    assert (code, answer["missing"], answer["failed"]) == (0, 0, 0)
    record = read_record(Path("runs/along/sweep-along.json"))
    assert record.axes == ["trainer.steps", "norm"]
    assert record.baseline == {"norm": "rmsnorm"}
    # Each horizon of a point goes on where the next shorter one of that point is kept. A point that
    # a longer horizon alone has is trained from its first step.
    points = {}
    for run in record.runs:
        place = run.stage, run.variant["norm"], run.tuned["optimizer.weight_decay"], run.seed
        points.setdefault(place, []).append(run.variant["trainer.steps"])
    expected = [
        horizon - (0 if shorter is None else shorter * 4 // 5 + 1)
        for horizons in points.values()
        for shorter, horizon in zip([None, *sorted(horizons)], sorted(horizons), strict=False)
    ]
    assert len(steps) == sum(expected) < sum(map(sum, points.values()))
    assert {(t.variant["trainer.steps"], t.variant["norm"]) for t in record.tuned} == {
        (steps, norm) for steps in HORIZONS for norm in ("rmsnorm", "layernorm")
    }
    assert not list(Path("runs").glob("*/*/branches"))
    assert "began from the last step" in Path("runs/along/report.html").read_text()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("trainer.branches=[10,20] trainer.steps=15", "15 is not one of trainer.branches, 10, 20"),
        ("trainer.branches=[10,20] trainer.steps=10 schedule.warmup=0.2", "type steps, such as 2"),
        ("trainer.branches=300", "[300, 1200] (steps)"),
        ("trainer.branches={tokens:[100,101]}", "one horizon, of steps=1"),
        ("-m trainer.branches=[10,20],[10,30]", "one value for all runs"),
        ("trainer.branches={steps:[1,2]}", "{tokens: [1e8, 4e8]}"),
        ("-m trainer.branches=[10,20] trainer.branches=[10,30]", "typed twice"),
        ("trainer.branches=[a,b]", "trainer.branches: "),
        ("trainer.branches={tokens:[1e5,1e18]}", "from 1 to 1e12"),
    ],
)
def test_a_wrong_branch_is_refused_in_one_line(typed, said, capsys):
    assert cli.main([*short_runs.BASE[:8], "schedule=wsd", *typed.split()]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert not Path("runs").exists()


def test_branches_in_tokens_are_the_steps_that_read_them():
    typed = [*short_runs.BASE[:5], "schedule=wsd", "trainer.batch_size=4", "trainer.tokens=640"]
    config = compose([*typed, "trainer.branches={tokens:[640,1281]}"])  # 64 tokens in a step
    assert (config.trainer.steps, config.trainer.branches) == (10, (10, 21))


def test_typed_branches_are_in_the_place_of_the_horizons_of_a_file():
    typed = ["sweep=horizon", "schedule=wsd", "trainer.branches=[20,10]"]
    for name in ("horizon", "quick"):  # a file that varies trainer.steps, one that fixes them
        question = read_request([f"sweep={name}", *typed[1:]]).question
        assert question.vary["trainer.steps"] == [20, 10]
        assert "trainer.steps" not in {*question.fixed, *question.baseline}
    one = read_request([*typed, "trainer.steps=10"]).question
    assert one.fixed["trainer.steps"] == 10


def test_whole_variants_have_each_horizon_and_other_typed_ones():
    words = sweeps.write_sweep(
        "baseline: {norm: rmsnorm}\ntogether: [{norm: rmsnorm}, {norm: dyt, init: mup}]\n"
        "fixed: {schedule: wsd, trainer.branches: [10, 20]}\n"
    )
    for typed, steps in (([], [10, 20]), (["trainer.branches=[10,40]"], [10, 40])):
        variants = read_request([*words, *typed]).question.variants
        assert sorted(one["trainer.steps"] for one in variants) == sorted(2 * steps)
    one = read_request([*words, "trainer.branches=none", "trainer.steps=7"]).question
    assert (len(one.variants), one.fixed["trainer.steps"]) == (2, 7)


def test_what_a_kill_or_a_user_left_with_a_branch_fails_no_run():
    shorter = branch(10)
    folder = Path(shorter["folder"], "branches")
    shutil.copytree(folder / "step-00000009", folder / ".tmp-1-step-00000009")
    (folder / "notes.txt").write_text("mine")
    assert branch(20)["status"] == "finished"
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_branch_that_is_removed_before_it_is_read_is_trained_again(monkeypatch, steps, capsys):
    choose = running.Run._choose_checkpoint

    def choose_and_lose(self, before):
        saved = choose(self, before)
        if saved is not None:
            shutil.rmtree(saved.path)
        return saved

    branch(10)
    monkeypatch.setattr(running.Run, "_choose_checkpoint", choose_and_lose)
    del steps[:]
    run = branch(20)
    assert (steps, run["branched_from"]) == ([*range(20)], None)
    assert "was removed" in capsys.readouterr().err
    check_equal(run, separate(20))


def test_horizons_from_the_longest_on_keep_no_state():
    runs = [branch(horizon) for horizon in (40, 20, 10)]
    assert [kept(run) for run in runs] == [[], [], []]
