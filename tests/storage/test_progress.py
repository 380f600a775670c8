import re
import sys
import time
from io import StringIO
from unittest.mock import Mock

import pytest

from transformer_norms import progress
from transformer_norms.progress import Live, track

WORK = "reading runs {:.0f}/{:.0f}"


@pytest.fixture
def at_once(monkeypatch):
    for name, seconds in (("QUIET", 0.0), ("PLAIN_EVERY", 0.005), ("_LOOK_EVERY", 0.005)):
        monkeypatch.setattr(progress, name, seconds)


def replace_stderr(monkeypatch, is_terminal=True):
    """Called by the test itself, since pytest sets the streams again before it."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    stream = StringIO()
    stream.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def wait_for(stream, pattern):
    end = time.monotonic() + 60
    while not re.search(pattern, stream.getvalue()):
        assert time.monotonic() < end, stream.getvalue()
        time.sleep(0.002)


def work(live, stream=None):
    for done in track(live, WORK, range(4)):
        if stream:
            wait_for(stream, f"reading runs {done}/4")


def test_work_that_is_soon_done_is_not_shown(monkeypatch):
    terminal = replace_stderr(monkeypatch)
    with Live() as live:
        work(live)
    assert terminal.getvalue() == ""


def test_who_watches_no_terminal_reads_plain_lines(at_once, monkeypatch, capsys):
    stderr = replace_stderr(monkeypatch, is_terminal=False)
    with Live() as live:
        work(live, stderr)
        wait_for(stderr, r"\nreading runs 3/4  0:0\d left\n")
    assert capsys.readouterr().out == ""
    lines = stderr.getvalue().splitlines()
    assert all(re.fullmatch(r"reading runs \d/4(  \d:\d\d left)?", line) for line in lines)


def test_a_terminal_has_a_line_and_is_left_as_it_was(at_once, monkeypatch, capsys):
    terminal = replace_stderr(monkeypatch)
    with pytest.raises(KeyboardInterrupt), Live() as live:  # noqa: PT012
        work(live, terminal)
        wait_for(terminal, r"reading runs 3/4.* 0:0\d left")
        print("an answer")
        print("a warning", file=sys.stderr)
        raise KeyboardInterrupt
    assert sys.stderr is terminal
    shown = terminal.getvalue()
    assert "a warning" in shown
    assert "an answer" not in shown
    assert "\x1b[?25l" not in shown  # the cursor is never hidden
    assert shown.endswith("\x1b[2K")  # nor is a line left
    assert capsys.readouterr().out == "an answer\n"


def test_the_last_line_stays_where_it_is_wanted(at_once, monkeypatch):
    terminal = replace_stderr(monkeypatch)
    with Live(stays=True) as live:
        work(live, terminal)
        live("step {:.0f}/{:.0f}", 4, 4, "loss 1.25")
    last = terminal.getvalue().rpartition("\x1b[2K")[2]
    assert re.search(r"step 4/4 .*loss 1\.25", last)
    assert last.endswith("\n")


def test_work_without_news_is_seen_to_go_on(at_once, monkeypatch):
    stderr = replace_stderr(monkeypatch, is_terminal=False)
    with Live() as live:
        live("learning byte pairs", 0, 0)
        wait_for(stderr, "learning byte pairs\nlearning byte pairs\n")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_reader_that_has_gone_ends_no_work(at_once, monkeypatch, is_terminal):
    stream = replace_stderr(monkeypatch, is_terminal)
    with Live(stays=True) as live:
        work(live, stream)
        stream.write = Mock(side_effect=OSError(5, "Input/output error"))
        work(live)
        while not stream.write.called:
            time.sleep(0.002)
    assert sys.stderr is stream
