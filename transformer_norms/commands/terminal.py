"""The parts that all commands share: how arguments are read, what is printed, and exit codes.

Nothing heavy is imported before a command's arguments are read: help, a wrong flag and the shell's
completion are answered at once.
"""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import groupby
from math import inf, nan
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, NoReturn

from transformer_norms import __version__, processes
from transformer_norms.config.plugins import plugin_error
from transformer_norms.errors import ConfigError, InputError, StorageError, missing_package
from transformer_norms.names import nearest, suggestion
from transformer_norms.storage.files import as_storage_error
from transformer_norms.streams import guard_streams, refusal_of
from transformer_norms.text_tables import COLUMNS

PROGRAM = "transformer-norms"
INTERRUPTED = 130  # a shell's code of a command that Ctrl-C ended


def run_command(
    body: Callable[[], int], when_stopped: str = "stopped", code_when_stopped: int = INTERRUPTED
) -> int:
    """Calls `body` and returns its exit code.

    A user's error becomes one line on stderr and the exit code of its kind. Ctrl-C prints
    `when_stopped`. An unexpected error is raised.
    """
    guard_streams()
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells where its own cache lies
    try:
        check_here()
        return body()
    except KeyboardInterrupt:
        print(when_stopped, file=sys.stderr)
        return code_when_stopped
    except Exception as error:
        known = as_storage_error(error) or plugin_error(error) or missing_package(error) or error
        code = getattr(known, "exit_code", None)
        if code is None:
            raise
        _print_error(known)
        return code


def command(
    make_parser: Callable[[], "Parser"], answer: Callable[[argparse.Namespace], int], *stopped: Any
) -> Callable[..., int]:
    """Returns the `main` of a command, which reads its arguments and answers them. `stopped` is
    what `run_command` prints and returns at Ctrl-C."""

    def main(arguments: Sequence[str] | None = None) -> int:
        return run_command(lambda: answer(make_parser().parse_args(arguments)), *stopped)

    return main


def check_here() -> None:
    """Raises StorageError if the current folder is gone: no path below it has a meaning."""
    try:
        os.getcwd()
    except FileNotFoundError:
        here = os.environ.get("PWD", ".")
        raise StorageError(f"{here}: the current folder was deleted; change to another") from None


def _print_error(error: Exception) -> None:
    """Prints the error in one line. Of the processes that train one run, the first on each machine
    says what is wrong with the input, which all see."""
    line, rank = " ".join(str(error).split()), processes.rank()
    if isinstance(error, (ConfigError, InputError)) and processes.local_rank() > 0:
        return
    print(f"rank {rank}: {line}" if rank else line, file=sys.stderr)


def print_line(text: str) -> None:
    """Prints to stdout what a command was asked for. Raises StorageError if the disk below did not
    take all of it. A reader that has gone, such as `head`, has read enough."""
    print(text, flush=True)
    refusal = refusal_of(sys.stdout)
    if refusal and (lost := as_storage_error(refusal, Path(os.path.realpath("/dev/stdout")))):
        raise lost


def version_text() -> str:
    """Returns our version and torch's. It does not import torch."""
    return f"{PROGRAM} {__version__}, torch {version('torch')}"


def typed_path(text: str) -> Path:
    """Returns the path that a flag was given. ~ is the home folder: a shell leaves it as it is in
    --out=~/here."""
    return Path(os.path.expanduser(text))


def number_from(low: float, most: float = inf, kind: type = int) -> Callable[[str], Any]:
    """Returns the `type=` of an argument that is a number of `kind` from `low` to `most`."""

    def read(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = nan
        if not (low <= number <= most and number < inf):
            what = "a whole number" if kind is int else "a number"
            end = "" if most == inf else f" to {most:g}"
            raise argparse.ArgumentTypeError(f"{text}: {what} from {low:g}{end} is wanted")
        return number

    return read


class Formatter(argparse.HelpFormatter):
    """Fills at most COLUMNS columns. Indented lines of a text stay as they are."""

    def __init__(self, prog: str, **more: Any) -> None:
        width = min(COLUMNS, get_terminal_size().columns)
        super().__init__(prog, **{"max_help_position": 26, "width": width, **more})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = []
        lines = text.strip("\n").split("\n")
        for as_it_is, group in groupby(lines, lambda line: not line or line.startswith(" ")):
            part = "\n".join(group)
            parts.append(part if as_it_is else fill(part, width, break_on_hyphens=False))
        return "\n".join(parts)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, like those of the config. A flag is typed
    whole: the other readers of a command know no shortened one."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, "allow_abbrev": False, **more})

    @property
    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def _print_message(self, message: str, file: Any = None) -> None:
        """Prints help and version, as any answer: none is lost on a full disk without a word."""
        if file is sys.stdout:
            print_line(message.rstrip("\n"))
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        _, unknown, words = message.partition("unrecognized arguments: ")
        flag = words.partition(" ")[0].partition("=")[0]
        if not unknown:
            for theirs, ours in _WORDINGS.items():
                message = re.sub(rf"^{theirs}$", ours, message)
            raise ConfigError(f"{message} (--help says more)")
        if not flag.startswith("-"):
            several = any(
                one.option_strings and one.metavar == "OVERRIDES" for one in self._actions
            )
            quotes = ' (several overrides of a flag are one text: "A=1 B=2")' * several
            raise ConfigError(f"{words}: is more than {self.prog} takes{quotes} (--help says more)")
        there = [name for name in self.flags if name.startswith("--")]
        near = nearest(flag.lstrip("-"), [name[2:] for name in there])
        hint = "".join(f"did you mean --{name}? " for name in near)
        raise ConfigError(f"{flag}: {hint}there is no such flag; there are {', '.join(there)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            hint, those = suggestion(value, known), ", ".join(known)
            if not action.option_strings:
                kind = str(action.metavar).lower()
                raise ConfigError(f"{value}: {hint}there is no such {kind}; there are {those}")
            flag = action.option_strings[-1]
            raise ConfigError(f"{flag} {value}: {hint}{flag} takes {those}")


# argparse's words for a wrong value, and ours.
_WORDINGS = {
    r"argument (?:\S+/)?(-\S+): expected (?:one|at least one) argument": r"\1: a value is missing",
    r"argument (?:\S+/)?(-\S+): ignored explicit argument .*": r"\1: takes no value",
    r"argument (?:\S+/)?(-\S+): invalid int value: (.*)": r"\1: \2 is not a whole number",
    r"argument (?:\S+/)?(-\S+): invalid float value: (.*)": r"\1: \2 is not a number",
    r"argument (?:\S+/)?(-\S+): not allowed with argument (\S+)": r"\1: does not go with \2",
    r"argument (?:\S+/)?(-\S+): (.*)": r"\1 \2",
    r"the following arguments are required: (.*)": r"\1: is missing",
}
