"""A run is a folder: the same command resumes it bitwise, and its record is of the whole run."""

import hashlib
import itertools
import json
import os
import signal
from pathlib import Path
from statistics import fmean

import matplotlib
import numpy as np
import pytest
import torch
from short_runs import TEXT, go, here, rows, same, state, stop_at

from transformer_norms import load
from transformer_norms.data.batches import Batches
from transformer_norms.errors import Busy, InputError
from transformer_norms.names import options
from transformer_norms.run import machine
from transformer_norms.run.folder import hold_run
from transformer_norms.run.record import Record
from transformer_norms.run.summary import Summary
from transformer_norms.training.accelerators import ACCELERATORS, Accelerator
from transformer_norms.training.loss import ModelLoss
from transformer_norms.training.trainer import Trainer

NIGHTLY = pytest.mark.nightly


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The summary of a run of BASE that nothing interrupts, which several tests read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("calm"))
        patch.setattr("transformer_norms.run.run.draw_curve", lambda *_: None)
        Path("corpus.txt").write_text(TEXT)
        done = go("study=calm")
        return {**done, "folder": Path(done["folder"]).resolve()}


@pytest.mark.goal("R4")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dropout", ["0", "0.1"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_on_a_gpu_two_runs_and_a_resumed_one_are_equal_to_the_last_digit(
    optimizer, dropout, stop_at
):
    typed = "trainer.device=cuda", f"model.dropout={dropout}", f"optimizer={optimizer}"
    one, other = go("study=a", *typed), go("study=b", *typed)
    assert one["compile"] == "none; each step is one CUDA graph"
    assert same(one["folder"], other["folder"])
    stop_at(5, 13)
    resumed = [go("study=c", *typed) for _ in range(3)][-1]
    assert same(one["folder"], resumed["folder"])


def test_a_run_says_how_much_of_its_device_it_used_where_that_is_known(calm, monkeypatch):
    assert calm["model_flops_utilisation"] is None
    monkeypatch.setattr(machine, "device", lambda kind: "NVIDIA toy")
    monkeypatch.setitem(ACCELERATORS, "toy", Accelerator("toy", {"fp32": 1e9}, 0))
    run = go("study=toy")
    a_second = run["flops"] / run["tokens"] * run["tokens_per_second"]
    assert run["model_flops_utilisation"] == pytest.approx(a_second / 1e9, abs=1e-4, rel=1e-3)


def test_a_run_that_goes_on_elsewhere_says_so_and_where_it_was(stop_at, monkeypatch, capfd):
    for name in ("toy", "other"):
        monkeypatch.setitem(ACCELERATORS, name, Accelerator(name, {"fp32": 1e9}, 0))
    stop_at(5, 13)
    for device in ("NVIDIA toy", "NVIDIA toy", "NVIDIA other"):
        monkeypatch.setattr(machine, "device", lambda kind, device=device: device)
        done = go()
        said = capfd.readouterr().err
        assert ("trained on NVIDIA toy, and goes on on NVIDIA other" in said) == ("other" in device)
    assert done["status"] == "finished"
    assert done["device"] == "NVIDIA toy, then NVIDIA other"
    assert done["model_flops_utilisation"] is None


PLACEMENTS = pytest.param(options("placement"), marks=NIGHTLY, id="every placement")


@pytest.mark.goal("T6")
@pytest.mark.parametrize("placements", [pytest.param(["post"], id="post"), PLACEMENTS])
def test_the_chain_of_batches_is_the_hash_of_what_was_read_whatever_the_placement(
    placements, stop_at, measured
):
    text = np.frombuffer(TEXT[: int(len(TEXT) * 0.9)].encode(), np.uint8)
    batches = Batches(text.astype(np.int64), 16, 4, seed=0)
    chain = ""
    for step in range(24):
        chain = hashlib.sha256(chain.encode() + batches(step).numpy().tobytes()).hexdigest()
    chains = {go("study=a", f"placement={placement}")["batch_chain"] for placement in placements}
    assert chains == {chain}
    stop_at(5, 6, 17)
    typed = "study=b", "trainer.accumulation=4", "norm=layernorm"
    assert [go(*typed)["status"] for _ in range(3)] == ["preempted"] * 3
    assert go(*typed)["batch_chain"] == chain
    assert go("study=c", "data.seed=1")["batch_chain"] != chain
    measured(f"{len(placements)} placements, 4 micro-batches and 3 resumes: one chain")


# An epoch ends within steps 21 and 22. A step is two micro-batches, and dropout draws in each.
EPOCHS = ["data.paths=short.txt", "trainer.steps=30", "trainer.accumulation=2"]
STOPS = 1, 6, 7, 10, 21


@pytest.mark.goal("R2", "R3")
@pytest.mark.parametrize(
    ("typed", "stops"),
    [
        ([], STOPS),
        pytest.param(["optimizer=muon"], STOPS, marks=NIGHTLY),
        pytest.param([*EPOCHS, "trainer.log_every=1"], range(1, 30), marks=NIGHTLY),
    ],
)
def test_a_run_stopped_after_any_step_goes_on_bitwise(typed, stops, stop_at, measured):
    Path("short.txt").write_text(TEXT[:1600])
    calm = go("study=calm", *typed)
    stop_at(*stops)
    rough = [go("study=rough", *typed) for _ in (*stops, "the rest")]
    assert [run["status"] for run in rough] == ["preempted"] * len(stops) + ["finished"]
    assert same(calm["folder"], rough[-1]["folder"])
    assert rough[-1]["test_loss"] == calm["test_loss"]
    measured(f"{len(stops)} stops bitwise")


MIXED = pytest.param("mixln", marks=NIGHTLY)
BATCHNORM = "norm=batchnorm", "norm.allow_noncausal=true"
REPLICATED = "replicas", "threads"


@pytest.mark.parametrize("choice", ["ngpt", "rezero", "residual_dual", "batchnorm", MIXED])
def test_what_holds_more_than_weights_goes_on_bitwise_and_loads_as_it_was(choice, stop_at):
    """Constrained weights, a parameter under two names, two streams, running statistics."""
    typed = [f"placement={choice}", f"model.depth={4 if choice == 'mixln' else 2}"]
    typed = [*(BATCHNORM if choice == "batchnorm" else typed), "trainer.steps=12"]
    whole = go("study=whole", *typed)
    stop_at(3, 8)
    assert [go("study=parts", *typed)["status"] for _ in range(3)][-1] == "finished"
    assert same(whole["folder"], Path("runs/parts", Path(whole["folder"]).name))
    model, again = load(whole["folder"]), load(whole["folder"])
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(tokens), again(tokens))
    saved = state(whole["folder"])[0]
    statistics = {name: held for name, held in model.named_buffers() if "running" in name}
    for name, tensor in (*model.named_parameters(), *statistics.items()):
        assert torch.equal(saved[name], tensor), name
    assert bool(statistics) == (choice == "batchnorm")
    said = json.loads((Path(whole["folder"]) / "summary.json").read_text())["warnings"]
    assert any("looks ahead" in line for line in said) == (choice == "batchnorm")


@pytest.mark.goal("R2")
def test_a_signal_during_validation_loses_nothing(calm, monkeypatch):
    original, times = Trainer.evaluate, iter([True, True])

    def evaluate(self, windows):
        if next(times, False):
            signal.raise_signal(signal.SIGTERM)
        return original(self, windows)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    assert [go("study=rough")["status"] for _ in range(3)] == ["preempted", "preempted", "finished"]
    assert same(calm["folder"], next(Path("runs/rough").glob("*")))


@pytest.mark.goal("R2", "R3")
@pytest.mark.parametrize(
    ("replicas", "calls"),
    [(1, (11, 19)), (2, (11, 19)), pytest.param(1, (11,) * 29, marks=NIGHTLY)],
)
def test_a_signal_between_micro_batches_ends_the_step_and_loses_nothing(
    monkeypatch, capsys, replicas, calls, measured
):
    """Of eight micro-batches a step, some are computed when the signal comes: gradients, and what
    batchnorm averages, are as before the step."""
    whole_steps = [call // 8 for call in calls]
    more = [f"trainer.steps={sum(whole_steps) + 3}", "trainer.batch_size=16"]
    more += ["trainer.accumulation=8", *(f"trainer.{key}={replicas}" for key in REPLICATED)]
    more += [*BATCHNORM] if replicas == 1 else ["model.dropout=0"]
    calm = go("study=calm", *more)
    original, count, at = ModelLoss.backward, itertools.count(1), {}

    def backward(self, batch, parts):
        if next(count) == at["call"]:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch, parts)

    monkeypatch.setattr(ModelLoss, "backward", backward)
    steps = []
    # The third micro-batch of a step: with two replicas the main thread, which alone handles a
    # signal, then has one before it, however late it is.
    for at["call"] in (*calls, 0):
        count = itertools.count(1)
        steps.append(go("study=rough", *more)["step"])
    assert steps == [*itertools.accumulate(whole_steps), calm["step"]]
    assert same(calm["folder"], next(Path("runs/rough").glob("*")))
    said = "SIGTERM: this run stops with a checkpoint; once more ends it at once"
    assert capsys.readouterr().err.count(said) == len(calls)
    measured(f"{len(calls)} signals between micro-batches bitwise")


@pytest.mark.goal("R5")
@pytest.mark.parametrize(
    "typed",
    [
        "model.dropout=0.1",
        pytest.param("optimizer=muon", marks=NIGHTLY),
        pytest.param("placement=ngpt", marks=NIGHTLY),
    ],
)
def test_watching_every_step_changes_no_bit(typed):
    watched = "eval_every log_every probe_every checkpoint_every".split()
    often = go("study=often", typed, *(f"trainer.{key}=1" for key in watched))
    watched.remove("log_every")
    never = go("study=never", typed, "trainer.log_every=1", *(f"trainer.{k}=0" for k in watched))
    one, other = ([row["train/loss"] for row in rows(run["folder"])] for run in (often, never))
    assert one == other
    (a, s), (b, t) = state(often["folder"]), state(never["folder"])
    assert all(a[name].equal(b[name]) for name in a | b)
    assert s["chain"] == t["chain"]


@pytest.mark.goal("R5")
def test_what_is_measured_inside_stands_once_at_its_step_and_ends_no_average(calm):
    """At 1 and every fifth: with the loss at 15 and 20, and in separate rows at 1, 5."""
    with_probes, without = calm, go("study=b", "trainer.probe_every=0")
    found = rows(with_probes["folder"])
    probed = {row["step"]: row for row in found if "probe/stream_rms/0" in row}
    assert list(probed) == [1, 5, 10, 15, 20]
    assert sorted(row["step"] for row in found) == [1, 3, 5, 6, 9, 10, 12, 15, 18, 20, 21, 24]
    for step, row in probed.items():
        others = {key for key in row if not key.startswith("probe/")}
        assert (others == {"step", "tokens"}) == (step in (1, 5))
        assert row["tokens"] == step * 4 * 16
    plain = [{k: v for k, v in row.items() if not k.startswith("probe/")} for row in found]
    assert [row for row in plain if "train/loss" in row] == rows(without["folder"])
    a, b = state(with_probes["folder"])[0], state(without["folder"])[0]
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.goal("A4")
def test_accumulation_changes_the_gradient_by_rounding_alone():
    alike = ["model.dropout=0", "trainer.precision=fp64", "trainer.probe_every=0"]
    whole, parts = (go(f"study=s{n}", f"trainer.accumulation={n}", *alike) for n in (1, 4))
    one, other = ([row["train/loss"] for row in rows(run["folder"])] for run in (whole, parts))
    assert one == pytest.approx(other, rel=1e-12)


class Killed(BaseException):
    """Nothing in a run can see it coming."""


def test_a_last_row_that_a_killed_run_wrote_after_its_last_checkpoint_is_measured_again(
    calm, stop_at, monkeypatch
):
    stop_at(24)  # before the last evaluation, whose row comes after the last checkpoint
    assert go("study=rough")["status"] == "preempted"
    row = Record.row

    def killed(self, values):
        row(self, values)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Record, "row", killed)
        with pytest.raises(Killed):
            go("study=rough")
    rough = go("study=rough")
    assert (rough["status"], rough["val_loss"]) == ("finished", calm["val_loss"])
    assert rows(rough["folder"]) == rows(calm["folder"])
    assert rows(rough["folder"])[-1]["val/loss"] == rough["val_loss"]


@pytest.mark.goal("R1")
@pytest.mark.parametrize("at", ["draw", "write"])
def test_a_run_that_is_killed_behind_its_last_checkpoint_writes_what_it_lacks(at, monkeypatch):
    write_summary, killed = Summary.write, []

    def kill(*_):
        killed.append(True)
        raise Killed

    def write(summary, folder):  # a process that is gone writes no error into its summary either
        if killed or (at == "write" and summary.step == 24):
            kill()
        write_summary(summary, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Summary, "write", write)
        if at == "draw":
            patch.setattr("transformer_norms.run.run.draw_curve", kill)
        with pytest.raises(Killed):
            go()
    drawn = []
    monkeypatch.setattr("transformer_norms.run.run.draw_curve", lambda *of: drawn.append(of))
    done = go()
    assert (done["status"], len(drawn)) == ("finished", 1)
    assert done["batch_chain"] == state(done["folder"])[1]["chain"]
    summary = json.loads((Path(done["folder"]) / "summary.json").read_text())
    assert fmean(summary["val_blocks"]) == pytest.approx(done["val_loss"], rel=0.05)


def test_a_held_run_says_who_holds_it(stop_at):
    stop_at(12)
    stopped = go()
    assert (stopped["status"], stopped["val_loss"]) == ("preempted", None)
    assert stopped["best_val_loss"] is not None
    with hold_run(Path(stopped["folder"])), pytest.raises(Busy, match=f"process {os.getpid()}"):
        go()


def test_a_run_that_fails_says_so_and_is_tried_again(monkeypatch):
    def broken(self):
        raise RuntimeError("the roof is on fire")

    with monkeypatch.context() as planted:
        planted.setattr(Trainer, "train_step", broken)
        with pytest.raises(RuntimeError, match="the roof"):
            go()
    summary = json.loads(next(Path("runs/main").glob("*/summary.json")).read_text())
    assert (summary["status"], "the roof is on fire" in summary["error"]) == ("failed", True)
    mended = go()
    assert (mended["status"], mended["error"]) == ("finished", None)


def test_a_test_part_of_the_tail_split_is_evaluated_at_the_end():
    done = go("data.split=tail", "data.test_fraction=0.1")
    data = done["data"]
    train, test = (int(len(TEXT) * share) for share in (0.85, 0.95))
    sizes = [data[part]["tokens"] for part in ("train", "test", "val")]
    assert sizes == [train, test - train, len(TEXT) - test]
    assert data["ngrams"].keys() == {"val", "test"}
    assert 0 < done["test_loss"] != done["val_loss"]
    summary = json.loads((Path(done["folder"]) / "summary.json").read_text())
    for part in ("val", "test"):
        assert fmean(summary[f"{part}_blocks"]) == pytest.approx(done[f"{part}_loss"], rel=0.05)


@pytest.mark.draws
def test_the_loss_curve_is_drawn_with_the_losses_of_no_model_as_lines():
    matplotlib.use("agg")
    done = go("data=stories", "data.documents=120")
    assert matplotlib.get_backend() == "agg"  # a notebook shows its figures after a run
    drawn = (Path(done["folder"]) / "curve.svg").read_text()
    assert drawn.startswith("<?xml")
    for label in ("training", "validation", "uniform", "unigram", "5-gram", "entropy floor"):
        assert f"<!-- {label}" in drawn
    summary = json.loads((Path(done["folder"]) / "summary.json").read_text())
    data = summary["data"]
    assert summary["trained"] is (summary["val_loss"] <= data["ngrams"]["val"][0] - 0.005)
    assert {part: len(losses) for part, losses in data["ngrams"].items()} == {"val": 5, "test": 5}
    assert data["ngram_tokens"] == done["tokens"]


def test_unusable_input_is_one_line_and_nothing_is_written():
    Path("short.txt").write_text("sixty letters are too few for two contexts of thirty-two...")
    before = sorted(Path(".").rglob("*"))
    with pytest.raises(InputError, match=r"^.*model\.context=32 needs 64.*$"):
        go("data.paths=short.txt", "model.context=32")
    assert sorted(Path(".").rglob("*")) == before
