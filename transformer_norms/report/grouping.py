"""Variants of runs that no sweep planned: runs that differ in nothing but their seed."""

import json
from collections.abc import Sequence
from typing import Any

from transformer_norms.config.saved import NORM_WORDS, WORD_KEYS
from transformer_norms.names import AXES_OF_A_RUN
from transformer_norms.run.reader import SavedRun
from transformer_norms.run.sweep_record import Values

_CHOICES = [axis for axis in AXES_OF_A_RUN if axis != "tracking"] + list(NORM_WORDS)
_HASH = "identity"


def variants_of(
    runs: Sequence[SavedRun], asked: Sequence[str]
) -> list[tuple[Values, list[SavedRun]]]:
    """Each variant's values and its runs. The values are those of the choices that differ between
    variants, of the keys that tell apart what no choice does, and of the keys `asked` about."""
    alike: dict[str, list[SavedRun]] = {}
    for run in runs:
        alike.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    firsts = [members[0] for members in alike.values()]
    axes = [key for key in _CHOICES if len({_typed(run, key) for run in firsts}) > 1]
    axes += [key for key in asked if key not in axes]
    axes += [key for key in _telling_apart(firsts, axes) if key not in axes]
    found = [(_values(run, axes), alike_) for run, alike_ in
             zip(firsts, alike.values(), strict=True)]  # fmt: skip
    for values, members in found:
        if sum(values == other for other, _ in found) > 1:
            values[_HASH] = members[0].summary.identity[:8]
    return found


def _values(run: SavedRun, keys: Sequence[str]) -> Values:
    """Of the keys that it has: not every norm has an eps."""
    return {key: run.value(key) for key in keys if run.has(key)}


def _typed(run: SavedRun, key: str) -> str:
    """What was chosen, a choice that follows from another as `auto`."""
    return run.typed(key) if key in run.config["words"] else str(run.choice(key))


def _telling_apart(runs: Sequence[SavedRun], axes: Sequence[str]) -> list[str]:
    """The dotted keys that differ among runs whose `axes` are the same."""
    same: dict[str, list[SavedRun]] = {}
    for run in runs:
        same.setdefault(json.dumps(_values(run, axes)), []).append(run)
    keys: dict[str, None] = {}
    for members in same.values():
        for key in sorted({key for run in members for key in run.settings}):
            if len({_shown(run, key) for run in members}) > 1:
                keys[key] = None
    return list(keys)


def _shown(run: SavedRun, key: str) -> str:
    """What was typed where a key has been derived: a derived value tells nothing of its own."""
    value: Any = run.settings.get(key)
    return json.dumps(run.config["words"].get(key, value) if key in WORD_KEYS else value)
