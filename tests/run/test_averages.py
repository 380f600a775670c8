"""Averages of the weights: their arithmetic, their losses, and a run that they leave as it is."""

import json
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import torch
from refusing import refused
from run_folders import config_of, make_run
from safetensors.torch import load_file
from short_runs import go, here, rows, same, state, stop_at  # noqa: F401
from trainers import trainer_of

from transformer_norms import build_model, compose, load, train
from transformer_norms.commands.sampling import sample
from transformer_norms.config.saved import to_yaml
from transformer_norms.explain.explanation import explain
from transformer_norms.kinds import value_at
from transformer_norms.plan.plans import plan_run
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.table import average_notes
from transformer_norms.run.space import space_left_to_write
from transformer_norms.sweep.launching import keep_weights_only
from transformer_norms.training.averages import AVERAGES, WindowAverage

EMA, WINDOW = "{type: ema, decay: 0.8}", "{type: window, count: 3, every: 4}"
EACH = ["trainer.checkpoint_every=1", "trainer.keep=99", "trainer.precision=fp64"]
BATCHNORM = ["norm=batchnorm", "norm.allow_noncausal=true"]


def saved(folder, step, name="average"):
    return load_file(Path(folder, f"checkpoints/step-{step:08d}/{name}.safetensors"))


def expected(average, weights):
    """The average after the last of the steps, whose weights [step, ...] begin with step 0."""
    steps = len(weights) - 1
    if average == WINDOW:
        return np.mean([weights[k] for k in range(4, steps + 1, 4)][-3:] or weights[-1:], axis=0)
    value = weights[0]
    for t in range(1, steps + 1):
        d = min(0.8, (1 + t) / (10 + t))
        value = d * value + (1 - d) * weights[t]
    return value


@pytest.mark.parametrize("average", [EMA, WINDOW])
def test_the_average_is_that_of_the_weights_recorded_step_by_step(average):
    folder = go(*EACH, f"trainer.average={average}", *BATCHNORM)["folder"]
    config = compose([f"config={folder}/config.yaml"])
    vocabulary = len(saved(folder, 1, "model")["embedding.weight"])
    start = dict(build_model(config, vocabulary).named_parameters())
    every = [saved(folder, step, "model") for step in range(1, 25)]
    for step in (1, 3, 4, 9, 13, 23, 24):
        found, last = saved(folder, step), every[step - 1]
        assert found.keys() == last.keys()
        for name in found:
            if name not in start:  # running statistics
                assert torch.equal(found[name], last[name])
                continue
            weights = [start[name].detach().numpy(), *(each[name].numpy() for each in every)]
            wanted = expected(average, weights[: step + 1])
            np.testing.assert_allclose(found[name].numpy(), wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("average", [EMA, WINDOW])
@pytest.mark.parametrize("typed", [[], ["placement=ngpt", "trainer.accumulation=2"]], ids=str)
def test_a_run_with_an_average_is_the_run_without_also_after_stops(average, typed, stop_at):  # noqa: F811
    plain = go("study=plain", *typed)
    whole = go("study=whole", *typed, f"trainer.average={average}")
    stop_at(3, 9, 21)
    for _ in range(4):
        parts = go("study=parts", *typed, f"trainer.average={average}")
    assert same(whole["folder"], parts["folder"])
    (a, s), (b, t) = state(plain["folder"]), state(whole["folder"])
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert s | {"average_loss": t["average_loss"]} == t
    key = "val/average_loss"
    without = [{k: v for k, v in row.items() if k != key} for row in rows(whole["folder"])]
    assert without == rows(plain["folder"])
    averaged = [row[key] for row in rows(whole["folder"]) if key in row]
    assert len(averaged) == 3  # at 10, 20, 24
    assert averaged[-1] == whole["average_loss"] != whole["val_loss"]
    for name in ("average_loss", "test_average_loss"):
        assert (parts[name], plain[name]) == (whole[name], None)


@pytest.mark.parametrize("placement", ["pre", "ngpt"])
def test_the_loss_is_that_of_a_model_that_holds_the_average(placement):
    typed = ["trainer.precision=fp64", f"placement={placement}", f"trainer.average={EMA}"]
    trainer = trainer_of(*typed)
    for _ in range(6):
        assert trainer.train_step() is None
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    found = trainer.evaluate_average(trainer.validation())["average_loss"]
    assert all(map(torch.equal, before, trainer.parameters))
    model = build_model(trainer.model.config, 31)
    model.load_state_dict(trainer.average.tensors(6)["average"], strict=False)
    if placement == "ngpt":  # rows of what reads the stream, columns of what writes to it
        for name, matrix in model.state_dict().items():
            if name.endswith(".weight"):
                axis = 0 if name.split(".")[-2] in ("output", "down") else 1
                matrix /= matrix.norm(dim=axis, keepdim=True)
    (batch,) = trainer.validation()
    logits = model.eval()(batch[:, :-1]).flatten(0, 1)
    wanted = torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten()).item()
    assert found == pytest.approx(wanted, rel=1e-12)


def test_an_average_is_kept_after_a_sweep_loaded_and_sampled():
    folder = Path(go(f"trainer.average={WINDOW}", "trainer.keep_optimizer=false")["folder"])
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"weights_only": True}))
    keep_weights_only(folder)
    left = {file.name for file in folder.glob("checkpoints/*/*.safetensors")}
    assert left == {"model.safetensors", "average.safetensors"}
    averaged, model = load(folder, average=True), load(folder)
    for name, tensor in saved(folder, 24).items():
        assert torch.equal(dict(averaged.named_parameters())[name], tensor)
    assert not torch.equal(averaged.embedding.weight, model.embedding.weight)
    assert sample(folder, "cats", 5, average=True).startswith("cats")
    plain = go("study=plain")["folder"]
    assert "trainer.average is none" in refused(load, plain, average=True)


TOKENS = ["schedule=wsd", "trainer.tokens=1e6", "trainer.branches={tokens: [1e6, 2e6]}"]
LINEAR = {"type": "linear", "factor": 4}


@pytest.mark.parametrize(
    ("held", "typed", "wanted"),
    [
        ([f"trainer.average={EMA}"], "trainer.average=none", "none"),
        ([f"trainer.average={EMA}"], f"trainer.average={WINDOW}",
         {"type": "window", "count": 3, "every": 4}),
        ([f"trainer.average={WINDOW}"], "trainer.average={type: window, count: 5}",
         {"type": "window", "count": 5, "every": 4}),
        ([f"trainer.average={WINDOW}"], "trainer.average={every: 2}",
         {"type": "window", "count": 3, "every": 2}),
        (TOKENS, "trainer.branches=none", "none"),
        (TOKENS, "trainer.branches=[489, 10]", (10, 489)),
        (["position=rope_yarn"], "position.scaling=none", "none"),
        (["position=rope_yarn"], "position.scaling={type: linear, factor: 4}", LINEAR),
    ],
)  # fmt: skip
def test_settings_of_another_class_replace_the_saved_ones(held, typed, wanted, tmp_path):
    (tmp_path / "config.yaml").write_text(to_yaml(compose(held)))
    config = compose([f"config={tmp_path / 'config.yaml'}", typed])
    assert value_at(config, typed.partition("=")[0]) == wanted


def test_a_finished_branch_is_trained_on_with_other_branches_or_none():
    origin = go("schedule=wsd", "trainer.branches=[10, 24]")["folder"]
    typed = [f"continue_from={origin}", "trainer.steps=30", "again=true"]
    for branches in ("none", "[24, 30]"):
        assert train(compose([*typed, f"trainer.branches={branches}"]))["step"] == 30


def test_an_average_of_a_plugin_extends_ours_and_is_explained_in_its_words(monkeypatch):
    class Latest(WindowAverage):
        def __init__(self, model, *, count: str) -> None:
            super().__init__(model, count=1, every=1)

    class Bare:
        def __init__(self, model) -> None: ...
        def share(self, step): ...
        def update(self, step, skip=None): ...

    monkeypatch.setitem(AVERAGES, "latest", Latest)
    monkeypatch.setitem(AVERAGES, "bare", Bare)
    line = refused(compose, ["trainer.average={type: bare}"])
    assert line == "trainer.average.type: bare is not a subclass of WindowAverage"
    config = compose(["trainer.average={type: latest, count: all}", "model=nano"])
    assert "evaluated, too: latest (trainer.average=" in str(explain(config, 256, set()))
    assert plan_run(config, 256).numbers["peak_memory"]


def test_copies_that_no_step_takes_are_warned_of():
    typed = "trainer.average={type: window, every: 5, count: "  # at 5, 10, 15 and 20
    four, five = (
        compose(["trainer.steps=24", "schedule.warmup=4", f"{typed}{count}}}"]).warnings
        for count in (4, 5)
    )
    assert (len(four), len(five)) == (0, 1)
    assert five[0].startswith("trainer.average.count=5: 24 steps take only 4 of")


def test_a_missing_file_of_a_checkpoint_is_named_alone(stop_at):  # noqa: F811
    stop_at(9)
    folder = Path(go(f"trainer.average={WINDOW}")["folder"])
    (lost,) = folder.glob("checkpoints/step-00000009/snapshots.safetensors")
    lost.unlink()
    with pytest.raises(ValueError, match=f"^{lost.parent} has no snapshots.safetensors"):
        go(f"trainer.average={WINDOW}")


@pytest.mark.parametrize(("average", "copies"), [(EMA, 1), (WINDOW, 3)])
def test_explain_says_what_the_average_is_and_its_copies_are_counted(average, copies, here):  # noqa: F811
    typed = ["model=nano", "trainer.device=cpu", "trainer.keep=1"]
    config, plain = compose([*typed, f"trainer.average={average}"]), compose(typed)
    assert f"trainer.average={average}" in str(explain(config, 256, set()))
    numbers, without = plan_run(config, 256).numbers, plan_run(plain, 256).numbers
    weights = 4 * numbers["parameters"]["all"]
    assert numbers["peak_memory"] - without["peak_memory"] == copies * weights
    more, less = (space_left_to_write(here, one, 256) for one in (config, plain))
    files = copies + (copies > 1)  # snapshots, and the average of them
    assert more - less == pytest.approx(2 * files * 1.1 * weights, rel=0.1)  # with room


def test_a_report_says_what_the_average_foretold_at_the_last_evaluation_before_the_decay(tmp_path):
    """The last 16 of 80 steps decay, so the rows of steps 60 and 64 have the peak rate."""
    losses = {"pre": [(2.31, 2.4, 2.2), (2.33, 2.44, 2.25)], "post": [(3.0, 3.2, 2.5), (3, 3, 3)]}
    for placement, seeds in losses.items():
        for seed, (averaged, raw, final) in enumerate(seeds):
            typed = (f"placement={placement}", "schedule=wsd", f"trainer.average={EMA}")
            config = config_of(typed, seed, trainer__steps=80)
            folder = make_run(tmp_path / "study", config, final, average_loss=7.0)
            peak = config["optimizer"]["lr"]
            lines = [(60, 9, 9, peak), (64, averaged, raw, peak), (72, 8, 8, peak / 2)]
            keys = "step", "val/average_loss", "val/loss", "lr"
            texts = [
                json.dumps(dict(zip(keys, line, strict=True)))
                for line in (*lines, (80, 7, final, peak / 8))
            ]
            (folder / "metrics.jsonl").write_text("\n".join(texts))
    notes = average_notes(findings(read_study([tmp_path / "study"])))
    assert "minus the validation loss at the end" in notes[2]
    for note, placement in zip(sorted(notes[:2], reverse=True), ("pre", "post"), strict=True):
        each = [[one[k] - one[2] for one in losses[placement]] for k in (0, 1)]
        averaged, raw = (f"{mean(column):.4f} ± {stdev(column):.4f}" for column in each)
        wanted = f"{placement}: {averaged}, without averaging {raw}, at step 64 (2 seeds)"
        assert note == wanted
