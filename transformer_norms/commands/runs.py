"""The command `runs`: lists runs by what they chose and what came of it, and compares a few."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from transformer_norms.commands.conditions import (
    Condition,
    check_key,
    read_condition,
    select,
    value_of,
)
from transformer_norms.commands.differing import chosen_value_of, differing_keys
from transformer_norms.commands.terminal import PROGRAM, Parser, print_line, run_command
from transformer_norms.comparison.sweep_record import value_text
from transformer_norms.config.finding import RUNS, find_study
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live, say, track
from transformer_norms.run.reader import SavedRun, newest_attempts, run_folders
from transformer_norms.text_tables import COLUMNS, csv_table, printable

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
A choice that was auto counts as what it came to. Examples:
  {PROGRAM} runs main norm=rmsnorm --sort when
  {PROGRAM} runs trainer.steps=2500 val_loss=..1.9 --json
  {PROGRAM} runs compare layernorm placement=post
"""
_NAME = 10  # columns that a name has at least: its end, with the hash
_VALUE = 16  # columns of a value at most
_LISTED = 6  # damaged folders, or keys, in a message


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} runs", description=_ABOUT, epilog=_EPILOG)
    add = parser.add_argument
    add("arguments", nargs="*", metavar="FOLDER|CONDITION", help="what to list")
    add("--sort", metavar="KEY", default="", help="any key, name or when (default: val_loss)")
    add("--reverse", action="store_true", help="the highest or newest first")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON list, nothing cut")
    form.add_argument("--csv", action="store_true", help="CSV, nothing cut")
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
    runs = read_runs(folders)
    if typed.sort and typed.sort != "when":
        check_key(typed.sort, f"--sort {typed.sort}", runs)
    listed = _sort(select(runs, conditions), typed.sort, typed.reverse)
    keys = differing_keys(listed) if len(listed) > 1 else []
    rows = [_row(run, keys) for run in listed]
    if typed.json:
        print_line(json.dumps(rows, allow_nan=False, indent=1, default=str))
    elif typed.csv:
        columns = list(rows[0]) if rows else []
        table = [columns, *([_cell(row[name]) for name in columns] for row in rows)]
        print_line(csv_table(table if rows else []).decode().rstrip("\n"))
    else:
        for line in _table(listed, keys):
            print_line(line)
    if len(listed) < len(runs):
        say(f"{len(listed)} of {len(runs)} runs fit{'' if listed else _why_none(runs, conditions)}")
    return 0


def _why_none(runs: Sequence[SavedRun], conditions: Sequence[Condition]) -> str:
    """The values that there are of a key whose condition no run fits."""
    for condition in conditions:
        if not any(map(condition.fits, runs)):
            values = sorted({value_text(value_of(run, condition.key)) for run in runs})
            more = " ..." if len(values) > _LISTED else ""
            return printable(f"; {condition.key} is {', '.join(values[:_LISTED])}{more}")
    return ""


def _read_arguments(texts: Sequence[str]) -> tuple[list[Path], list[Condition]]:
    """The folders and the conditions among the arguments."""
    folders, conditions = [], []
    for text in texts:
        condition = None if Path(text).exists() else read_condition(text)
        if condition is not None:
            conditions.append(condition)
            continue
        try:
            place = find_study(text)
        except ConfigError as error:
            hint = "" if "/" in text else f" (a condition is {text}=VALUE or '{text}<1.9')"
            raise ConfigError(f"{error}{hint}") from None
        folders.append(place if place.is_dir() else place.parent)
    return folders or [RUNS], conditions


def read_runs(folders: Sequence[Path]) -> list[SavedRun]:
    """Returns the runs below the folders, the newest attempt of each. A line names each damaged
    one, and one line the older attempts."""
    places = list(dict.fromkeys(place for folder in folders for place in run_folders(folder)))
    if not places:
        named = ", ".join(map(str, folders))
        raise ConfigError(f"there is no run below {named}; name a FOLDER that has runs")
    runs, damaged = [], []
    with Live() as live:
        for place in track(live, "reading runs {:.0f}/{:.0f}", places):
            try:
                runs.append(SavedRun(place))
            except ConfigError as error:
                damaged.append(f"left out: {error}")
    for line in damaged[:_LISTED]:
        say(printable(line))
    if len(damaged) > _LISTED:
        say(f"left out: {len(damaged) - _LISTED} more damaged folders")
    newest = newest_attempts(runs)
    if older := len(runs) - len(newest):
        say(f"{older} older attempts (again=true) are not listed")
    return newest


def _sort(runs: Sequence[SavedRun], key: str, reverse: bool) -> list[SavedRun]:
    """The runs by a key, lowest first; numbers before words, and runs without a value last. By
    default by the final validation loss, and those without one by date, newest first."""
    runs = sorted(runs, key=lambda run: (-run.written, str(run.folder)))
    if key == "when":
        return runs if reverse else runs[::-1]

    def place(run: SavedRun) -> tuple[int, Any]:
        value = value_of(run, key or "val_loss")
        number = isinstance(value, (int, float))
        return (0, value) if number else (1, value_text(value))

    having = [run for run in runs if value_of(run, key or "val_loss") is not None]
    lacking = [run for run in runs if value_of(run, key or "val_loss") is None]
    return [*sorted(having, key=place, reverse=reverse), *lacking]


def _row(run: SavedRun, keys: Sequence[str]) -> dict[str, Any]:
    """A run for a program: nothing is cut or rounded."""
    summary = run.summary
    return {
        "name": run.folder.name,
        "study": run.folder.parent.name,
        "folder": str(run.folder),
        "status": summary.status,
        "step": summary.step,
        "steps": summary.steps,
        "val_loss": summary.val_loss,
        "best_val_loss": summary.best_val_loss,
        "test_loss": summary.test_loss,
        "when": datetime.fromtimestamp(run.written).astimezone().isoformat(timespec="seconds"),
        **{key: chosen_value_of(run, key) for key in keys},
    }


def _cell(value: Any) -> Any:
    return value_text(value) if isinstance(value, (list, dict)) else value


# --------------------------------------------------------------------------------- for a terminal


def _table(runs: Sequence[SavedRun], keys: Sequence[str]) -> list[str]:
    """Lines of at most 80 columns. A name that does not fit loses its beginning, and keys that do
    not fit are named below."""
    if not runs:
        return []
    studies = len({run.folder.parent for run in runs}) > 1
    columns: dict[str, list[str]] = {}
    if studies:
        columns["study"] = [_value_text(run.folder.parent.name) for run in runs]
    ends: dict[str, list[str]] = {
        "status": [run.summary.status for run in runs],
        "step": [_step_text(run) for run in runs],
        "val loss": [_loss_text(run.summary.val_loss) for run in runs],
        "when": [_when_text(run.written) for run in runs],
    }
    names = [printable(run.folder.name) for run in runs]
    left = COLUMNS - sum(_width(*column) for column in [*columns.items(), *ends.items()])
    hidden = []
    keys = [key for key in keys if key != "trainer.steps"]  # the column `step` has it
    for key, heading in zip(keys, _headings(keys), strict=True):
        cells = [_value_text(chosen_value_of(run, key)) for run in runs]
        if _NAME + _width(heading, cells) <= left:
            columns[heading] = cells
            left -= _width(heading, cells)
        else:
            hidden.append(key)
    width = min(left, max(map(len, names)))
    cut = [_name_text(name, width) for name in names]
    lines = _lines({"name": cut, **columns, **ends})
    if hidden:
        more = f" and {len(hidden) - _LISTED} more" if len(hidden) > _LISTED else ""
        say(f"they also differ in {', '.join(hidden[:_LISTED])}{more} (--json and --csv have all)")
    return lines


def _name_text(name: str, width: int) -> str:
    """A name that fits: its end, which no other run has. What a continued run goes on from is no
    part of that."""
    if len(name) <= width:
        return name
    return f"…{name.partition('-from-')[0][1 - width :]}"


def _width(heading: str, cells: Sequence[str]) -> int:
    """Returns how many characters a column takes, with the space before it."""
    return max(map(len, (heading, *cells))) + 2


def _lines(columns: dict[str, list[str]]) -> list[str]:
    right = ("step", "val loss")
    texts = []
    for heading, cells in columns.items():
        width = max(map(len, (heading, *cells)))
        adjust = str.rjust if heading in right else str.ljust
        texts.append([adjust(cell, width) for cell in (heading, *cells)])
    return ["  ".join(row).rstrip() for row in zip(*texts, strict=True)]


def _headings(keys: Sequence[str]) -> list[str]:
    """`lr` for optimizer.lr, where no other key ends so."""
    last = [key.rpartition(".")[2] for key in keys]
    counts = Counter(last)
    return [word if counts[word] == 1 else key for word, key in zip(last, keys, strict=True)]


def _value_text(value: Any) -> str:
    text = printable("" if value is None else value_text(value))
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 1]}…"


def _step_text(run: SavedRun) -> str:
    step, steps = run.summary.step, run.summary.steps
    return str(step) if steps in (None, step) else f"{step}/{steps}"


def _loss_text(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"


def _when_text(seconds: float) -> str:
    when = datetime.fromtimestamp(seconds)
    this_year = when.year == datetime.now().year
    return when.strftime("%b %d %H:%M" if this_year else "%Y-%m-%d")
