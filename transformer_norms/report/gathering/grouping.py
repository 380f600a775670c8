"""Groups runs into variants by what differs between them, beyond their seeds."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from transformer_norms.comparison.sweep_record import SweepRecord, Values, names_of
from transformer_norms.names import AXES_OF_A_RUN
from transformer_norms.report.study import StudyRun, Variant
from transformer_norms.run.reader import SavedRun

_CHOICES = [axis for axis in AXES_OF_A_RUN if axis != "tracking"]
_CHOICES += ["embed", "final_norm", "qk_norm", "v_norm"]


def find_variants(runs: Sequence[StudyRun], records: Sequence[SweepRecord]) -> list[Variant]:
    """The variants of the runs that count, in their order, each with what its sweep tuned."""
    members: dict[str, list[StudyRun]] = {}
    for run in runs:
        members.setdefault(json.dumps(run.variant, sort_keys=True), []).append(run)
    groups = list(members.values())
    names = names_of([group[0].variant for group in groups])
    tuned = [one for record in records for one in record.tuned]
    return [
        Variant(
            name,
            group[0].variant,
            [run for run in group if run.stage == "result"],
            [run for run in group if run.stage == "tune"],
            tuned=next((one for one in tuned if one.variant == group[0].variant), None),
        )
        for name, group in zip(names, groups, strict=True)
    ]


def group_by_variant(
    runs: Sequence[SavedRun], asked: Sequence[str]
) -> list[tuple[Values, list[SavedRun]]]:
    """Each variant's values and its runs, which differ in nothing but their seed. The values are
    those of the choices that differ between variants, of the keys that tell apart the variants
    whose choices are the same, and of the keys `asked` about."""
    alike: dict[str, list[SavedRun]] = {}
    for run in runs:
        alike.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    firsts = [members[0] for members in alike.values()]
    axes = [key for key in _CHOICES if len({str(run.typed(key)) for run in firsts}) > 1]
    axes += [key for key in asked if key not in axes]
    axes += [key for key in _distinguishing_keys(firsts, axes) if key not in axes]
    groups = [(values_on(members[0], axes), members) for members in alike.values()]
    for values, members in groups:
        if sum(values == others for others, _ in groups) > 1:
            values["identity"] = members[0].summary.identity[:8]
    return groups


def values_on(run: SavedRun, keys: Sequence[str]) -> Values:
    """The values of the keys that the run has: not every norm has an eps."""
    return {key: run.value(key) for key in keys if run.has(key)}


def _distinguishing_keys(runs: Sequence[SavedRun], axes: Sequence[str]) -> list[str]:
    """The dotted keys that differ among runs whose `axes` are the same."""
    same: dict[str, list[SavedRun]] = {}
    for run in runs:
        same.setdefault(json.dumps(values_on(run, axes)), []).append(run)
    return [
        key
        for members in same.values()
        for key in sorted({key for run in members for key in run.settings})
        if len({_setting(run, key) for run in members}) > 1
    ]


def _setting(run: SavedRun, key: str) -> str:
    """The typed word of a key that may be `auto`: its derived value follows from other choices."""
    value: Any = run.settings.get(key)
    with suppress(KeyError, TypeError, AttributeError):  # a norm that follows from another choice
        value = run.typed(key)
    return json.dumps(value)
