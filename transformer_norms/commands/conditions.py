"""Conditions on runs, as they are typed: norm=rmsnorm  val_loss=..1.9  'model.depth>=4'."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from transformer_norms.comparison.sweep_record import value_text
from transformer_norms.config.tree import flat
from transformer_norms.errors import ConfigError
from transformer_norms.names import nearest
from transformer_norms.run.reader import SavedRun
from transformer_norms.run.summary import Summary

_CONDITION = re.compile(r"([\w.]+?)\s*(<=|>=|!=|=|<|>)\s*(.*)", re.DOTALL)
_RANGE = re.compile(r"([-+.\deE]*?)\.\.([-+.\deE]*)")
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NESTED = ("choices", "data", "versions", "source", "process", "warnings", "start")
_OF_SUMMARY = tuple(one.name for one in fields(Summary) if one.name not in _NESTED)
_OF_FOLDER: dict[str, Callable[[SavedRun], str]] = {
    "name": lambda run: run.folder.name,
    "study": lambda run: run.folder.parent.name,
}


class Condition(NamedTuple):
    """KEY, one of = != < <= > >=, and what a run's value of KEY is compared with."""

    key: str
    sign: str
    wanted: str
    typed: str

    def fits(self, run: SavedRun) -> bool:
        """Whether the run has the key and its value is as wanted. A loss that is not known is
        neither below nor above a number."""
        value = value_of(run, self.key)
        if self.sign in _ORDERS:
            return _is_number(value) and _ORDERS[self.sign](value, float(self.wanted))
        return _is_one_of(value, self.wanted) == (self.sign == "=")


def read_condition(text: str) -> Condition | None:
    """Returns the condition in a text, or None for a text without =, < and >. Raises ConfigError if
    it is not complete."""
    if not re.search("[=<>]", text):
        return None
    match = _CONDITION.fullmatch(text.strip())
    if match is None or not match[3]:
        raise ConfigError(f"{text}: is no condition, such as norm=rmsnorm or val_loss=..1.9")
    condition = Condition(match[1], match[2], match[3], text)
    if condition.sign in _ORDERS and _number(condition.wanted) is None:
        raise ConfigError(f"{text}: {condition.sign} wants a number behind it")
    return condition


def select(runs: Sequence[SavedRun], conditions: Sequence[Condition]) -> list[SavedRun]:
    """Returns the runs that fit all conditions. Raises ConfigError for a key that no run has."""
    for condition in conditions:
        check_key(condition.key, condition.typed, runs)
    return [run for run in runs if all(condition.fits(run) for condition in conditions)]


def check_key(key: str, typed: str, runs: Sequence[SavedRun]) -> None:
    """Raises ConfigError, with the nearest key, where none of the runs has the key."""
    if not runs or key in (*_OF_FOLDER, *_OF_SUMMARY) or any(run.has(key) for run in runs):
        return
    known = list(dict.fromkeys(known for run in runs for known in known_keys(run)))
    last = key.rpartition(".")[2]
    near = [one for one in known if one.rpartition(".")[2] == last][:1] or nearest(key, known)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(
        f"{typed}: {hint}no run has the key {key}; keys are those of its config (norm, "
        "model.depth, ...) and of its summary (status, step, val_loss, ...)"
    )


def known_keys(run: SavedRun) -> list[str]:
    """Returns the keys that a condition on the run may name."""
    config = {key: value for key, value in run.config.items() if key not in ("choices", "chosen")}
    return [*_OF_FOLDER, *_OF_SUMMARY, *run.config["choices"], *flat(config)]


def value_of(run: SavedRun, key: str) -> Any:
    """Returns the run's value of a key: of its folder, its summary, or its config, where a choice
    that was `auto` is what it came to. None if the run has no such key."""
    if key in _OF_FOLDER:
        return _OF_FOLDER[key](run)
    if key in _OF_SUMMARY:
        return getattr(run.summary, key)
    return run.value(key) if run.has(key) else None


def _is_one_of(value: Any, wanted: str) -> bool:
    """Whether a value is the word or number `wanted`, one of several between commas, or within a
    range such as 3..20, ..1.9 and 1e-3.. (ends included)."""
    if _is(value, wanted):
        return True
    ends = _RANGE.fullmatch(wanted)
    if ends and (ends[1] or ends[2]):
        low, high = _number(ends[1] or "-inf"), _number(ends[2] or "inf")
        return None not in (low, high) and _is_number(value) and low <= value <= high
    return "," in wanted and any(_is(value, one.strip()) for one in wanted.split(","))


def _is(value: Any, word: str) -> bool:
    if _is_number(value):
        return bool(value == _number(word))
    return word == ("none" if value is None else value_text(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
