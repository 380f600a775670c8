"""A sweep's runs: what is missing and nothing else, also where one of them goes wrong."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from run_folders import tree
from sweeps import BAD, COUNTS, SHORT, BasicLauncher, here, sweep, trained, write_norm, write_sweep

from transformer_norms import ConfigError, compose, train
from transformer_norms import cli as command
from transformer_norms.comparison.sweep_record import read_record
from transformer_norms.errors import Busy, InputError, StorageError
from transformer_norms.run import run as running
from transformer_norms.run.plan import Plan
from transformer_norms.run.summary import Data, Summary
from transformer_norms.storage.locks import take_lock
from transformer_norms.sweep import drive

TWO = "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\n"


def test_each_job_is_run_once_and_the_same_command_again_rewrites_nothing(capsys, trained):
    answer, code, _ = sweep(capsys, "norm=layernorm,rmsnorm", "seed=0,1")
    assert (answer["runs"], answer["finished"], answer["missing"], code) == (4, 4, 0, 0)
    assert Path(answer["report"]).is_file()
    assert set(trained.values()) == {1}
    before = tree("runs")
    assert sweep(capsys, "norm=layernorm,rmsnorm", "seed=0,1")[:2] == (answer, 0)
    assert tree("runs") == before
    kept = {path.name for path in Path("runs").glob("main/*/checkpoints/*/*")}
    assert kept == {"model.safetensors", "state.json", "manifest.json"}  # and no optimizer


@pytest.mark.goal("S5")
def test_a_changed_grid_adds_what_is_missing_and_keeps_what_was_planned(capsys, trained, measured):
    named = write_sweep(TWO)
    sweep(capsys, *named)
    answer, _, err = sweep(capsys, *named, "norm=rmsnorm,dyt", "seed=0,1")
    assert len(trained) == 5
    assert answer["runs"] == 4  # which this command asks for
    assert "more in runs/mine/report.html, of 5 runs, 1 of them of earlier commands" in err
    assert set(trained.values()) == {1}
    path = Path("runs/mine/sweep-mine.json")
    assert {run.folder for run in read_record(path).runs} == set(trained)
    # A sweep without a file in the same study leaves the record as it is.
    before = tree("runs")[str(path)]
    sweep(capsys, "study=mine", "norm=rmsnorm,dyt")
    assert tree("runs")[str(path)] == before
    measured("3 runs that were missing are trained, 2 that had ended are not")


@pytest.mark.goal("S5")
def test_a_changed_base_makes_other_runs_and_the_report_names_the_field(capsys, trained):
    named = write_sweep(TWO)
    sweep(capsys, *named)
    answer, code, err = sweep(capsys, *named, "trainer.precision=bf16")
    assert len(trained) == 4
    assert (answer["report"], code) == (None, 2)
    assert "trainer.precision" in err
    assert "study=NAME" in err


@pytest.mark.goal("N1", "S2")
def test_a_job_that_fails_stops_no_other_and_is_tried_again(capsys, trained, measured):
    """All that may end a job: an error, a loss that is not a number, sys.exit, its own
    KeyboardInterrupt, any other BaseException. No signal came: the sweep was not asked to stop."""
    bad = write_norm("bad", BAD)
    ends = [f"{{norm: bad, norm.factor: {end}, optimizer.lr: 1e-3}}" for end in (0, -1, 6, 2, 3, 7)]
    named = write_sweep(
        "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm]}\n"
        f"together: [{', '.join(ends)}, {ends[-2].replace('1e-3', '2e-3')}]\n"
    )
    answer, code, err = sweep(capsys, *named)
    counts = [answer[key] for key in COUNTS]
    assert (counts, code) == ([8, 1, 1, 6, 0], 1)
    # Once for each cause that is not an error of the plugin, which is a line that names its place.
    assert err.count("Traceback (most recent call last)") == 3
    lines = {text.strip(): i for i, text in enumerate(bad.read_text().splitlines(), 1)}
    more, room = (lines[f'raise RuntimeError("no {what}")'] for what in ("more", "room"))
    causes = {
        "bad factor=0 lr=0.001 s0": f"Norm.forward ({bad}:{more}): RuntimeError: no more",
        "bad factor=6 lr=0.001 s0": "GeneratorExit: enough",
        "bad factor=2 lr=0.001 s0": "SystemExit: 7",
        "2 runs (bad factor=3 lr=0.001 s0, bad factor=3 lr=0.002 s0)": "KeyboardInterrupt",
    }
    *told, unbegun = [line for line in err.splitlines() if line.startswith("failed: ")]
    cause = f"Norm.__init__ ({bad}:{room}): RuntimeError: no room; its traceback is in "
    assert unbegun.startswith(f"failed: bad factor=7 lr=0.001 s0: {cause}")
    assert f"bad factor=7 lr=0.001 s0: failed before the first step: {cause}" in err
    left_out = "6 of 8 runs have no result (5 failed, 1 failed before the first step)"
    assert left_out in " ".join(err.split())
    for line, (names, cause) in zip(told, causes.items(), strict=True):
        start, _, place = line.rpartition(" ")
        assert start == f"failed: {names}: {cause}; its traceback is in"
        assert "Traceback" in Path(place).read_text()
    summaries = [json.loads(file.read_text()) for file in Path("runs/mine").glob("*/summary.json")]
    failed = [summary["error"] for summary in summaries if summary["status"] == "failed"]
    assert [error.count("Traceback") > 0 for error in failed] == [True] * 5
    sweep(capsys, *named)
    assert sorted(trained.values()) == [1, 1, 2, 2, 2, 2, 2, 2]
    measured("the other runs end beside six that fail and one that diverges")


def test_a_run_that_its_plugin_ends_has_failed(monkeypatch):
    monkeypatch.setattr("transformer_norms.run.record.Record.progress", lambda *_: sys.exit(7))
    with pytest.raises(SystemExit):
        train(compose([*SHORT, "norm=layernorm"]))
    (summary,) = Path("runs/main").glob("*/summary.json")
    assert json.loads(summary.read_text())["status"] == "failed"


def test_a_corpus_that_no_run_can_have_ends_the_sweep_before_anything_is_written(
    capsys, monkeypatch
):
    hub = ["data=hub", "data.name=nobody/nothing", *SHORT[:2], *SHORT[4:]]  # tests are offline
    with pytest.raises(InputError, match="^data.name=nobody/nothing is not at hand"):
        sweep(capsys, "norm=rmsnorm,layernorm", short=hub)
    assert not Path("runs").exists()
    # Where the variants read different tokens, one that cannot be had stops no other.
    answer, code, err = sweep(capsys, "tokenizer=byte,gpt2")
    assert (answer["finished"], answer["failed"], code) == (1, 1, 1)
    monkeypatch.setattr(Plan, "tokens", None)  # of finished runs no data is opened
    assert sweep(capsys, "tokenizer=byte", "study=main")[1] == 0


@pytest.mark.goal("S2")
@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_a_launcher_that_breaks_down_is_told_and_costs_the_job_that_breaks_it(capsys, error):
    """A launcher of Hydra's gets all jobs at once, and a process that dies may break it for all."""

    class Breaks(BasicLauncher):
        def run(self, stacks, stopping):
            if any("norm=layernorm" in job.overrides for stack in stacks for job in stack):
                raise error("the queue is gone")
            return super().run(stacks, stopping)

    answer, code, err = sweep(capsys, "norm=layernorm,rmsnorm", launcher=Breaks(0))
    assert (answer["finished"], answer["failed"], code) == (1, 1, 1)
    assert err.splitlines()[-1] == f"failed: layernorm s0: {error.__name__}: the queue is gone"


def test_a_failure_that_cannot_be_written_ends_no_sweep(capsys, monkeypatch):
    def begins(run, *_):
        run.folder.mkdir(parents=True, exist_ok=True)
        write(Summary(status="running", steps=4, identity="0" * 16, data=data), run.folder)
        fails()

    def fails(*_):
        raise StorageError("full")

    write, data = Summary.write, Data(identity={}, fingerprint="")
    monkeypatch.setattr(running.Run, "train", begins)
    monkeypatch.setattr(Summary, "write", fails)
    monkeypatch.setattr("transformer_norms.sweep.ending._write_report", lambda *_: (None, 0))
    answer, code, err = sweep(capsys, "norm=layernorm,rmsnorm")
    assert (answer["failed"], code) == (2, 1)
    assert "StorageError: full" in err


def test_a_bare_sweep_is_refused_while_another_one_trains_in_its_study(capsys, trained):
    """Both would report what the other one asked. One that asks the same shares its runs."""
    sweep(capsys, "norm=layernorm,rmsnorm")
    before = tree("runs")
    with take_lock(Path("runs/main", next(iter(trained)))):
        with pytest.raises(Busy, match=r"being trained by .*/sweep-main.json; study=NAME keeps"):
            sweep(capsys, "placement=pre,post")
        assert tree("runs") == before
        assert sweep(capsys, "norm=layernorm,rmsnorm")[1] == 0
        assert sweep(capsys, "study=other", "placement=pre,post")[1] == 0
    assert sweep(capsys, "placement=pre,post")[1] == 0


def test_a_sweeper_that_optimizes_is_told_the_loss_or_infinity_and_ends_with_a_stopped_run(
    monkeypatch,
):
    summary = {"val_loss": 2.5}
    monkeypatch.setattr(command, "_train", lambda overrides: summary)
    for summary["status"], told in (("finished", 2.5), ("diverged", float("inf"))):
        assert command._train_for_loss([]) == told
    summary["status"] = "preempted"
    with pytest.raises(SystemExit, match="75"):
        command._train_for_loss([])


def test_two_variants_that_come_to_one_run_train_it_once(capsys, trained):
    answer, code, err = sweep(capsys, "final_norm=auto,always")
    assert (answer["runs"], code, list(trained.values())) == (1, 0, [1]), err


def test_equations_are_swept_and_called_by_themselves(capsys):
    pre, *names = "x + f(norm(x))", "x + f(norm(x), mid=norm)", "norm(x + f(x))"
    named = write_sweep(
        f"baseline: {{placement.equation: {pre}}}\n"
        f"vary: {{placement.equation: {json.dumps([pre, *names])}}}\n"
    )
    answer, code, err = sweep(capsys, *named, f"placement.equation={','.join(names)}")
    assert (answer["finished"], code) == (2, 0), err
    assert f"placement.equation={names[0]} is the baseline" in err
    record = read_record(Path("runs/mine/sweep-mine.json"))
    table = Path("runs/mine/table.md").read_text()
    for name, run in zip(names, record.runs, strict=True):
        assert f"  {name} s0: finished" in err
        assert (run.variant["placement.equation"], name in table) == (name, True)
        config = Path("runs/mine", run.folder, "config.yaml").read_text()
        assert f"equation: {name}\n" in config


def test_a_sweeps_run_is_continued_if_the_sweep_was_told_to_keep_the_optimizer(capsys):
    sweep(capsys, "norm=layernorm,rmsnorm")
    with pytest.raises(ConfigError, match=r"no checkpoint .* trainer.keep_optimizer=true"):
        train(compose(["continue_from=main/layernorm", "trainer.steps=6"]))
    sweep(capsys, "norm=layernorm,rmsnorm", "study=kept", "trainer.keep_optimizer=true")
    assert train(compose(["continue_from=kept/layernorm", "trainer.steps=6"]))["step"] == 6


def test_one_mirror_is_told_of_each_run_however_short(capsys, monkeypatch):
    mirror, followed = Mock(), []
    mirror.return_value.follow = followed.append
    monkeypatch.setattr(drive, "Mirror", mirror)
    short = [*(pair for pair in SHORT if pair != "tracking=none"), "tracking.mode=offline"]
    sweep(capsys, "norm=layernorm,rmsnorm", short=short)
    assert [call.args[0]["mode"] for call in mirror.call_args_list] == ["offline"]
    mirror.return_value.close.assert_called_once_with()
    runs = [path.parent for path in Path("runs").rglob("config.yaml")]
    assert sorted(followed) == sorted([*runs, Path("runs/main")])  # the last for its report
    followed.clear()
    sweep(capsys, "norm=layernorm,rmsnorm", short=short)  # where nothing is new to mirror
    assert followed == []


def test_a_run_that_was_trained_alone_keeps_its_optimizer_in_a_sweep(capsys):
    train(compose([*SHORT, "norm=layernorm"]))
    sweep(capsys, "norm=layernorm,rmsnorm")
    kept = list(Path("runs").rglob("optimizer.safetensors"))
    assert ["layernorm" in str(file) for file in kept] == [True]
