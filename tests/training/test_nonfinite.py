"""NaN and infinity in a loss, a gradient, an update, a running average, a validation loss."""

import json
import math
from itertools import product
from pathlib import Path

import pytest
import torch
from short_runs import BASE, go, here, rows, same, stop_at  # noqa: F401
from trainers import SIZES, tokens

from transformer_norms import cli, compose, runs
from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.report.study import LOSS_KEYS
from transformer_norms.report.writing import write_report
from transformer_norms.run.curve import draw_curve
from transformer_norms.run.reader import SavedRun
from transformer_norms.sweep.board import last_loss
from transformer_norms.training import divergence
from transformer_norms.training.divergence import find_nonfinite
from transformer_norms.training.graphs.ahead import StepsAhead
from transformer_norms.training.loss import ModelLoss
from transformer_norms.training.trainer import Trainer


@pytest.fixture
def calm(stop_at):  # noqa: F811
    """calm(*overrides): the folder of the same run, stopped after step 12 by a signal."""
    return lambda *overrides: (stop_at(12), go("study=calm", *overrides)["folder"])[1]


def plant(fault, monkeypatch):
    """Plants a fault in step 13, after a batch has gone backwards: in the loss, in one number of
    one gradient, or in the third of four micro-batches."""
    at = 4 * 12 + 3 if fault == "nan_micro_batch" else 13
    original, calls = ModelLoss.backward, iter(range(1, 1000))

    def backward(self, batch, parts):
        loss = original(self, batch, parts)
        if next(calls) == at:
            if fault == "infinite_gradient":
                self.model.blocks[0].mlp.f.up.weight.grad[1, 2] = math.inf
            elif fault == "nan_micro_batch":
                self.model.final.gain.grad.fill_(math.nan)
            else:
                loss *= math.nan
        return loss

    monkeypatch.setattr(ModelLoss, "backward", backward)


SELDOM = ["trainer.log_every=50", "trainer.eval_every=0", "trainer.checkpoint_every=0"]
SELDOM += ["trainer.probe_every=0"]


def overlap(monkeypatch):
    """From now on a step begins before the one before it has ended, as on a GPU. Returns what will
    hold the numbers of the steps that began so."""
    advance, begun = StepsAhead.advance, []

    def noted(self, batch, number, probe):
        begun.append(number + 1)
        return advance(self, batch, number, probe)

    monkeypatch.setattr("transformer_norms.training.trainer.can_step_ahead", lambda trainer: True)
    monkeypatch.setattr(StepsAhead, "advance", noted)
    return begun


AVERAGING, FOUR = ["norm=batchnorm", "norm.allow_noncausal=true"], ["trainer.accumulation=4"]
EMA, NIGHTLY = "trainer.average={type: ema, decay: 0.9}", pytest.mark.nightly
FAULTS = [  # what is planted, what is typed, and whether steps overlap
    ("nan_loss", AVERAGING, False),
    pytest.param("infinite_gradient", [], False, marks=NIGHTLY),
    pytest.param("nan_micro_batch", [*FOUR, "optimizer=muon"], False, marks=NIGHTLY),
    ("nan_loss", AVERAGING, True),
    ("infinite_gradient", ["placement=ngpt"], True),
    ("infinite_gradient", ["trainer.average={type: window, count: 2, every: 1}"], True),
    ("infinite_gradient", [EMA], True),
    ("infinite_gradient", ["optimizer=muon", "trainer.qk_clip=0.05"], True),
    ("nan_micro_batch", FOUR, True),
]


@pytest.mark.goal("N1")
@pytest.mark.parametrize(("fault", "typed", "overlapping"), FAULTS)
def test_no_update_is_applied_and_the_run_diverges_with_the_weights_before_it(
    fault, typed, overlapping, calm, monkeypatch, measured
):
    """Weights, moments and running averages are bitwise those after step 12, though step 14 may
    have begun."""
    typed = [*typed, *SELDOM] if overlapping else typed
    before = calm(*typed)
    with monkeypatch.context() as planted:
        begun = overlap(planted) if overlapping else [*range(1, 15)]
        plant(fault, planted)
        diverged = go("study=planted", *typed)
    assert (diverged["status"], diverged["step"]) == ("diverged", 12)
    assert "at step 13" in diverged["diverged"]
    assert same(before, diverged["folder"])
    assert begun == [*range(1, 15)]
    assert go("study=planted", *typed)["status"] == "diverged"
    measured(f"{fault}{', steps overlap' * overlapping}: step 12 bitwise")


def test_a_running_average_that_a_module_replaces_goes_back_as_well():
    model = build_model(compose(SIZES), 31)
    final, forward = model.final, model.final.forward
    final.register_buffer("seen", torch.zeros(()))

    def count(x):
        final.seen = final.seen + 1
        return forward(x)

    final.forward = count
    trainer = build_trainer(model.config, model, lambda step: tokens(), lambda: ())
    trainer.train_step()
    assert final.seen == 1
    final.gain.register_hook(lambda grad: grad * math.nan)
    assert "at step 2" in trainer.train_step()
    assert final.seen == 1


HIGH = ["optimizer.lr=0.5", "trainer.steps=60", *SELDOM]  # the loss stays high
USUAL = [
    ["trainer.qk_clip=0.05", "trainer.average={type: window, count: 3, every: 2}"],
    ["trainer.clip=0.1", "optimizer=muon", EMA],
]


@pytest.mark.parametrize("typed", [*USUAL, HIGH], ids=str)
def test_steps_that_overlap_give_the_digits_of_steps_that_wait_and_stop_as_they(typed, monkeypatch):
    monkeypatch.setattr(divergence, "PATIENCE", 5)
    waited = go("study=waited", *typed)
    begun = overlap(monkeypatch)
    overlapped = go("study=overlapped", *typed)
    assert same(waited["folder"], overlapped["folder"])
    assert waited["diverged"] == overlapped["diverged"]
    high = "stood above its initial" in str(waited["diverged"])
    assert high if typed is HIGH else begun == [*range(1, 25)]


@pytest.mark.parametrize("above", [0, 99])
def test_a_device_skips_the_steps_that_the_rule_stops_at(above):
    values = (1.0, 3.0, math.inf, -math.inf, math.nan, 2e100)
    for loss, nats, norm, step in product(values, values, values, (1, 5, 6)):
        rule = divergence.Divergence(warmup=5)
        rule.initial, rule.above = 2.0, above
        numbers = torch.tensor((loss, nats, norm), dtype=torch.float64)
        skip = divergence.must_skip(numbers, torch.tensor(rule.limit(step)))
        reason = rule.step(step, nats if abs(loss) <= 1e100 else loss, norm)
        assert bool(skip) == (reason is not None), (numbers, step)


WEIGHT = "blocks.0.mlp.f.up.weight"


def overflow(monkeypatch, name, step=13):
    """From now on the update of `step` leaves an infinity in one number of a weight or a moment.
    That of an embedding is at a token that the text has not, so that no loss shows it."""
    original = Trainer.train_step

    def stepped(self):
        reason = original(self)
        if reason is None and self.step == step:
            for group in self.tensors().values():
                if name in group:
                    group[name].detach().view(-1)[0] = math.inf
        return reason

    monkeypatch.setattr(Trainer, "train_step", stepped)


@pytest.mark.goal("N1")
@pytest.mark.parametrize(
    ("name", "typed"),
    [
        # Found at the checkpoint of step 14, and again at step 13.
        (f"{WEIGHT}:exp_avg_sq", []),
        pytest.param("embedding.weight", [], marks=NIGHTLY),
        # The next loss is NaN. There is no checkpoint: from the start.
        pytest.param(WEIGHT, ["trainer.checkpoint_every=0"], marks=NIGHTLY),
        pytest.param(f"{WEIGHT}:momentum", ["optimizer=muon"], marks=NIGHTLY),
    ],
)
def test_an_update_that_overflows_is_a_divergence_of_its_step(
    name, typed, calm, monkeypatch, capfd, measured
):
    before = calm(*typed)
    with monkeypatch.context() as planted:
        overflow(planted, name)
        diverged = go("study=planted", *typed)
    assert (diverged["status"], diverged["step"], diverged["error"]) == ("diverged", 12, None)
    assert diverged["diverged"] == f"{name} is not finite after the update of step 13"
    assert same(before, diverged["folder"])
    assert "training again up to the step before" in capfd.readouterr().err
    measured(f"{name}: step 12 bitwise")


@pytest.mark.goal("N1")
def test_a_diverged_command_exits_5(monkeypatch, capsys):
    overflow(monkeypatch, WEIGHT)
    assert cli.main(BASE) == 5
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (answer["status"], answer["steps"], answer["val_loss"]) == ("diverged", 12, None)
    assert cli.main(BASE) == 5


def test_a_tensor_is_named_whatever_its_size_and_large_numbers_are_finite():
    large = torch.full((3, 2), 1e38)
    tensors = {"large": large, "empty": torch.zeros(0, 4), "count": torch.tensor([1 << 40])}
    assert find_nonfinite(tensors) is None
    for bad in (math.nan, math.inf, -math.inf):
        other = torch.zeros(5, dtype=torch.bfloat16)
        other[3] = bad
        assert find_nonfinite({**tensors, "other": other}) == "other"


def infinite_validations(monkeypatch, at):
    """At the steps of `at`, the summed nats of a validation are what it says."""
    original = Trainer.evaluate

    def evaluate(self, windows):
        found = original(self, windows)
        return found and found._replace(nats=at.get(self.step, found.nats))

    monkeypatch.setattr(Trainer, "evaluate", evaluate)


BAD, OFTEN = {5: math.inf, 10: math.nan, 15: 1e300}, ["trainer.eval_every=5", "trainer.log_every=5"]


def test_an_infinite_validation_loss_is_null_and_stops_nothing(stop_at, monkeypatch):  # noqa: F811
    with monkeypatch.context() as planted:
        infinite_validations(planted, BAD)
        whole = go("study=whole", *OFTEN)
        stop_at(6, 16)  # its checkpoints are read back
        parts = [go("study=parts", *OFTEN) for _ in range(3)]
    ended = [run["status"] for run in (whole, *parts)]
    assert ended == ["finished", "preempted", "preempted", "finished"]
    assert same(whole["folder"], parts[-1]["folder"])
    found = {row["step"]: row for row in rows(whole["folder"]) if "val/loss" in row}
    assert {step for step, row in found.items() if row["val/loss"] is None} == BAD.keys()
    assert all(found[step]["nonfinite"] == ["val/loss", "val/bpb"] for step in BAD)
    losses = [row["val/loss"] for row in found.values() if row["val/loss"] is not None]
    assert (whole["val_loss"], whole["best_val_loss"]) == (losses[-1], min(losses))
    assert parts[0]["best_val_loss"] is None
    run = SavedRun(Path(whole["folder"]))
    assert draw_curve(run.folder, run.summary).is_file()
    (listed,) = runs("runs/whole")
    assert [row["val/loss"] for row in listed["metrics"] if row["step"] in BAD] == [None] * 3
    assert LOSS_KEYS.keys() <= last_loss(run.folder / "metrics.jsonl").keys()


@NIGHTLY
def test_a_report_is_made_of_a_run_with_infinite_validation_losses(monkeypatch):
    infinite_validations(monkeypatch, BAD)
    run = go(*OFTEN)
    page = write_report([Path("runs/main")])[0].read_text()
    assert Path(run["folder"]).name in page
    assert "NaN" not in page.partition("<main")[2].partition("<script")[0]


def test_an_infinite_validation_loss_at_the_end_is_a_divergence(monkeypatch):
    infinite_validations(monkeypatch, {24: math.inf})
    diverged = go()
    assert (diverged["status"], diverged["step"], diverged["val_loss"]) == ("diverged", 24, None)
    assert diverged["diverged"] == "the final validation loss is not finite"
    assert diverged["best_val_loss"] is not None
