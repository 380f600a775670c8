"""transformer-norms: the table of commands, and what is answered before one begins."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import argcomplete
import pytest
import yaml

from transformer_norms import __main__
from transformer_norms.__main__ import main
from transformer_norms.commands.dispatch import COMMANDS

WRONG = yaml.safe_load(Path(__file__).with_name("wrong_commands.yaml").read_text())


def test_the_help_lists_every_command(capsys):
    for typed, table in ([], COMMANDS), (["analysis"], COMMANDS["analysis"].parts):
        with pytest.raises(SystemExit, match="0"):
            main([*typed, "--help"])
        listed = capsys.readouterr().out
        assert all(f"\n  {name} " in listed for name in table)


def test_no_command_is_wrong_and_shows_the_help(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert (out, "usage: transformer-norms COMMAND" in err) == ("", True)


def test_the_version_is_ours_and_torchs(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    expected = f"transformer-norms {version('transformer_norms')}, torch {version('torch')}\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(("typed", "message"), WRONG)
def test_a_wrong_command_is_answered_by_the_nearest_one_and_the_list(capsys, typed, message):
    assert main(typed.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(message)


def test_the_folder_of_a_run_is_answered_by_the_key_that_takes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/config.yaml").touch()
    assert main(["train", "mine"]) == 2
    assert capsys.readouterr().err == "'mine' is not KEY=VALUE; did you mean config=mine?\n"


def _all_commands():
    for name, command in COMMANDS.items():
        yield from command.parts.items() if command.parts else [(name, command)]


@pytest.mark.parametrize(("name", "command"), [pytest.param(*c, id=c[0]) for c in _all_commands()])
def test_help_fits_into_80_columns_and_names_every_flag(name, command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    parser = command.load().make_parser()
    with pytest.raises(SystemExit, match="^0$"):
        parser.parse_args(["--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    usage = " ".join(text.partition("\n\n")[0].split())
    assert usage.startswith("usage: transformer-norms ")
    assert f" {name} " in usage
    assert command.load().make_parser().epilog
    for flag in command.load().make_parser().flags:
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", text)


def test_the_path_of_a_flag_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    paths = [
        action
        for _, command in _all_commands()
        for action in command.load().make_parser()._actions
        if action.metavar in ("DIR", "FILE", "OUT") or "--plugins" in action.option_strings
    ]
    assert len(paths) > 8
    assert {str(action.type("~/x")) for action in paths} == {"/home/me/x"}


def test_cfg_job_is_yaml_and_says_what_each_auto_comes_to(capsys):
    assert main("train --cfg job preset=gpt2 model=nano model.width=96".split()) == 0
    text = capsys.readouterr().out
    config = yaml.safe_load(text)
    assert config["choices"]["norm"] == "layernorm"
    assert config["model"]["mlp_width"] == "auto"
    sizes, heads = config["resolved"]["model"], config["model"]["heads"]
    assert (sizes["mlp_width"], sizes["head_dim"]) == (4 * 96, 96 // heads)
    assert config["resolved"]["data"]["seed"] == 0  # the run's seed
    assert main("train --cfg job -p trainer.device".split()) == 0
    assert capsys.readouterr().out == "auto\n"


ROOT = Path(__file__).parents[2]
ASK = """
for COMP_LINE in "$@"; do
  COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMPREPLY=()
  _python_argcomplete transformer-norms "${COMP_LINE##* }" ""
  echo "${COMPREPLY[*]}"
done
"""


def test_a_shell_completes_commands_flags_choices_and_runs_without_torch(tmp_path):
    program = tmp_path / "bin" / "transformer-norms"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom transformer_norms.__main__ import main\nmain()\n")
    program.chmod(0o755)
    run = tmp_path / "runs" / "mine" / "rmsnorm-pre-s0-12345678"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    asked = {
        "rep": "report ",
        "report --base": "--baseline ",
        "report mi": "mine ",
        "sample rms": f"{run.name} ",
        "train placement=sand": "sandwich ",
        "train qk_norm=hea": "head ",
        "train final_norm=al": "always ",
        "train config=r": f"{run.name} ",
        "explain optimizer.weight_d": "optimizer.weight_decay=",
        "analysis coord": "coordinate_check ",
    }
    for name in ("torch", "hydra"):  # what takes long to import leaves a trace here
        (program.parent / f"{name}.py").write_text(f"open({name!r}, 'w')")
    environment = {**os.environ, "PYTHONPATH": f"{program.parent}:{ROOT}"}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    lines = [f"transformer-norms {words}" for words in asked]
    script = argcomplete.shellcode(["transformer-norms"]) + ASK
    answer = subprocess.run(
        ["bash", "-c", script, "bash", *lines],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert answer.stdout.splitlines() == list(asked.values())
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "runs"}


@pytest.mark.parametrize(
    ("typed", "spins"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_a_command_lets_waiting_threads_sleep_soon_unless_the_user_says_otherwise(
    typed, spins, monkeypatch
):
    """torch reads these when it is imported, which a command does after this."""
    for key in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(key, "")  # put back after the test
        monkeypatch.delenv(key)
    for key, value in typed.items():
        monkeypatch.setenv(key, value)
    seen = []
    note = lambda _: seen.append(os.environ.get("GOMP_SPINCOUNT")) or 0  # noqa: E731
    monkeypatch.setattr(__main__, "main", note)
    __main__.run_process(["runs"])
    assert seen == [spins]
