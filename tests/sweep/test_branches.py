"""A branch is the separate run: the same bits in weights, moments, rows and losses, however the run
before it and its own process ended. The separate runs never read another run's state."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import short_runs
import sweeps
import torch
from run_folders import edit
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
NUMBERS = "val_loss best_val_loss test_loss initial_loss start spikes batch_chain step tokens"


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
    for key in f"{NUMBERS} identity".split():
        assert one[key] == other[key], key
    assert one["folder"] != other["folder"]


def kept(run):
    """The steps of the states that a run keeps for longer ones."""
    return [int(path.name[5:]) for path in Path(run["folder"], "branches").glob("*")]


@pytest.mark.parametrize("typed", [
    "placement=pre trainer.accumulation=4",
    "placement=hybrid optimizer=muon",
    "preset=ngpt model.dropout=0",
    "norm=dyt trainer.replicas=2 trainer.threads=2 model.dropout=0",
    "norm=batchnorm norm.allow_noncausal=true trainer.precision=bf16",  # with running averages
])  # fmt: skip
def test_each_branch_is_the_separate_run_and_trains_the_rest_of_it_alone(typed, steps):
    runs = [branch(horizon, *typed.split()) for horizon in HORIZONS]
    # The rate of step 0.8 H + 1, the first of the decay, is still 1.
    assert steps == [*range(10), *range(9, 20), *range(17, 40)]
    names = [None, *(Path(run["folder"]).name for run in runs[:2])]
    begun = [(run["branched_from"], run["branch_step"]) for run in runs]
    assert begun == list(zip(names, [None, 9, 17], strict=True))
    for run, horizon in zip(runs, HORIZONS, strict=True):
        check_equal(run, separate(horizon, *typed.split()))
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
        rates, typed = [], ["model=nano", f"schedule={name}", "schedule.warmup=7"]
        for steps in (50, 90):
            config = compose([*typed, f"trainer.steps={steps}"])
            optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
            (scheduler,) = build_schedulers(config, [optimizer])
            rates.append([scheduler.lr_lambdas[0](step) for step in range(50)])
        unequal = [i for i, (a, b) in enumerate(zip(*rates, strict=True)) if a != b]
        assert shared_steps(SCHEDULES.maker(config.schedule), 50, 90) == (unequal or [50])[0]


@pytest.mark.parametrize(("short", "long"), [(6, None), (9, 19), (None, 12)])
def test_stops_before_and_in_the_decay_of_either_run_change_no_bit(short, long, stop_at):  # noqa: F811
    stops = [(10, short)] * bool(short) + [(10, None)] + [(20, long)] * bool(long) + [(20, None)]
    stop_at(*(stop for _, stop in stops), None)
    for horizon, stop in stops:
        run = branch(horizon)
        assert (run["status"] == "preempted") == (stop is not None)
    check_equal(run, separate(20))


def lose_checkpoints(run):
    """As a run is that was killed before its first one."""
    shutil.rmtree(Path(run["folder"], "checkpoints"))


def test_a_run_that_began_at_step_0_takes_no_branch_when_it_goes_on(steps, stop_at):  # noqa: F811
    stop_at(5, None, None, None)
    lose_checkpoints(branch(20))
    branch(10)
    del steps[:]
    run = branch(20)
    assert (steps, run["branched_from"]) == ([*range(20)], None)
    check_equal(run, separate(20))


def spoil_branch(shorter):
    (file,) = shorter.glob("branches/*/model.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"!")


@pytest.mark.parametrize(("spoil", "said"), [
    (lambda run: shutil.rmtree(run / "branches"), ""),
    (spoil_branch, "model.safetensors"),
    (lambda run: (run / "metrics.jsonl").write_text("?\n"), "metrics.jsonl"),
    (lambda run: edit(run, source={}), "had another source"),
    (lambda run: edit(run, threads=7, device="another"), "device, threads"),
    ("removed before it is read", "was removed"),
])  # fmt: skip
def test_without_a_sound_branch_of_this_code_and_machine_all_steps_are_trained(
    spoil, said, steps, request, capsys, monkeypatch
):
    def choose_and_lose(self, before):
        saved = choose(self, before)
        if saved is not None:
            shutil.rmtree(saved.path)
        return saved

    request.getfixturevalue("stop_at")(None, 12, None, None)
    choose, shorter = running.Run._choose_checkpoint, Path(branch(10)["folder"])
    lose_checkpoints(branch(20))
    if isinstance(spoil, str):
        monkeypatch.setattr(running.Run, "_choose_checkpoint", choose_and_lose)
    else:
        spoil(shorter)
    del steps[:]
    run = branch(20)
    assert (steps, run["branched_from"]) == ([*range(20)], None)
    assert said in capsys.readouterr().err
    check_equal(run, separate(20))


# ------------------------------------------------------------------------------------- sweeps


def test_a_sweep_tunes_each_horizon_along_shared_steps(capsys, steps):
    named = sweeps.write_sweep(
        "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\n"
        "tune: {optimizer.weight_decay: [0, 0.1], seed: [9]}\nseeds: [0]\n"
        f"fixed: {{{BRANCHES.replace('=', ': ')}, schedule: wsd, schedule.warmup: 4}}\n"
        "contrasts: [(layernorm - rmsnorm) under steps=40 - (layernorm - rmsnorm) under steps=10]\n"
    )
    short = [*short_runs.BASE[:8], "tracking=none", "trainer.checkpoint_every=0"]
    answer, code, err = sweeps.sweep(capsys, *named, short=short)
    assert (code, answer["missing"], answer["failed"]) == (0, 0, 0)
    record = read_record(Path("runs/mine/sweep-mine.json"))
    assert (record.axes, record.baseline) == (["trainer.steps", "norm"], {"norm": "rmsnorm"})
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
    tuned = {(t.variant["trainer.steps"], t.variant["norm"]) for t in record.tuned}
    assert tuned == {*itertools.product(HORIZONS, ("rmsnorm", "layernorm"))}
    assert not list(Path("runs").glob("*/*/branches"))
    assert "began from the last step" in Path("runs/mine/report.html").read_text()


@pytest.mark.parametrize(("typed", "said"), sweeps.REFUSALS["branches"])
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
    assert read_request([*typed, "trainer.steps=10"]).question.fixed["trainer.steps"] == 10


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


def test_horizons_from_the_longest_on_keep_no_state():
    assert [kept(branch(horizon)) for horizon in (40, 20, 10)] == [[], [], []]
