"""The runs that a command is about, and conditions on them, as they are typed: norm=rmsnorm
val_loss=..1.9  'model.depth>=4'."""

import operator
import re
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_norms.errors import ConfigError
from transformer_norms.names import nearest
from transformer_norms.progress import Live, say, track
from transformer_norms.run.reader import CHOSEN, SavedRun, newest_attempts, run_folders
from transformer_norms.text_tables import printable, show

if TYPE_CHECKING:
    from pandas import DataFrame, Series

LISTED = 6  # damaged folders, or keys, in a message
_CONDITION = re.compile(r"([\w.]+?)\s*(<=|>=|!=|=|<|>)\s*(.*)", re.DOTALL)
_ORDERS: dict[str, Callable[[Any, float], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(NamedTuple):
    """KEY, one of = != < <= > >=, and what a run's value of KEY is compared with: words, and ranges
    of numbers such as 3..20, ..1.9 and 1e-3.., ends included. 2 is the range 2..2."""

    key: str
    sign: str
    words: list[str]
    ranges: list[tuple[float, float]]
    typed: str

    def fits(self, values: "Series") -> "Series":
        """Returns whether each value is as wanted. An unknown loss is neither below nor above a
        number. Raises ConfigError where a word is wanted of numbers."""
        numeric = values.map(type).isin((int, float))
        of_numbers = numeric.any() and (numeric | values.isna()).all()
        if of_numbers and not (self.ranges or "none" in self.words):
            such = f"{self.key}=2, {self.key}=..2 or {self.key}=none"
            raise ConfigError(f"{self.typed}: a number is expected, as in {such}")
        numbers = values.where(numeric).astype(float)
        if self.sign in _ORDERS:
            return _ORDERS[self.sign](numbers, self.ranges[0][0])
        fit = values.map(lambda value: "none" if value is None else show(value)).isin(self.words)
        for low, high in self.ranges:
            fit |= numbers.between(low, high)
        return fit if self.sign == "=" else ~fit


def read_condition(text: str) -> Condition | None:
    """Returns the condition in a text, or None for a path and for a text without =, < and >.
    Raises ConfigError if it is not complete."""
    if Path(text).exists() or not re.search("[=<>]", text):
        return None
    match = _CONDITION.fullmatch(text.strip())
    if match is None or not match[3]:
        raise ConfigError(f"{text}: is not a condition, such as norm=rmsnorm or val_loss=..1.9")
    words = [match[3], *map(str.strip, match[3].split(","))]
    ranges = [ends for ends in map(_range, words) if ends]
    if match[2] in _ORDERS and not ((whole := _range(match[3])) and whole[0] == whole[1]):
        raise ConfigError(f"{text}: {match[2]} wants a number after it")
    return Condition(match[1], match[2], words, ranges, text)


def _range(text: str) -> tuple[float, float] | None:
    low, dots, high = text.partition("..")
    try:
        if not dots:
            return float(low), float(low)
        return (float(low or "-inf"), float(high or "inf")) if low or high else None
    except ValueError:
        return None


def select(table: "DataFrame", conditions: Sequence[Condition]) -> "DataFrame":
    """Returns the runs that fit all conditions. Raises ConfigError for a key that no run has."""
    for condition in conditions:
        check_key(condition.key, condition.typed, table)
    if table.empty:
        return table
    fits = [condition.fits(table[condition.key]) for condition in conditions]
    return table[reduce(operator.and_, fits)] if fits else table


def check_key(key: str, typed: str, table: "DataFrame") -> None:
    """Raises ConfigError, with the nearest key, where none of the runs has the key."""
    known = [known for known in table if known != "written" and not known.startswith(CHOSEN)]
    if table.empty or key in known:
        return
    last = key.rpartition(".")[2]
    near = [one for one in known if one.rpartition(".")[2] == last][:1] or nearest(key, known)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(
        f"{typed}: {hint}no run has the key {key}; keys are those of its config (norm, "
        "model.depth, ...) and of its summary (status, step, val_loss, ...)"
    )


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
    for line in damaged[:LISTED]:
        say(printable(line))
    if len(damaged) > LISTED:
        say(f"left out: {len(damaged) - LISTED} more damaged folders")
    newest = newest_attempts(runs)
    if older := len(runs) - len(newest):
        say(f"{older} older attempts (again=true) are not listed")
    return newest
