"""The table of commands, and the way from a typed name to the function that answers it."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from transformer_norms.commands.terminal import PROGRAM, Parser, run_command, version_text
from transformer_norms.errors import ConfigError


class Command(NamedTuple):
    """A command: the module whose `main` runs it and whose `make_parser` reads its arguments, and
    one sentence about it. Where `parts` is not empty, the first argument names one of them."""

    module: str
    about: str
    parts: Mapping[str, "Command"] = {}

    def load(self) -> Any:
        """Imports the module."""
        return import_module(f"transformer_norms.{self.module}")


ANALYSES = {
    "coordinate_check": Command(
        "analysis.coordinate_check", "whether a rate that fits one width fits all"
    ),
    "fold": Command("analysis.trained.fold", "gains and centring of norms, moved into the weights"),
    "invariances": Command("analysis.invariances", "what each norm is invariant to"),
    "norm_removal": Command("analysis.norm_removal", "a trained run with its norms taken out"),
    "swap": Command("analysis.trained.swap", "a trained model tuned on with another norm"),
}
COMMANDS = {
    "train": Command("cli", "trains a run, or a sweep of many runs"),
    "report": Command("report.__main__", "says which variant is better, and how sure that is"),
    "explain": Command("explain.__main__", "shows a config: equation, drawing, norms, warnings"),
    "sample": Command("commands.sample", "writes text with a trained run"),
    "runs": Command("commands.runs", "lists runs, and compares two"),
    "plan": Command("plan.__main__", "says what a run or a sweep will cost; starts nothing"),
    "analysis": Command("", "coordinate check, invariances, fold, norm removal, swap", ANALYSES),
    "tracking": Command("tracking.__main__", "sends runs to Weights & Biases"),
    "export": Command("hf.__main__", "writes a run as a folder that transformers loads"),
    "import": Command("commands.importing", "reads published weights, to train on from them"),
    "data": Command("data.__main__", "prepares the tokens of a run ahead of it"),
    "judge": Command("judge.__main__", "decides whether a change is kept, by pairs of runs"),
}


def run(arguments: Sequence[str]) -> int:
    """Runs `COMMAND ...`, answers --help and --version, and returns the exit code."""
    return run_command(lambda: _run(PROGRAM, COMMANDS, arguments))


def _run(program: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Runs the command that the first argument names. Without one, the help goes to stderr and the
    code is 2: a script that lost its command shall not go on."""
    parser = _make_parser(program, commands)
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    first = arguments[0]
    if "=" in first or (first.startswith("-") and first not in parser.flags):
        raise ConfigError(f"{first}: did you mean {PROGRAM} train {first}?")
    name = parser.parse_args(arguments[:1]).command  # which answers --help and --version, too
    if commands[name].parts:
        return _run(f"{program} {name}", commands[name].parts, arguments[1:])
    code: int = commands[name].load().main(arguments[1:])
    return code


def _make_parser(program: str, commands: Mapping[str, Command]) -> Parser:
    kind, width = "COMMAND" if program == PROGRAM else "ANALYSIS", max(map(len, commands))
    lines = [f"  {name:<{width}}  {command.about}" for name, command in commands.items()]
    parser = Parser(
        prog=program,
        usage=f"{program} {kind} ...",
        description="\n".join([f"{kind}, each of which answers --help:", *lines]),
        epilog=_MORE if program == PROGRAM else None,
    )
    parser.add_argument("command", metavar=kind, choices=commands, help=argparse.SUPPRESS)
    parser.add_argument(
        "--version", action="version", version=version_text(), help="ours and torch's"
    )
    return parser


_MORE = """
A run is its folder, its config.yaml or a part of its name below ./runs:
  transformer-norms train norm=layernorm placement=post
  transformer-norms sample layernorm-post --prompt "Once"
  transformer-norms report main

Exit codes: 0 done, 1 an unexpected error, 2 wrong input, 4 storage, 130 Ctrl-C;
train and judge have more, which their help names."""
