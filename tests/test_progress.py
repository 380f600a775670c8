import re
import sys
import time
from io import StringIO

import pytest

from transformer_norms import progress
from transformer_norms.progress import Live, each


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "QUIET", 0.0)
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    monkeypatch.setattr(progress, "_LOOK_EVERY", 0.005)


def on_terminal(monkeypatch):
    """Called by the test itself, since pytest sets the streams anew before it."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def work(live):
    for _ in each(live, "reading runs {:.0f}/{:.0f}", range(4)):
        time.sleep(0.02)


def test_work_that_is_soon_done_is_not_shown(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with Live() as live:
        work(live)
    assert terminal.getvalue() == ""


def test_who_watches_no_terminal_reads_plain_lines(at_once, capsys):
    with Live() as live:
        work(live)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "reading runs 0/4" in printed.err
    assert re.search(r"^reading runs 3/4  0:00 left$", printed.err, re.MULTILINE)
    assert all(c.isprintable() or c == "\n" for c in printed.err)


def test_a_terminal_has_a_line_and_is_left_as_it_was(at_once, monkeypatch, capsys):
    terminal = on_terminal(monkeypatch)
    with pytest.raises(KeyboardInterrupt), Live() as live:  # noqa: PT012
        work(live)
        print("an answer")
        print("a warning", file=sys.stderr)
        raise KeyboardInterrupt
    assert sys.stderr is terminal
    shown = terminal.getvalue()
    assert "reading runs" in shown
    assert "a warning" in shown
    assert "an answer" not in shown
    assert "\x1b[?25l" not in shown  # the cursor is never hidden
    assert shown.endswith("\x1b[2K")  # nor is a line left
    assert capsys.readouterr().out == "an answer\n"


def test_work_without_news_is_seen_to_go_on(at_once, capsys):
    with Live() as live:
        live("learning byte pairs", 0, 0)
        time.sleep(0.1)
    assert capsys.readouterr().err.count("learning byte pairs\n") > 1


def test_a_terminal_that_has_gone_ends_no_work(at_once, monkeypatch):
    terminal = on_terminal(monkeypatch)

    def gone(text):
        raise OSError(5, "Input/output error")

    with Live(stays=True) as live:
        work(live)
        assert "reading runs" in terminal.getvalue()
        monkeypatch.setattr(terminal, "write", gone)
        work(live)
    assert sys.stderr is terminal
