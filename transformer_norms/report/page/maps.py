"""Maps of two axes: the loss, difference and verdict of each pair of values."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_norms.report.charts.lines import label_on
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant
from transformer_norms.text_tables import show

SHADES = 7
_FIRST = ("placement", "norm")  # the rows and the columns of a map, where both vary


@dataclass(frozen=True)
class MapCell:
    """`shade` counts from 0, the lowest loss of the map; None where no run has one."""

    variant: Variant
    loss: float | None
    shade: int | None
    difference: float | None
    verdict: str
    failed: str


@dataclass(frozen=True)
class Map:
    """Losses by two axes, with one choice, `rest`, of everything else. A cell is None where no
    variant was planned."""

    row_axis: str
    column_axis: str
    rest: str
    columns: list[str]
    rows: list[tuple[str, list[MapCell | None]]]


def maps(findings: Findings) -> list[Map]:
    """A map for each combination of values on the other axes; none if less than two axes vary."""
    variants = findings.study.variants
    varying = [axis for axis in findings.study.axes if len(_values_on(variants, axis)) > 1]
    if len(varying) < 2:
        return []
    first = [axis for axis in _FIRST if axis in varying]
    row, column, *remaining = [*first, *(axis for axis in varying if axis not in first)]
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        groups.setdefault(label_on(variant, remaining), []).append(variant)
    return [_map(findings, row, column, rest, members) for rest, members in groups.items()]


def _map(findings: Findings, row: str, column: str, rest: str, members: list[Variant]) -> Map:
    losses = [findings.outcomes[variant.name].mean for variant in members]
    known = sorted(loss for loss in losses if loss is not None)
    cells = {
        (_value_text(variant, row), _value_text(variant, column)): _cell(findings, variant, known)
        for variant in members
    }
    columns = _values_on(members, column)
    rows = [(r, [cells.get((r, c)) for c in columns]) for r in _values_on(members, row)]
    return Map(row, column, rest, columns, rows)


def _cell(findings: Findings, variant: Variant, known: Sequence[float]) -> MapCell:
    outcomes, compared = findings.outcomes[variant.name], findings.comparisons.get(variant.name)
    loss, shade, failed = outcomes.mean, None, ""
    if loss is not None:
        shade = round((SHADES - 1) * (loss - known[0]) / (known[-1] - known[0] or 1.0))
    if outcomes.failed:
        failed = f"failed in {len(outcomes.failed)} of {outcomes.ended}"
    difference = compared.difference if compared else None
    return MapCell(variant, loss, shade, difference, findings.verdict(variant), failed)


def _values_on(variants: Sequence[Variant], axis: str) -> list[str]:
    return list(dict.fromkeys(_value_text(variant, axis) for variant in variants))


def _value_text(variant: Variant, axis: str) -> str:
    return show(variant.values[axis]) if axis in variant.values else "not set"
