"""Nightly, whole counts of tests/run/test_run_folder.py: a run that is stopped and resumed, watched
or continued is the run that nobody disturbed, or it is refused."""

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_workers import ROOT
from short_runs import BASE, TEXT, go, here, rows, same, state, stop_at, tree  # noqa: F401

from transformer_norms import ConfigError, compose, train
from transformer_norms.config.tree import flat
from transformer_norms.run import identity
from transformer_norms.training.loss import ModelLoss

pytestmark = pytest.mark.nightly

STEPS = 30
# An epoch ends within steps 21 and 22. A step is two micro-batches, and dropout draws in each.
MORE = [f"trainer.steps={STEPS}", "trainer.accumulation=2", "trainer.log_every=1"]


@pytest.fixture
def short():
    """An epoch is shorter than the run."""
    Path("corpus.txt").write_text(TEXT[:1600])


@pytest.mark.goal("R2", "R3")
def test_a_run_stopped_after_each_of_its_steps_is_resumed_bitwise(short, stop_at, measured):  # noqa: F811
    calm = go("study=calm", *MORE)["folder"]
    for step in range(1, STEPS + 1):
        stop_at(step)
        stopped, ended = (go(f"study=at{step}", *MORE) for _ in range(2))
        assert (stopped["status"], stopped["step"]) == ("preempted", step)
        if step < STEPS:
            assert same(calm, ended["folder"]), step
        else:  # its checkpoint is older than the last evaluation
            (a, _), (b, _) = state(calm), state(ended["folder"])
            assert all(a[name].equal(b[name]) for name in a)
            assert rows(calm) == rows(ended["folder"])
    stop_at(*range(1, STEPS))
    statuses = [go("study=often", *MORE)["status"] for _ in range(STEPS)]
    assert statuses == ["preempted"] * (STEPS - 1) + ["finished"]
    assert same(calm, next(Path("runs/often").iterdir()))
    measured(f"{STEPS} of {STEPS} stops bitwise; {STEPS - 1} resumes in a row bitwise")


@pytest.mark.goal("R2", "R3")
def test_a_signal_in_the_middle_of_each_step_is_resumed_bitwise(short, monkeypatch, measured):
    """It comes before the second of two micro-batches."""
    more = [*MORE, "norm=batchnorm", "norm.allow_noncausal=true"]
    calm = go("study=calm", *more)["folder"]
    original, at, calls = ModelLoss.backward, 0, itertools.count(1)

    def backward(self, batch, parts):
        total = original(self, batch, parts)
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return total

    monkeypatch.setattr(ModelLoss, "backward", backward)
    for step in range(1, STEPS + 1):
        at, calls = 2 * step - 1, itertools.count(1)
        stopped = go(f"study=in{step}", *more)
        assert (stopped["status"], stopped["step"]) == ("preempted", step - 1)
        at = 0
        assert same(calm, go(f"study=in{step}", *more)["folder"]), step
    measured(f"{STEPS} of {STEPS} signals between micro-batches bitwise")


@pytest.mark.goal("R5")
@pytest.mark.parametrize("typed", [["model.dropout=0.1"], ["optimizer=muon"], ["placement=ngpt"]])
def test_watching_every_step_changes_no_bit(typed, measured):
    watched = "eval_every log_every probe_every checkpoint_every".split()
    often = go("study=often", *typed, *(f"trainer.{key}=1" for key in watched))
    watched.remove("log_every")
    never = go("study=never", *typed, "trainer.log_every=1", *(f"trainer.{k}=0" for k in watched))
    one, other = ([row["train/loss"] for row in rows(run["folder"])] for run in (often, never))
    assert one == other
    (a, s), (b, t) = state(often["folder"]), state(never["folder"])
    assert a.keys() == b.keys()
    assert all(a[name].equal(b[name]) for name in a)
    assert s["chain"] == t["chain"]
    measured(f"{typed[0]}: weights, moments and {len(one)} losses bitwise")


def cpu_of_children():
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.goal("R7")
def test_the_command_of_a_finished_run_changes_no_file(here, measured):  # noqa: F811
    go()
    before, begun = tree("runs"), cpu_of_children()
    again = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *BASE], capture_output=True, text=True
    )
    seconds = cpu_of_children() - begun
    assert (again.returncode, json.loads(again.stdout)["status"]) == (0, "finished"), again.stderr
    assert tree("runs") == before
    assert seconds < 6
    measured(f"exit 0 after {seconds:.1f} s of the processor, {len(before)} files unchanged")


# One for each key of a run's settings, beside what follows from it.
CHANGES = """
norm=layernorm norm.eps=1e-3 norm.gain=none norm.bias=true placement=sandwich
placement.equation=norm(x+f(x)) init=gpt2 init.std.up=0.1 init.truncate=2 position=learned
mlp=swiglu mlp.activation=gelu embed=norm final_norm=none qk_norm=head v_norm=head
architecture.bias=true architecture.attention_gate=per_head architecture.value_residual=0.5
architecture.value_embedding=3 architecture.smear=4
architecture.tied=false architecture.embed_scale=2 architecture.attention_scale=1
architecture.logit_scale=1 architecture.qk_norm_order=after architecture.attention_cap=5
architecture.logit_cap=5 architecture.rope_base=500 architecture.rope_interleaved=true
architecture.rope_fraction=0.5 model.width=32 model.depth=2 model.heads=1 model.kv_heads=1
model.head_dim=16 model.mlp_width=24 model.context=8 model.dropout=0.2 seed=1 data.seed=5
data.split=tail data.val_fraction=0.2 data.val_tokens=400 data=stories tokenizer=bpe
optimizer=muon optimizer.lr=1e-2 optimizer.betas=[0.8,0.9] optimizer.eps=1e-6
optimizer.weight_decay=0.2 optimizer.decay_norms=true optimizer.lr_factor.head=2
schedule=linear schedule.warmup=5 schedule.final=0.2 trainer.batch_size=8 trainer.accumulation=2
trainer.clip=2 trainer.qk_clip=9 architecture.sliding_window=4
trainer.precision=bf16 trainer.compile=block trainer.eval_every=5
""".split()
# Keys that may change, that enter by their content, that follow from other keys, and that have one
# option.
NOT_CHANGED = {"trainer.device", "trainer.steps", "data.paths", "norms", "qkv"}
NOT_CHANGED |= {"attention.type", "loss.type"}


@pytest.mark.goal("R8")
def test_each_changed_setting_is_refused_beside_continue_from(measured):
    first = go()
    before, said = tree("runs"), {}
    more = [f"continue_from={first['folder']}", "trainer.steps=40"]
    for change in CHANGES:
        with pytest.raises(ConfigError) as error:
            train(compose([*more, change]))
        said[change] = str(error.value)
        key = change.partition("=")[0]
        assert "\n" not in said[change]
        assert "only trainer.steps may differ; " in said[change], change
        assert f"{key.partition('.')[0]}" in said[change], said[change]
        assert " there and " in said[change]
    assert tree("runs") == before
    config = compose([f"config={first['folder']}/config.yaml"])
    settings = flat(identity.result_settings(config, first["data"]["identity"]))
    typed = {change.partition("=")[0] for change in CHANGES}
    axes = {key for key in typed if "." not in key}
    for key in settings.keys() - NOT_CHANGED:
        node = key.partition(".")[0]
        named = any(key == one or key.startswith(f"{one}.") for one in typed)
        assert named or (key.endswith(".type") and node in axes) or node == "init", key
    measured(f"{len(CHANGES)} of {len(CHANGES)} changed settings refused in one line")
