"""A report that is kept fresh: until when, and what it leaves."""

import pytest
from run_folders import edit, make_study

from transformer_norms.report import __main__ as command
from transformer_norms.report.__main__ import main
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study


def watch_study(study, monkeypatch, *statuses):
    """Watches a study with one run under way, whose status becomes the next of `statuses` after
    every third wait. Returns the `refresh` of each report, and the number of waits."""
    make_study(study, {"pre": {0: 2.3}, "post": {0: 2.4}})
    run = next(study.glob("post*"))
    edit(run, status="running")
    waited, refreshes, statuses = [], [], list(statuses)

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) % 3 == 0:
            status = statuses.pop(0)
            if status is KeyboardInterrupt:
                raise status
            edit(run, status=status)

    def write(refresh=None):
        refreshes.append(refresh)
        return study, findings(read_study([study]))

    monkeypatch.setattr(command.time, "sleep", sleep)
    monkeypatch.setattr(command.os, "nice", lambda more: more)
    path, found = command.watch(write, [study])
    assert (path, found.study.count()["runs"]) == (study, 2)
    return refreshes, len(waited)


def test_watching_ends_when_every_run_has(tmp_path, monkeypatch):
    assert watch_study(tmp_path, monkeypatch, "finished") == ([10, 10], 3)


def test_watching_ends_where_all_that_is_left_has_failed(tmp_path, monkeypatch):
    """And what it leaves is no page that is loaded again and again."""
    assert watch_study(tmp_path, monkeypatch, "preempted", "failed") == ([10, 10, 10, None], 6)


def test_ctrl_c_ends_watching_with_a_report(tmp_path, monkeypatch):
    assert watch_study(tmp_path, monkeypatch, KeyboardInterrupt) == ([10, None], 3)


def test_ctrl_c_in_the_first_report_ends_the_command(tmp_path, monkeypatch):
    def interrupt(refresh=None):
        raise KeyboardInterrupt

    make_study(tmp_path, {"pre": {0: 2.3}})
    monkeypatch.setattr(command.os, "nice", lambda more: more)
    with pytest.raises(KeyboardInterrupt):  # all that it imports may be half there
        command.watch(interrupt, [tmp_path])


def test_a_study_that_is_not_there_yet_is_waited_for(tmp_path, monkeypatch, capsys):
    study, waited = tmp_path / "study", []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 2:
            make_study(study, {"pre": {0: 2.3}, "post": {0: 2.4}})

    monkeypatch.setattr(command.time, "sleep", sleep)
    monkeypatch.setattr(command.os, "nice", lambda more: more)
    _, found = command.watch(lambda refresh: (study, findings(read_study([study]))), [study])
    assert found.study.count()["finished"] == 2
    assert waited == [10, 10]
    assert capsys.readouterr().err.count(f"waiting for {study}") == 1


def test_ctrl_c_while_waiting_is_a_line_and_no_traceback(tmp_path, monkeypatch, capsys):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", interrupt)
    monkeypatch.setattr(command.os, "nice", lambda more: more)
    assert main(["--watch", str(tmp_path / "nowhere")]) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 2
