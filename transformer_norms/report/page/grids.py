"""Where a study varies several things: maps of two axes, and curves over an axis of numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from transformer_norms.report.escape import label_text
from transformer_norms.report.findings import Findings
from transformer_norms.report.paired_tests import half_interval
from transformer_norms.report.study import Study, Variant, finite
from transformer_norms.report.table import standing
from transformer_norms.run.sweep_record import label

SHADES = 7
_FIRST = ("placement", "norm")  # the rows and the columns of a map, where both vary


@dataclass(frozen=True)
class Cell:
    """`shade` counts from 0, the lowest loss of the map; None where no run has one."""

    variant: Variant
    loss: float | None
    shade: int | None
    difference: float | None
    verdict: str
    diverged: str


@dataclass(frozen=True)
class Map:
    """Losses by two axes, all else as `rest` says; a cell is None where no variant was planned."""

    row_axis: str
    column_axis: str
    rest: str
    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]


def maps(findings: Findings) -> list[Map]:
    """One for each combination of what varies besides; none where less than two axes vary."""
    varying = [axis for axis in findings.study.axes if len(_values(findings.study, axis)) > 1]
    if len(varying) < 2:
        return []
    first = [axis for axis in _FIRST if axis in varying]
    row, column, *others = [*first, *(axis for axis in varying if axis not in first)]
    rests: dict[str, list[Variant]] = {}
    for variant in findings.study.variants:
        rests.setdefault(_label(variant, others), []).append(variant)
    return [_map(findings, row, column, rest, members) for rest, members in rests.items()]


def _map(findings: Findings, row: str, column: str, rest: str, members: list[Variant]) -> Map:
    rows, columns = _values_of(members, row), _values_of(members, column)
    losses = [findings.outcomes[v.name].mean for v in members]
    known = sorted(loss for loss in losses if loss is not None and isfinite(loss))
    cells = {
        (_text(variant, row), _text(variant, column)): _cell(findings, variant, known)
        for variant in members
    }
    return Map(
        row, column, rest, columns, [(r, [cells.get((r, c)) for c in columns]) for r in rows]
    )


def _cell(findings: Findings, variant: Variant, known: Sequence[float]) -> Cell:
    outcomes, compared = findings.outcomes[variant.name], findings.comparisons.get(variant.name)
    loss = outcomes.mean
    shade = None
    if loss is not None and isfinite(loss):
        span = known[-1] - known[0] or 1.0
        shade = round((SHADES - 1) * (loss - known[0]) / span)
    return Cell(
        variant,
        loss,
        shade,
        compared.difference if compared else None,
        str(compared.verdict) if compared else standing(variant),
        f"diverged in {len(outcomes.diverged)} of {len(outcomes.losses)}"
        if outcomes.diverged
        else "",
    )


def number_axes(findings: Findings) -> list[dict[str, Any]]:
    """A chart for each axis with several numbers: mean final loss against it with Student's 95 %
    interval, a line for each combination of what varies besides."""
    study = findings.study
    charts = []
    for axis in study.axes:
        values = [variant.values.get(axis) for variant in study.variants]
        there = {float(value) for value in values if value is not None and finite(value)}
        if len(there) > 1:
            others = [other for other in study.axes if other != axis]
            low, high = min(there), max(there)
            charts.append(
                {
                    "axis": label_text(axis),
                    "log": low > 0 and high / low >= 6,
                    "ticks": sorted(there),
                    "lines": _lines(findings, axis, others),
                }
            )
    return charts


def _lines(findings: Findings, axis: str, others: Sequence[str]) -> list[dict[str, Any]]:
    lines: dict[str, list[dict[str, Any]]] = {}
    for place, variant in enumerate(findings.study.variants):
        if not finite(variant.values.get(axis)):
            continue
        outcomes = findings.outcomes[variant.name]
        ended = [loss for seed, loss in outcomes.losses.items() if seed not in outcomes.diverged]
        lines.setdefault(_label(variant, others), []).append(
            {
                "variant": place,
                "x": variant.values[axis],
                "loss": sum(ended) / len(ended) if ended else None,
                "half": half_interval(ended),
                "diverged": len(outcomes.diverged),
            }
        )
    return [
        {"name": label_text(name), "points": sorted(points, key=lambda point: point["x"])}
        for name, points in lines.items()
    ]


def _values(study: Study, axis: str) -> list[str]:
    return _values_of(study.variants, axis)


def _values_of(variants: Iterable[Variant], axis: str) -> list[str]:
    return list(dict.fromkeys(_text(variant, axis) for variant in variants))


def _text(variant: Variant, axis: str) -> str:
    return str(variant.values.get(axis, "not set"))


def _label(variant: Variant, axes: Sequence[str]) -> str:
    values = {axis: variant.values[axis] for axis in axes if axis in variant.values}
    return label(values) if values else ""
