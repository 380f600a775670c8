"""A sweep that a signal stops, runs that other processes have or have died with, and a sweep whose
folder was damaged: each damage is named, and the rest of the sweep is done."""

import json
import os
import shutil
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from refusing import refused
from sweeps import SHORT, BasicLauncher, begin_elsewhere, here, sweep, trained

from transformer_norms.commands.runs import main as list_runs
from transformer_norms.comparison.sweep_record import read_record
from transformer_norms.report.__main__ import main as report
from transformer_norms.run.plan import Plan
from transformer_norms.signals import Stopping
from transformer_norms.storage import locks
from transformer_norms.sweep import drive, launching
from transformer_norms.sweep.drive import plan_sweep
from transformer_norms.sweep.launcher import JobEnd


def test_a_signal_while_the_data_is_prepared_ends_the_sweep_and_the_code_says_again(
    capsys, monkeypatch
):
    monkeypatch.setattr(Plan, "tokens", lambda self: signal.raise_signal(signal.SIGTERM))
    board = Mock(side_effect=drive.Board)
    monkeypatch.setattr(drive, "Board", board)
    answer, code, err = sweep(capsys, "norm=rmsnorm,layernorm", "study=cc")
    assert (board.call_args.args[0], answer["study"]) == ("cc", "cc")
    assert (answer["runs"], answer["missing"], answer["report"], code) == (2, 2, None, 75)
    assert "the same command goes on" in err
    assert not Path("runs").exists()


def act_at_look(monkeypatch, number, action):
    """Lets no time pass between looks at a run that another process has, and acts at one of them.
    Returns the pauses so far."""
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == number:
            action()

    monkeypatch.setattr(drive, "time", SimpleNamespace(sleep=sleep))
    return pauses


def test_runs_that_another_process_has_are_waited_for(capsys, monkeypatch):
    _, jobs = plan_sweep((*SHORT, "norm=layernorm"))
    jobs[0].folder.mkdir(parents=True)
    pauses = act_at_look(monkeypatch, 3, locks.take_lock(jobs[0].folder).release)
    answer, code, err = sweep(capsys, "norm=layernorm")
    assert (answer["finished"], code, len(pauses)) == (1, 0, 3)
    assert err.count("waiting for 1 run that another process has") == 1


@pytest.mark.parametrize(("host", "ends", "looks"), [
    ("here", True, 3),
    ("here", False, 3),  # its process was killed
    ("elsewhere", False, 5),  # where no process can be seen to end, so it is tried in the end
])  # fmt: skip
def test_a_run_is_waited_for_without_its_lock_and_taken_over_if_its_process_was_killed(
    capsys, monkeypatch, host, ends, looks
):
    _, jobs = plan_sweep((*SHORT, "norm=layernorm"))
    trainer = subprocess.Popen(["sleep", "600"])
    name = socket.gethostname() if host == "here" else "other"
    lock, summary = begin_elsewhere(jobs[0], pid=trainer.pid, host=name)
    take = locks.take_lock

    def watch(path):
        assert path != jobs[0].folder or not 0 < len(pauses) < 3, "a trainer would find it locked"
        return take(path)

    def end():
        lock.release()
        trainer.kill()
        trainer.wait()
        if ends:
            replace(summary, status="finished").write(jobs[0].folder)

    pauses = act_at_look(monkeypatch, 3, end)
    monkeypatch.setattr(locks, "take_lock", watch)
    monkeypatch.setattr(drive, "_MOST_LOOKS", 5)
    monkeypatch.setattr("transformer_norms.sweep.ending._write_report", lambda *_: (None, 0))
    answer, code, _ = sweep(capsys, "norm=layernorm")
    assert (answer["finished"], code, len(pauses)) == (1, 0, looks)


def test_a_run_whose_worker_died_is_recorded_as_failed_with_the_cause(capsys):
    _, jobs = plan_sweep((*SHORT, "norm=layernorm"))

    class Dies(BasicLauncher):
        def run(self, stacks, stopping):
            begin_elsewhere(jobs[0])[0].release()
            return {jobs[0].folder: JobEnd("failed", "its worker was killed by SIGKILL")}

    answer, code, err = sweep(capsys, "norm=layernorm", launcher=Dies())
    assert (answer["failed"], code) == (1, 1)
    assert err.splitlines()[-1] == "failed: the variant s0: its worker was killed by SIGKILL"
    summary = json.loads((jobs[0].folder / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", "its worker was killed by SIGKILL")


@pytest.mark.parametrize("finishes", [False, True])
def test_after_a_signal_no_further_job_is_begun_and_the_code_says_again(capsys, finishes):

    class Signalled(BasicLauncher):
        def run(self, stacks, stopping):
            ends = super().run(stacks, stopping)
            if not finishes:
                return dict.fromkeys(ends, JobEnd("preempted"))
            with Stopping() as inner:
                inner.deferring = True
                os.kill(os.getpid(), signal.SIGUSR1)
            return ends

    launcher = Signalled()
    answer, code, err = sweep(capsys, "norm=layernorm,rmsnorm,dyt", launcher=launcher)
    assert (len(launcher.asked), code, answer["missing"], answer["report"]) == (1, 75, 2, None)
    assert "the same command" in err


def test_a_run_killed_before_its_optimizer_was_dropped_loses_it_at_the_next_command(
    capsys, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(launching, "keep_weights_only", lambda folder: None)
        sweep(capsys, "norm=layernorm,rmsnorm")
    assert list(Path("runs").rglob("optimizer.safetensors"))
    sweep(capsys, "norm=layernorm,rmsnorm")
    assert not list(Path("runs").rglob("optimizer.safetensors"))


GRID = ("norm=layernorm,rmsnorm", "seed=0,1,2,3")


def damage(folders):
    """Damages the folders, each in another way, and the record of the sweep. Returns the word that
    each damage is named by, by folder."""
    empty, pipe, other, config, weights, curve, missing, _ = folders
    (empty / "summary.json").write_text("")
    (pipe / "summary.json").unlink()
    os.mkfifo(pipe / "summary.json")
    (other / "summary.json").write_text('{"status": "finished"}')
    text = (config / "config.yaml").read_text()
    (config / "config.yaml").write_text(text[: len(text) // 2])
    file = max(weights.glob("checkpoints/step-*/model.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    rows = (curve / "metrics.jsonl").read_text()
    (curve / "metrics.jsonl").write_text(rows.replace("\n", "\n{]\n", 1))
    shutil.rmtree(missing)
    record = Path("runs/main/sweep-main.json")
    record.write_text(record.read_text()[:-20])
    return {
        empty: "summary.json: invalid json",
        pipe: "summary.json: is not a file, but a pipe",
        other: "summary.json: identity: field required",
        config: "config.yaml: ",
        weights: "model.safetensors",
        curve: "metrics.jsonl",
    }


@pytest.mark.goal("S2")
def test_each_damage_is_named_and_what_is_missing_is_run_and_reported(capsys, trained):
    sweep(capsys, *GRID)
    folders = sorted(path.parent for path in Path("runs/main").glob("*/config.yaml"))
    named = damage(folders)
    trained.clear()
    record = Path("runs/main/sweep-main.json")
    assert "without this file the same command" in refused(sweep, capsys, *GRID)
    assert not trained
    record.unlink()
    answer, code, err = sweep(capsys, *GRID)
    assert ([*trained], code) == ([folders[6].name], 1)
    assert (answer["runs"], answer["finished"], answer["failed"]) == (8, 5, 3)
    lines = err.splitlines()
    for folder, word in named.items():
        assert any(str(folder) in line and word in line for line in lines), (folder, word)
    assert sum(line.startswith("failed: ") for line in lines) == 3
    assert len(read_record(record).runs) == 8

    said = Path("runs/main/table.md").read_text().replace("\\", "")
    capsys.readouterr()
    assert report(["runs/main"]) == 0
    out, told = capsys.readouterr()
    assert json.loads(out) == {**json.loads(out), "runs": 8, "finished": 4, "missing": 4}
    assert list_runs(["runs/main"]) == 0
    listed = capsys.readouterr().err
    for folder in folders[:4]:
        for text in (said, told, listed):
            assert f"{folder}/{named[folder].partition(':')[0]}" in text
    assert list_runs(["compare", *map(str, folders[:2])]) == 2
    assert capsys.readouterr().err.count("\n") == 1
