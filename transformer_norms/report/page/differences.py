"""The small pictures of differences in the table of results, and the maps of two axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from transformer_norms.report.findings import Findings
from transformer_norms.report.page.charts import label_on
from transformer_norms.report.study import Variant
from transformer_norms.text_tables import show

WIDTH, HEIGHT = 180, 26
_EDGE = 9  # room at either end, for arrows and half a dot
_FAR = 4  # times the median of the rows' extents: a difference beyond this is drawn at the edge


@dataclass(frozen=True)
class Forest:
    """x positions of a row: zero, the band of differences too small to count, the interval, the
    mean, and a dot for each seed with its words. `beyond` says whether
    the interval goes on to the left, and to the right."""

    zero: float
    band: tuple[float, float]
    mean: float | None
    interval: tuple[float, float] | None
    beyond: tuple[bool, bool]
    seeds: list[tuple[float, str]]
    words: str


@dataclass(frozen=True)
class Scale:
    """`limit` is the difference at either end, in nats per token."""

    limit: float

    def __call__(self, difference: float) -> float:
        inside = max(-1.0, min(1.0, difference / self.limit))
        return round(WIDTH / 2 + inside * (WIDTH / 2 - _EDGE), 1)


def scale(findings: Findings) -> Scale:
    """The scale of all rows. A row with much larger differences goes on beyond the edge, so that
    the dots of the other rows stay apart."""
    extents = []
    for variant in findings.compared:
        compared = findings.comparisons[variant.name]
        ends = [compared.low, compared.high, compared.difference]
        if sizes := [abs(x) for x in (*ends, *compared.differences) if x]:
            extents.append(max(sizes))
    limit = min(_FAR * median(extents), max(extents)) if extents else 0.0
    return Scale(1.1 * max(findings.study.effect, limit) or 1.0)


def forest(findings: Findings, variant: Variant, on: Scale) -> Forest | None:
    """The row of a variant; None if there is no difference to show."""
    compared = findings.comparisons.get(variant.name)
    if compared is None or compared.difference is None:
        return None
    effect, limit = findings.study.effect, on.limit
    words = f"difference {compared.difference:+.4f} nats"
    interval, beyond = None, (False, False)
    if compared.low is not None and compared.high is not None:
        words += f", 95 % interval {compared.low:+.4f} to {compared.high:+.4f}"
        interval = on(compared.low), on(compared.high)
        beyond = compared.low < -limit, compared.high > limit
    return Forest(
        on(0),
        (on(-effect), on(effect)),
        on(compared.difference),
        interval,
        beyond,
        [
            (on(d), f"seed {s}: {d:+.4f}")
            for s, d in zip(compared.seeds, compared.differences, strict=True)
        ],
        words,
    )


# --------------------------------------------------------------------------------- maps of two axes

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
