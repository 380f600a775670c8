"""Streams that cannot take what is printed, and terminals that lack the letters."""

import ast
import os
import sys
from pathlib import Path

import pytest
from surroundings import exit_code

from transformer_norms import streams
from transformer_norms.__main__ import main
from transformer_norms.commands.terminal import print_line
from transformer_norms.errors import StorageError
from transformer_norms.streams import guard_streams, refusal_of

PACKAGE = Path(streams.__file__).parent
NIGHTLY = pytest.mark.nightly
DRAWN = ["placement=hybrid", "placement=peri qk_norm=head", "preset=gemma2"]


@pytest.fixture
def real_streams(monkeypatch):
    """Puts files in the place of this process's stdout and stderr, as a shell would."""

    def replace(out, err, encoding="utf-8"):
        for number, name, path in ((1, "stdout", out), (2, "stderr", err)):
            target = open(path, "w", encoding=encoding)  # noqa: SIM115
            monkeypatch.setattr(sys, name, target)
            monkeypatch.setattr(sys, f"__{name}__", target)
            kept.append((number, os.dup(number)))
            os.dup2(target.fileno(), number)
        guard_streams()

    kept = []
    yield replace
    for number, saved in reversed(kept):
        os.dup2(saved, number)
        os.close(saved)


@pytest.mark.goal("D5")
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_whose_reader_has_gone_raises_nothing_and_knows_it(real_streams, name, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    real_streams(tmp_path / "out", tmp_path / "err")
    os.dup2(writer, {"stdout": 1, "stderr": 2}[name])
    os.close(writer)
    stream = getattr(sys, name)
    for _ in range(3):
        print("x" * 100_000, file=stream, flush=True)
    stream.flush()
    assert isinstance(refusal_of(stream), BrokenPipeError)


@pytest.mark.goal("D5")
def test_the_answer_of_a_command_that_a_full_disk_loses_is_an_error(real_streams, tmp_path):
    real_streams("/dev/full", tmp_path / "err")
    with pytest.raises(StorageError, match="/dev/full: no space left"):
        print_line("an answer")
    assert main(["--version"]) == 4
    sys.stderr.flush()
    (line,) = (tmp_path / "err").read_text().splitlines()
    assert line.startswith("/dev/full: no space left")


@pytest.mark.goal("D5")
def test_a_closed_stream_gets_no_file_that_the_process_opens_later(tmp_path):
    def write():  # in another process: pytest needs these numbers
        os.closerange(0, 3)
        sys.stdin = sys.stdout = sys.stderr = None
        sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = None
        guard_streams()
        with open(tmp_path / "checkpoint", "wb") as file:
            os.write(2, b"a warning of a library")
            print("a line", file=sys.stderr)
            print("an answer")
            os._exit(0 if file.fileno() > 2 else 3)

    assert exit_code(write) == 0
    assert (tmp_path / "checkpoint").read_bytes() == b""


@pytest.mark.goal("D5")
@pytest.mark.parametrize("typed", ["", *(pytest.param(t, marks=NIGHTLY) for t in DRAWN)])
def test_a_drawing_in_ascii_has_each_sign_at_its_place(typed, capsys):
    assert main(["explain", *typed.split()]) == 0
    drawn = capsys.readouterr().out
    assert not drawn.isascii()
    plain = drawn.encode("ascii", streams.SPELLING).decode("ascii")
    assert "\\" not in plain
    for before, after in zip(drawn.splitlines(), plain.splitlines(), strict=True):
        if not before.isascii():
            assert len(before) == len(after)


@pytest.mark.goal("D5")
def test_a_sign_that_the_terminal_lacks_ends_no_command(real_streams, tmp_path):
    real_streams(tmp_path / "out", tmp_path / "err", encoding="ascii")
    print_line("│ ↯ │")
    print("│ ↯ │", file=sys.stderr)
    assert (tmp_path / "out").read_text() == (tmp_path / "err").read_text() == "| \\u21af |\n"


@pytest.mark.goal("D5")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_no_rule_spells_is_named_by_its_number(encoding):
    assert "x ↯ €".encode("ascii", streams.SPELLING) == b"x \\u21af \\u20ac"
    assert "\ud800".encode(encoding, streams.SPELLING) == b"\\ud800"


@pytest.mark.goal("D5")
def test_files_are_utf_8_whatever_the_locale_is():
    """Python reads and writes text in the letters of the machine, if it is not told."""
    untold = []
    for file in PACKAGE.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        calls = ast.walk(ast.parse(source)) if "open(" in source or "_text(" in source else ()
        untold += [f"{file}:{call.lineno}" for call in calls if _opens_text(call)]
    assert untold == []


def _opens_text(call):
    if not isinstance(call, ast.Call) or "encoding" in [word.arg for word in call.keywords]:
        return False
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in ("read_text", "write_text")
    binary = any(isinstance(word, ast.Constant) and "b" in str(word.value) for word in call.args)
    return getattr(call.func, "id", "") == "open" and not binary
