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
from run_folders import tree
from short_runs import BASE, TEXT, go, here, rows, same, state, stop_at  # noqa: F401

from transformer_norms import ConfigError, compose, train
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
    stop_at(*range(1, STEPS))
    statuses = [go("study=often", *MORE)["status"] for _ in range(STEPS)]
    assert statuses == ["preempted"] * (STEPS - 1) + ["finished"]
    assert same(calm, next(Path("runs/often").iterdir()))
    # The checkpoint of the last step is older than the last evaluation.
    stop_at(STEPS)
    assert go("study=last", *MORE)["step"] == STEPS
    (a, _), (b, _) = state(calm), state(go("study=last", *MORE)["folder"])
    assert all(a[name].equal(b[name]) for name in a)
    measured(f"{STEPS - 1} resumes in a row bitwise, and one after the last step")


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


# Of each group of a config, and of what a choice brings.
CHANGES = """
norm=layernorm norm.eps=1e-3 placement=sandwich placement.equation=norm(x+f(x)) init.std.up=0.1
position=learned mlp.activation=gelu embed=norm qk_norm=head architecture.tied=false model.depth=2
model.dropout=0.2 seed=1 data.seed=5 data.val_tokens=400 data=stories tokenizer=bpe optimizer=muon
optimizer.lr_factor.head=2 schedule.warmup=5 trainer.batch_size=8 trainer.clip=2
""".split()


@pytest.mark.goal("R8")
def test_each_changed_setting_is_refused_beside_continue_from(measured):
    first = go()
    before = tree("runs")
    more = [f"continue_from={first['folder']}", "trainer.steps=40"]
    for change in CHANGES:
        with pytest.raises(ConfigError) as error:
            train(compose([*more, change]))
        said = str(error.value)
        assert "\n" not in said
        assert "only trainer.steps may differ; " in said, change
        assert change.partition(".")[0].partition("=")[0] in said
        assert " there and " in said
    assert tree("runs") == before
    measured(f"{len(CHANGES)} of {len(CHANGES)} changed settings refused in one line")
