"""A sweep whose launcher stacks runs: as lone runs of the same configs, also where one fails."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from sweeps import SHORT, BasicLauncher, here, sweep, write_norm

from transformer_norms.run.record import Record
from transformer_norms.sweep import launching
from transformer_norms.sweep.drive import plan_sweep
from transformer_norms.training.trainer import Trainer

LONGER = ["trainer.steps=12", "trainer.checkpoint_every=5", "trainer.eval_every=4"]
LONGER += ["trainer.probe_every=6", "trainer.log_every=2", "trainer.precision=fp64"]
FOUR = [*LONGER, "norm=rmsnorm", "seed=0,1", "optimizer.lr=1e-3,3e-3"]
EXACT = [text for text in SHORT if not text.startswith(("trainer.steps", "trainer.probe_every"))]


class StackingLauncher(BasicLauncher):
    """Runs what a worker of a pool would, in this process."""

    stacked = 4

    def run(self, stacks, stopping):
        ends = {}
        for stack in stacks:
            self.asked.append([job.overrides for job in stack])
            ended = launching.run_jobs(self.asked[-1])
            ends |= zip([job.folder for job in stack], ended, strict=True)
        return ends


def go(capsys, *typed, launcher=None):
    launcher = launcher or StackingLauncher()
    return sweep(capsys, *typed, launcher=launcher, short=EXACT)


def runs_of(study):
    """(its summary, its rows) of each run of a study, by the name of its folder."""
    found = {}
    for run in (file.parent for file in Path("runs", study).glob("*/summary.json")):
        summary, *rows = ((run / name).read_text() for name in ("summary.json", "metrics.jsonl"))
        found[run.name] = json.loads(summary), [*map(json.loads, rows[0].splitlines())]
    return found


def check_equal(alone, stacked, rel=1e-12):
    """Two studies have the same runs, to rounding."""
    assert alone.keys() == stacked.keys()
    for name, (summary, rows) in alone.items():
        other, other_rows = stacked[name]
        for key in ("identity", "status", "step", "batch_chain", "diverged"):
            assert summary[key] == other[key]
        for one, two in zip([*rows, summary], [*other_rows, other], strict=True):
            for key, value in one.items():
                if isinstance(value, float) and "second" not in key and "utilis" not in key:
                    # A probe keeps five digits.
                    assert two[key] == pytest.approx(value, rel=2e-5 if "probe" in key else rel)


def test_a_stacked_sweep_is_the_sweep_of_lone_runs_and_says_which_stack_a_run_was_in(capsys):
    launcher = StackingLauncher()
    alone, *_ = go(capsys, *FOUR, "study=alone", launcher=BasicLauncher())
    answer, code, _ = go(capsys, *FOUR, "study=stacked", launcher=launcher)
    assert {**alone, "study": "", "report": ""} == {**answer, "study": "", "report": ""}
    assert (code, [len(jobs) for jobs in launcher.asked]) == (0, [4])
    lone, stacked = runs_of("alone"), runs_of("stacked")
    check_equal(lone, stacked)
    assert all(summary["stacked"] is None for summary, _ in lone.values())
    records = {name: summary["stacked"] for name, (summary, _) in stacked.items()}
    assert sorted(record["place"] for record in records.values()) == [0, 1, 2, 3]
    for name, record in records.items():
        assert (record["members"], {*record["runs"]}) == (4, {*stacked})
        assert record["runs"][record["place"]] == name
    assert not [*Path("runs/stacked").glob("*/checkpoints/*/optimizer.safetensors")]
    again, code, _ = go(capsys, *FOUR, "study=stacked")
    assert (again["finished"], code, runs_of("stacked")) == (4, 0, stacked)


def test_of_a_stack_one_run_diverges_one_fails_and_the_others_finish(capsys, monkeypatch):
    typed = [*LONGER, "norm=rmsnorm", "seed=0,1", "optimizer.lr=1e-3,100"]
    go(capsys, *typed, "study=alone", launcher=BasicLauncher())
    alone = runs_of("alone")
    fine = {name for name, (summary, _) in alone.items() if summary["status"] == "finished"}
    _, failed = sorted(fine, key=lambda name: "-s1-" in name)
    whole = Record.row

    def row(self, row):
        if self.folder.name == failed and row["step"] > 6:
            raise ArithmeticError("planted")
        whole(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(Record, "row", row)
        answer, code, err = go(capsys, *typed, "study=stacked")
    assert (answer["finished"], answer["diverged"], answer["failed"], code) == (1, 2, 1, 1)
    assert "planted" in err
    assert "ArithmeticError: planted" in runs_of("stacked")[failed][0]["error"]
    answer, code, _ = go(capsys, *typed, "study=stacked")
    assert (answer["finished"], answer["diverged"], code) == (2, 2, 0)
    stacked = runs_of("stacked")
    check_equal({name: alone[name] for name in fine}, {name: stacked[name] for name in fine})
    assert stacked[failed][0]["stacked"]["members"] == 4  # the stack of before; then it was alone


def test_a_signal_saves_all_runs_of_a_stack_and_the_same_command_goes_on(capsys, monkeypatch):
    go(capsys, *FOUR, "study=alone", launcher=BasicLauncher())
    whole, steps = Trainer.train_step, []

    def train_step(self):
        steps.append(self.step)
        if len(steps) == 26:  # six steps of each, and two
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)  # the main thread hears of it
        return whole(self)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    answer, code, err = go(capsys, *FOUR, "study=stacked")
    assert (answer["missing"], code) == (4, 75)
    assert "SIGTERM: the runs stop with a checkpoint" in err
    for summary, _ in runs_of("stacked").values():  # some had begun the next step
        assert (summary["status"], summary["step"] in (6, 7)) == ("preempted", True)
    launching._stopped.clear()
    monkeypatch.setattr(Trainer, "train_step", whole)
    answer, code, _ = go(capsys, *FOUR, "study=stacked")
    assert (answer["finished"], code) == (4, 0)
    check_equal(runs_of("alone"), runs_of("stacked"))


def test_a_run_of_a_stack_whose_files_cannot_be_deleted_fails_alone(capsys, monkeypatch):
    def refuse(folder):
        if "-s1-" in folder.name:
            raise OSError("a bad block")

    monkeypatch.setattr(launching, "keep_weights_only", refuse)
    monkeypatch.setattr("transformer_norms.sweep.drive.look_at_ended", lambda *_: None)
    err = go(capsys, "trainer.steps=2", "trainer.probe_every=0", "seed=0,1")[-1]
    assert "the variant s1: failed: OSError: a bad block\n" in err
    assert "the variant s0: finished" in err


def test_runs_of_two_variants_or_of_other_settings_are_no_stack(capsys):
    typed = ["norm=rmsnorm,layernorm", "seed=0,1,2,3", "optimizer.lr=1e-3,3e-3", "trainer.steps=1"]
    _, jobs = plan_sweep((*EXACT, *typed, "trainer.probe_every=0"))
    stacks = launching.make_stacks(jobs, 4)
    assert {job.folder for stack in stacks for job in stack} == {job.folder for job in jobs}
    assert [len(stack) for stack in stacks] == [4, 4, 4, 4]
    assert all(len({job.run.variant["norm"] for job in stack}) == 1 for stack in stacks)


@pytest.mark.parametrize(
    "typed",
    ["model.dropout=0.1", "trainer.qk_clip=100", "trainer.replicas=2", "trainer.compile=block",
     "trainer.activation_checkpointing=true"],
)  # fmt: skip
def test_what_a_stack_cannot_compute_is_trained_alone(typed):
    _, jobs = plan_sweep((*SHORT, typed, "seed=0,1"))
    assert launching.make_stacks(jobs, 4) == [[job] for job in jobs]


@pytest.mark.parametrize(
    ("norm", "said"),
    [("plugins=mine norm=asks", ".item()"),
     ("norm=batchnorm norm.allow_noncausal=true", "running_mean in its own way")],
)  # fmt: skip
def test_a_norm_that_vmap_refuses_is_trained_run_by_run_and_a_line_says_why(norm, said, capsys):
    write_norm("asks", "return x if x.sum().item() < 1e9 else -x")
    typed = [*norm.split(), "seed=0,1", *LONGER]
    go(capsys, *typed, "study=alone", launcher=BasicLauncher())
    answer, code, err = go(capsys, *typed, "study=stacked")
    assert (answer["finished"], code) == (2, 0)
    assert err.count("not stacked in every step") == 1
    assert said in err
    check_equal(runs_of("alone"), runs_of("stacked"), rel=0)
    assert all(summary["stacked"] is None for summary, _ in runs_of("stacked").values())
