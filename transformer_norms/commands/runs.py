"""The command `runs`: lists runs by their choices and results, and compares a few."""

import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_norms.commands.conditions import (
    LISTED,
    Condition,
    check_key,
    read_condition,
    read_runs,
    select,
)
from transformer_norms.commands.terminal import PROGRAM, Parser, print_line, run_command
from transformer_norms.config.finding import RUNS, find_study
from transformer_norms.errors import ConfigError
from transformer_norms.progress import say
from transformer_norms.run.reader import CHOSEN, differing_keys, run_table
from transformer_norms.text_tables import COLUMNS, narrow_table, printable, rows_of, shorten, show

if TYPE_CHECKING:
    from pandas import DataFrame

_ABOUT = """
Lists runs: name, status, steps, final validation loss, the keys in which the listed runs differ,
and when each was written last. `runs compare RUN RUN` puts runs side by side.
"""
_EPILOG = f"""
FOLDER is a study, a folder of studies, a run, or a part of the name of a study below ./runs.
Without one, all runs below ./runs are read. CONDITION is about a choice, a key of the config or a
number of the summary:
  norm=rmsnorm,layernorm     one of these
  status!=finished           anything else
  val_loss=..1.9             at most 1.9; 1.5..1.9 and 1.5.. are ranges, too
  model.depth=4..            at least 4
  "val_loss<1.9"             < <= > >= need quotes: to the shell < is a file
A choice that was auto counts as its resolved value. Examples:
  {PROGRAM} runs main norm=rmsnorm --sort when
  {PROGRAM} runs trainer.steps=2500 val_loss=..1.9 --json
  {PROGRAM} runs compare layernorm placement=post
"""
_NAME = 10  # columns that a name has at least: its end, with the hash
_VALUE = 16  # columns of a value at most
_SHOWN = (
    "name study folder status step steps val_loss best_val_loss test_loss branched_from branch_step"
).split()


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} runs", description=_ABOUT, epilog=_EPILOG)
    add = parser.add_argument
    add("arguments", nargs="*", metavar="FOLDER|CONDITION", help="what to list")
    add("--sort", metavar="KEY", default="", help="any key, name or when (default: val_loss)")
    add("--reverse", action="store_true", help="the highest or newest first")
    add("--json", action="store_true", help="one JSON list, nothing cut")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["compare"]:
        from transformer_norms.commands import side_by_side  # a list needs no statistics

        return side_by_side.main(arguments[1:])
    return run_command(partial(_print_runs, arguments))


def _print_runs(arguments: Sequence[str]) -> int:
    typed = make_parser().parse_intermixed_args(arguments)
    folders, conditions = _read_arguments(typed.arguments)
    runs = run_table(read_runs(folders))
    key = typed.sort or "val_loss"
    if typed.sort and typed.sort != "when":
        check_key(key, f"--sort {key}", runs)
    listed = select(runs, conditions)
    if len(listed):
        listed = _sort(listed, key, typed.reverse)
    keys = differing_keys(listed) if len(listed) > 1 else []
    if typed.json:
        rows = _rows(listed, keys) if len(listed) else []
        print_line(json.dumps(rows, allow_nan=False, indent=1, default=str))
    elif len(listed):
        print_line("\n".join(_lines(listed, keys)))
        if branches := int(listed["branched_from"].notna().sum()):
            began = f"{branches} of {len(listed)} began at a step of a run with a shorter horizon"
            say(f"{began} (--json has branched_from and branch_step)")
    if len(listed) < len(runs):
        say(f"{len(listed)} of {len(runs)} runs fit")
    return 0


def _read_arguments(texts: Sequence[str]) -> tuple[list[Path], list[Condition]]:
    """The folders and the conditions among the arguments."""
    folders, conditions = [], []
    for text in texts:
        if (condition := read_condition(text)) is not None:
            conditions.append(condition)
            continue
        try:
            place = find_study(text)
        except ConfigError as error:
            hint = "" if "/" in text else f" (a condition is {text}=VALUE or '{text}<1.9')"
            raise ConfigError(f"{error}{hint}") from None
        folders.append(place if place.is_dir() else place.parent)
    return folders or [RUNS], conditions


def _sort(runs: "DataFrame", key: str, reverse: bool) -> "DataFrame":
    """The runs by a key, lowest first; numbers before words, and runs without a value last. Runs
    with one value, and those without any, are sorted by date, newest first."""
    runs = runs.sort_values(["written", "folder"], ascending=[False, True])
    if key == "when":
        return runs if reverse else runs[::-1]

    def place(value: Any) -> tuple[int, Any]:
        return (0, value) if isinstance(value, (int, float)) else (1, show(value))

    return runs.sort_values(
        key,
        key=lambda values: values.map(place, na_action="ignore"),
        ascending=not reverse,
        kind="stable",
    )


def _rows(runs: "DataFrame", keys: Sequence[str]) -> list[dict[str, Any]]:
    """The runs for a program: nothing is cut or rounded."""
    table = runs[_SHOWN].assign(
        when=[datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")
              for at in runs["written"]],
        **{key: runs[f"{CHOSEN}{key}"] for key in keys},
    )  # fmt: skip
    return table.to_dict("records")


# --------------------------------------------------------------------------------- for a terminal


def _lines(runs: "DataFrame", keys: Sequence[str]) -> list[str]:
    """Lines of at most 80 columns. Keys that do not fit are named below, and a name that does not
    fit loses its beginning: no other run has its end."""
    studies = runs["study"].nunique() > 1 or runs["folder"].map(os.path.dirname).nunique() > 1
    steps = zip(runs["step"], runs["steps"], strict=True)
    ends = {
        "status": runs["status"].tolist(),
        "step": [f"{step}" if of in (None, step) else f"{step}/{of}" for step, of in steps],
        "val loss": [show(loss, ".4f") for loss in runs["val_loss"]],
        "when": runs["written"].map(_when_text).tolist(),
    }
    columns = {"study": runs["study"].map(_cell).tolist()} if studies else {}
    left = COLUMNS - sum(_width(*column) for column in [*columns.items(), *ends.items()])
    hidden = []
    for key in keys:
        heading = key.removesuffix(".type").rpartition(".")[2]
        cells = runs[f"{CHOSEN}{key}"].map(_cell).tolist()
        heading = key if heading in columns else heading
        if key == "trainer.steps":  # the column `step` has it
            continue
        if _NAME + _width(heading, cells) <= left:
            columns[heading] = cells
            left -= _width(heading, cells)
        else:
            hidden.append(key)
    if hidden:
        more = f" and {len(hidden) - LISTED} more" if len(hidden) > LISTED else ""
        say(f"they also differ in {', '.join(hidden[:LISTED])}{more} (--json has all)")
    names = [
        n if len(n) <= left else f"…{n.partition('-from-')[0][1 - left :]}"
        for n in map(printable, runs["name"])
    ]
    table = {"name": names, **columns, **ends}
    return narrow_table(rows_of(table), right=[[*table].index(one) for one in ("step", "val loss")])


def _width(heading: str, cells: Sequence[str]) -> int:
    """Returns how many characters a column takes, with the space before it."""
    return max(map(len, (heading, *cells))) + 2


def _cell(value: Any) -> str:
    return shorten(printable(show(value)), _VALUE)


def _when_text(seconds: float) -> str:
    when = datetime.fromtimestamp(seconds)
    this_year = when.year == datetime.now().year
    return when.strftime("%b %d %H:%M" if this_year else "%Y-%m-%d")
