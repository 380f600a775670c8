"""The table of a sweep: its runs as they go, read from their folders."""

import json
import sys
from io import StringIO
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from rich.console import Console
from run_folders import config_of, edit, make_run, planned, tree
from sweeps import composed

from transformer_norms.comparison.sweep_record import PlannedRun
from transformer_norms.sweep import board
from transformer_norms.sweep.launching import record_failure
from transformer_norms.sweep.planning import Job


def job_in(folder, variant=None, run=None):
    run = run or PlannedRun("a", "0" * 16, "result", variant or {}, {}, 0)
    return Job(run, (), SimpleNamespace(folder=folder, config=composed(())))


def test_the_table_shows_the_last_loss_behind_rows_of_probes(tmp_path):
    probes = {f"probe/gradient_norm/mlp.up/{i}": 0.12345 for i in range(1000)}
    rows = [{"step": 48, "train/loss": 3.5}, {"step": 49, "train/loss": 3.25, **probes}]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"step": 50, **probes}]))
    last = board.last_loss(file)
    assert (last["step"], last["train/loss"]) == (49, 3.25)


def test_a_terminal_shows_a_value_in_brackets_as_it_was_typed(tmp_path):
    shown = board.Board("name", lambda folder: None)
    shown.add([job_in(tmp_path, {"data.paths": ["/a"], "optimizer.betas": ["[b]"]})])
    console = Console(file=StringIO(), width=200)
    (row,) = shown.rows
    row.state = "running"
    console.print(shown._drawing())
    assert console.file.getvalue().splitlines()[1] == f"  {row.job}: step 0/0"


def test_the_time_left_is_at_the_pace_of_the_runs_so_far(tmp_path, monkeypatch):
    shown = board.Board("name", lambda folder: None)
    shown.began = 100.0
    monkeypatch.setattr(board.time, "monotonic", lambda: 110.0)
    shown.add([job_in(tmp_path / f"{i}") for i in range(4)])
    assert shown._left() == ""
    first, _, third, _ = shown.rows
    first.began, first.state = True, "finished"
    assert shown._left() == "; 0:30 left"  # ten seconds for one of four
    third.state, third.step, third.steps = "running", 1, 4
    assert shown._left() == "; 0:22 left"  # 2.75 at 1.25 in ten seconds


@pytest.mark.goal("C3")
def test_what_another_run_has_left_in_the_folder_of_a_job_is_no_result_of_it(tmp_path):
    folder = make_run(tmp_path, config_of(), 2.0)
    plan = planned(config_of(), {})
    other = PlannedRun(**vars(plan) | {"identity": "0" * 16})
    assert [job_in(folder, run=run).ended for run in (plan, other)] == [True, False]
    edit(folder, status="running")
    left = tree(folder)
    foreign = job_in(folder, run=other)
    record_failure(foreign, "no more")
    row = board.JobRow(foreign)
    row.update()
    assert (row.state, tree(folder)) == ("waiting", left)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_reader_that_has_gone_ends_no_sweep(monkeypatch, is_terminal):
    stderr = StringIO()
    stderr.isatty = lambda: is_terminal
    stderr.write = Mock(side_effect=OSError(5, "Input/output error"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", stderr)
    with board.Board("name", lambda folder: None) as shown:
        shown.say("a line")
        shown.look()
        shown.say("another line")
    assert sys.stderr is stderr
