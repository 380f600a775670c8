"""The runs that a command is about, and conditions on them, as they are typed: norm=rmsnorm
val_loss=..1.9  'model.depth>=4'."""

import operator
import re
from collections.abc import Callable, Sequence
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
_RANGE = re.compile(r"([-+.\deE]*?)\.\.([-+.\deE]*)")
_ORDERS: dict[str, Callable[[Any, float], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(NamedTuple):
    """KEY, one of = != < <= > >=, and what a run's value of KEY is compared with."""

    key: str
    sign: str
    wanted: str
    typed: str

    def fits(self, values: "Series") -> "Series":
        """Returns whether each value is as wanted: a word, a number, one of several between commas,
        or within a range such as 3..20, ..1.9 and 1e-3.. (ends included). An unknown loss is
        neither below nor above a number."""
        numbers = values.where(values.map(type).isin((int, float))).astype(float)
        if self.sign in _ORDERS:
            return _ORDERS[self.sign](numbers, float(self.wanted))
        listed = [self.wanted, *map(str.strip, self.wanted.split(","))]
        wanted = [number for number in map(_number, listed) if number is not None]
        fit = values.map(_word).isin(listed) | (numbers.isin(wanted) & numbers.notna())
        if (ends := _RANGE.fullmatch(self.wanted)) and ends[0] != "..":
            low, high = _number(ends[1] or "-inf"), _number(ends[2] or "inf")
            fit |= numbers.between(low, high) if None not in (low, high) else False
        return fit if self.sign == "=" else ~fit


def read_condition(text: str) -> Condition | None:
    """Returns the condition in a text, or None for a path and for a text without =, < and >.
    Raises ConfigError if it is not complete."""
    if Path(text).exists() or not re.search("[=<>]", text):
        return None
    match = _CONDITION.fullmatch(text.strip())
    if match is None or not match[3]:
        raise ConfigError(f"{text}: is no condition, such as norm=rmsnorm or val_loss=..1.9")
    condition = Condition(match[1], match[2], match[3], text)
    if condition.sign in _ORDERS and _number(condition.wanted) is None:
        raise ConfigError(f"{text}: {condition.sign} wants a number behind it")
    return condition


def select(table: "DataFrame", conditions: Sequence[Condition]) -> "DataFrame":
    """Returns the runs that fit all conditions. Raises ConfigError for a key that no run has."""
    for condition in conditions:
        check_key(condition.key, condition.typed, table)
    for condition in conditions if len(table) else ():
        table = table[condition.fits(table[condition.key])]
    return table


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


def _word(value: Any) -> str:
    return "none" if value is None else show(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
