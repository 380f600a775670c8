"""transformer-norms: the table of commands, and what is answered before one begins."""

import re
from importlib.metadata import version

import pytest

from transformer_norms.__main__ import main
from transformer_norms.commands.dispatch import COMMANDS


def test_the_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in COMMANDS)
    assert main(["analysis", "--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in COMMANDS["analysis"].parts)


def test_no_command_is_wrong_and_shows_the_help(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: transformer-norms COMMAND" in err


def test_the_version_is_ours_and_torchs(capsys):
    assert main(["--version"]) == 0
    expected = f"transformer-norms {version('transformer_norms')}, torch {version('torch')}\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("trian", "trian: did you mean train? there is no such command; there are train, report"),
        ("norm=dyt", "norm=dyt: did you mean transformer-norms train norm=dyt? there is no such "),
        ("-m", "-m: did you mean transformer-norms train -m? there is no such command; "),
        ("analysis invariance", "invariance: did you mean invariances? there is no such analysis"),
        ("train --hepl", "--hepl: did you mean --help? there is no such flag; there are --help, "),
    ],
)
def test_a_wrong_command_is_answered_by_the_nearest_one_and_the_list(capsys, typed, message):
    assert main(typed.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1


def _all_commands():
    for name, command in COMMANDS.items():
        yield from command.parts.items() if command.parts else [(name, command)]


@pytest.mark.parametrize(("name", "command"), [pytest.param(*c, id=c[0]) for c in _all_commands()])
def test_help_fits_into_80_columns_and_names_every_flag(name, command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        command.make_parser().parse_args(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    usage = " ".join(text.partition("\n\n")[0].split())
    assert usage.startswith("usage: transformer-norms ")
    assert f" {name} " in usage
    assert command.make_parser().epilog
    for flag in command.make_parser().flags:
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", text)
