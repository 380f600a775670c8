"""Answers TAB in bash and zsh with commands, flags, KEY=VALUEs, runs and studies.

The shell asks through argcomplete at each TAB, so nothing here imports torch or Hydra:

    eval "$(register-python-argcomplete transformer-norms)"
"""

import os
import re
import shlex
from argparse import Action, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import argcomplete

from transformer_norms.commands.dispatch import COMMANDS, Command
from transformer_norms.commands.terminal import PROGRAM, Parser
from transformer_norms.config.chosen_files import compose_files
from transformer_norms.config.finding import RUNS, runs_below, studies_below
from transformer_norms.config.tree import CHOSEN, flat
from transformer_norms.names import AXES, NORM_WORDS, option_files, options

_OF_RUNS = ("config", "continue_from")  # keys whose value names a run
_OF_KEYS = "KEY=|CONDITION|BASELINE|CANDIDATE"  # in the name of an argument
_OF_FOLDERS = "RUN|FOLDER|BASELINE|CANDIDATE"
_FIXED = {"about", "brings", "type", "formula", "source", "unverified"}


def answer_shell() -> None:
    """Answers the shell that asks what the typed line may go on with, and ends the process."""
    line = os.environ["COMP_LINE"][: int(os.environ.get("COMP_POINT", "99999"))]
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.split()
    argcomplete.autocomplete(make_tree(words[1:]))


def make_tree(words: list[str]) -> Parser:
    """The parser of the whole program. Only the typed command has its own arguments: what the
    others import would take time."""
    root = Parser(prog=PROGRAM)
    root.add_argument("--version", action="store_true")
    _add_commands(root, COMMANDS, words)
    return root


def _add_commands(parser: Parser, commands: Mapping[str, Command], words: list[str]) -> None:
    places = parser.add_subparsers()
    for name, command in commands.items():
        inner: Parser = places.add_parser(name, help=command.about)
        if words[:1] != [name]:
            continue
        if command.parts:
            _add_commands(inner, command.parts, words[1:])
        elif command.module.startswith("analysis."):  # importing one brings torch
            inner.add_argument("overrides", nargs="*", metavar="RUN | KEY=VALUE")
            inner.add_argument("--out")
        else:
            inner = command.load().make_parser()
            places.choices[name] = inner
        _set_completers(inner)


def _set_completers(parser: Parser) -> None:
    """Gives each argument of settings, runs or studies its completer. Files are what is left."""
    for action in parser._actions:
        if re.search(f"{_OF_KEYS}|{_OF_FOLDERS}", str(action.metavar)):
            action.completer = complete_words  # type: ignore[attr-defined]


def complete_words(prefix: str, action: Action, parsed_args: Namespace, **_: Any) -> list[str]:
    """Returns the KEY=VALUEs, runs and studies that may begin with `prefix`."""
    kind = str(action.metavar)
    key, equals, value = prefix.partition("=")
    if equals:
        done, comma, _last = value.rpartition(",")
        return [f"{key}={done}{comma}{choice}" for choice in _values(key, value)]
    words: list[str] = []
    if re.search(_OF_KEYS, kind):
        lists = [one for one in vars(parsed_args).values() if isinstance(one, list)]
        typed = [str(word) for words in lists for word in words if "=" in str(word)]
        names = [*_defaults(dict(word.split("=", 1) for word in typed)), *AXES, *_OF_RUNS]
        words += [f"{name}=" for name in dict.fromkeys(names)]
    if "FOLDER" in kind:
        words += _names(studies_below(), prefix)
    return words + (_names(runs_below(), prefix) if re.search(_OF_FOLDERS, kind) else [])


def _values(key: str, value: str) -> list[str]:
    if key in _OF_RUNS:
        return _names(runs_below(), value)
    if key in NORM_WORDS:
        return [*dict.fromkeys([*NORM_WORDS[key], *sorted(option_files("norm"))])]
    switch = isinstance(_defaults({}).get(key), bool)
    return ["true", "false"] if switch else sorted(option_files(key)) if key in AXES else []


def _names(folders: list[Path], prefix: str) -> list[str]:
    """The paths of folders where a path was begun, else their names."""
    as_path = prefix.startswith(RUNS.name)
    return [folder.as_posix() if as_path else folder.name for folder in folders]


def _defaults(typed: Mapping[str, str]) -> dict[str, Any]:
    """The dotted keys of the default config, where axes have the typed choices, with values."""
    chosen = {axis: typed[axis] for axis in AXES if typed.get(axis) in options(axis)}
    content, _ = compose_files(chosen, None)
    shown = flat({key: content[key] for key in CHOSEN})
    return {key: value for key, value in shown.items() if not _FIXED & {*key.split(".")}}
