"""What decides the order of placements: what enters the first block, or the weights? And does the
ratio of branch to stream predict it?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from measured import described
from primary import Primary, primary_contrasts, primary_rows

from transformer_norms.analysis.rendering import svg_bytes
from transformer_norms.report.figures import FONT, line_style, subplots, use_log_axis
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant
from transformer_norms.text_tables import markdown_table

STUDIES = ("stream_or_table", "stream_or_table_256")
DRAWS = 2000
ENOUGH = 4  # contrasts of one kind that have to be told apart from zero
STREAM, WEIGHTS = "what enters", "the weights"
SAID = {STREAM: "It is the stream", WEIGHTS: "It is the weights"}
UNDECIDED = "By the words that were decided before, it is both, or not told apart"
RATIO = "probe/branch_over_stream/"


@dataclass(frozen=True)
class Cell:
    """A start: the deviation of the matrices and of the table, which is the head as well, and the
    rms that enters the first block."""

    weights: float
    enters: float


@dataclass(frozen=True)
class Point:
    """The difference of a placement from pre-norm in a cell, in nats, the log of
    its ratio of branch to stream less that of pre-norm, and the square of that log less the square
    of pre-norm's."""

    placement: str
    cell: Cell
    difference: float
    log_ratio: float
    log_square: float


def cell_of(variant: Variant) -> Cell:
    values = variant.values
    weights = float(values["init.std.default"])
    return Cell(weights, float(f"{weights * float(values['architecture.embed_scale']):.2g}"))


def points_of(found: Findings) -> list[Point]:
    """A point for each variant that was compared with pre-norm and of which no run failed."""
    points = []
    for variant in found.compared:
        c = found.comparisons[variant.name]
        if c.difference is None or c.verdict == "failed":
            continue
        own, base = log_ratio(variant), log_ratio(found.study.baseline_of(variant))
        placement, logs = variant.values["placement"], (own - base, own**2 - base**2)
        points.append(Point(placement, cell_of(variant), c.difference, *logs))
    return points


def log_ratio(variant: Variant) -> float:
    """The mean of the log of what a sub-layer adds over the stream that it is added to, over all
    blocks, both sub-layers and all seeds, at the first step."""
    logs = []
    for run in variant.ended:
        first = next(row for row in run.metrics() if row["step"] == 1)
        logs += [math.log(ratio) for key, ratio in first.items() if key.startswith(RATIO)]
    return fmean(logs)


# -------------------------------------------------------------------------------- stream or weights


def kind_of(one: Primary, found: Findings) -> str:
    """What changes in a contrast while the other stays."""
    cells = {cell_of(found.study.variant(name)) for name in one.contrast.coefficients}
    return STREAM if len({cell.weights for cell in cells}) == 1 else WEIGHTS


def placement_of(one: Primary, found: Findings) -> str:
    """The placement that a contrast compares with pre-norm."""
    names = {found.study.variant(name).values["placement"] for name in one.contrast.coefficients}
    return str((names - {"pre"}).pop())


def answer(found: Findings) -> str:
    """The words that were decided before the runs, and what they rest on."""
    primaries = primary_contrasts(found)
    kinds = {
        kind: [one for one in primaries if kind_of(one, found) == kind]
        for kind in (STREAM, WEIGHTS)
    }
    held = [
        kind
        for kind, other in ((STREAM, WEIGHTS), (WEIGHTS, STREAM))
        if _decides(kinds[kind], kinds[other], found)
    ]
    counts = [
        f"{sum(one.is_apart for one in own)} of {len(own)} contrasts of {kind} are told apart from "
        f"zero, with a median magnitude of {_magnitude(own):.3f} nats"
        for kind, own in kinds.items()
    ]
    return f"{SAID[held[0]] if held else UNDECIDED}. {'; '.join(counts)}."


def _decides(own: Sequence[Primary], other: Sequence[Primary], found: Findings) -> bool:
    """Whether the contrasts of one kind have one sign per placement, are told apart from zero often
    enough, and are larger in the median than those of the other kind."""
    values = [[one.value for one in group] for group in _by_placement(own, found).values()]
    one_sign = all(
        None not in group and len({value > 0 for value in group if value is not None}) == 1
        for group in values
    )
    apart = sum(one.is_apart for one in own)
    return one_sign and apart >= ENOUGH and _magnitude(own) > _magnitude(other)


def _magnitude(primaries: Sequence[Primary]) -> float:
    return median([abs(one.value) for one in primaries if one.value is not None] or [math.nan])


def _by_placement(primaries: Sequence[Primary], found: Findings) -> dict[str, list[Primary]]:
    groups: dict[str, list[Primary]] = {}
    for one in primaries:
        groups.setdefault(placement_of(one, found), []).append(one)
    return groups


# ---------------------------------------------------------------------------------- the regression


@dataclass(frozen=True)
class LeftOut:
    """The line that is fitted to all placements but one, and its errors on that one, root mean
    squares in nats: of the line, and of the others' mean difference."""

    placement: str
    points: int
    slope: float
    line: float
    mean: float


def left_out_in_turn(points: Sequence[Point]) -> Iterator[tuple[str, list[Point], list[Point]]]:
    """Yields each placement, its points, and those of the others."""
    for placement in dict.fromkeys(point.placement for point in points):
        own = [point for point in points if point.placement == placement]
        yield placement, own, [point for point in points if point.placement != placement]


def leave_placements_out(points: Sequence[Point]) -> list[LeftOut]:
    """Each placement left out in turn."""
    results = []
    for placement, own, rest in left_out_in_turn(points):
        slope, intercept = fit_line(rest)
        mean = fmean(point.difference for point in rest)
        by_line = [p.difference - slope * p.log_ratio - intercept for p in own]
        by_mean = [p.difference - mean for p in own]
        results.append(LeftOut(placement, len(own), slope, _rms(by_line), _rms(by_mean)))
    return results


def fit_line(points: Sequence[Point]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line of the difference over the log of the ratio."""
    slope, intercept = np.polyfit(
        [point.log_ratio for point in points], [point.difference for point in points], 1
    )
    return float(slope), float(intercept)


def slope_interval(points: Sequence[Point]) -> tuple[float, float]:
    """The 95 % interval of the slope, over draws of cells with replacement."""
    cells = [[p for p in points if p.cell == cell] for cell in {p.cell: 0 for p in points}]
    chosen = np.random.default_rng(0).integers(len(cells), size=(DRAWS, len(cells)))
    slopes = [fit_line([p for cell in draw for p in cells[cell]])[0] for draw in chosen]
    low, high = np.quantile(slopes, [0.025, 0.975])
    return float(low), float(high)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(fmean(value**2 for value in values))


def regression_text(points: Sequence[Point]) -> str:
    slope, intercept = fit_line(points)
    rest = [p.difference - slope * p.log_ratio - intercept for p in points]
    centred = [p.difference - fmean(q.difference for q in points) for p in points]
    explained = 1 - (_rms(rest) / _rms(centred)) ** 2
    left_out = leave_placements_out(points)
    predicts = all(one.line < one.mean for one in left_out)
    rows = [["placement left out", "points", "slope of the others' line", "error of the line",
             "error of the others' mean"]]  # fmt: skip
    rows += [
        [o.placement, str(o.points), f"{o.slope:+.4f}", f"{o.line:.4f}", f"{o.mean:.4f}"]
        for o in left_out
    ]
    word = "predicts" if predicts else "does not predict"
    low, high = slope_interval(points)
    return (
        f"The ratio of branch to stream {word} the difference from pre-norm, by the rule that was "
        f"decided before. Over all {len(points)} points the line has a slope of {slope:+.4f} nats "
        f"per factor of e in the ratio (95 % interval {low:+.4f} to {high:+.4f}, of {DRAWS:,} "
        "draws of the cells: the points of a cell share its pre-norm) and explains "
        f"{100 * explained:.0f} % of the variance. Errors are root mean squares in nats:\n\n"
        f"{markdown_table(rows)}"
    )


# --------------------------------------------------------------------------------------- the curve


def fit_curve(points: Sequence[Point]) -> tuple[float, float]:
    """b and c of losses a + b r + c r^2, with r the log of the ratio and another a for each cell:
    the least squares of X - pre = b (r - r_pre) + c (r^2 - r_pre^2)."""
    design = np.array([[point.log_ratio, point.log_square] for point in points])
    (b, c), *_ = np.linalg.lstsq(design, np.array([p.difference for p in points]), rcond=None)
    return float(b), float(c)


def curve_errors(own: Sequence[Point], rest: Sequence[Point]) -> tuple[float, float, float, float]:
    """Root mean squares in nats on `own`: of the curve that is fitted to the `rest`, of their mean,
    and of zero, which is what a flat curve says; and the ratio at which that curve is least, not a
    number where it has no least."""
    (b, c), mean = fit_curve(rest), fmean(point.difference for point in rest)
    by_curve = [p.difference - b * p.log_ratio - c * p.log_square for p in own]
    by_mean = [p.difference - mean for p in own]
    by_zero = [p.difference for p in own]
    return _rms(by_curve), _rms(by_mean), _rms(by_zero), best_ratio(b, c)


@dataclass(frozen=True)
class CurveLeftOut:
    """The curve that is fitted to all placements but one: its error on that one, the errors of the
    others' mean and of zero, in nats, and the ratio at which it is least."""

    placement: str
    curve: float
    mean: float
    zero: float
    best: float


def curves_left_out(points: Sequence[Point]) -> list[CurveLeftOut]:
    """Each placement left out in turn."""
    return [
        CurveLeftOut(placement, *curve_errors(own, rest))
        for placement, own, rest in left_out_in_turn(points)
    ]


def best_ratio(b: float, c: float) -> float:
    """The ratio at which a curve is least, not a number where it has no least."""
    return math.exp(-b / (2 * c)) if c > 0 else math.nan


def curve_text(points: Sequence[Point]) -> str:
    """Asked after stream_or_table had been seen: no answer of that study rests on it."""
    b, c = fit_curve(points)
    rest = _rms([p.difference - b * p.log_ratio - c * p.log_square for p in points])
    rows = [["placement left out", "error of the curve", "error of the others' mean",
             "error of no difference", "ratio at which the curve is least"]]  # fmt: skip
    rows += [
        [o.placement, f"{o.curve:.4f}", f"{o.mean:.4f}", f"{o.zero:.4f}", f"{o.best:.2f}"]
        for o in curves_left_out(points)
    ]
    return (
        "Asked when stream_or_table had been seen: is there a best ratio? Then the loss is a curve "
        "over the log r of the ratio, a + b r + c r^2 with one a for each cell, and the "
        f"difference from pre-norm is b (r - r_pre) + c (r^2 - r_pre^2). Fitted to all "
        f"{len(points)} differences, it leaves an error of {rest:.4f} nats"
        f"{_least(b, c)}. Without a placement it is fitted to the others, as the line is:\n\n"
        f"{markdown_table(rows)}"
    )


def _least(b: float, c: float) -> str:
    return f" and is least at a ratio of {best_ratio(b, c):.2f}" if c > 0 else ""


# -------------------------------------------------------------------------------- tables and figure


def cells_table(points: Sequence[Point]) -> str:
    """X - pre by cell."""
    cells = list(dict.fromkeys(point.cell for point in points))
    placements = list(dict.fromkeys(point.placement for point in points))
    at = {(point.placement, point.cell): point for point in points}
    rows = [["weights", "rms that enters", *(f"{x} - pre" for x in placements)]]
    for cell in cells:
        found = [at.get((placement, cell)) for placement in placements]
        texts = ["a run failed" if p is None else f"{p.difference:+.3f}" for p in found]
        rows.append([f"{cell.weights:g}", f"{cell.enters:g}", *texts])
    return markdown_table(rows)


def study_text(found: Findings) -> str:
    points = points_of(found)
    parts = [
        answer(found),
        markdown_table(primary_rows(primary_contrasts(found))),
        "The difference from pre-norm in each cell, in nats:",
        cells_table(points),
        regression_text(points),
        curve_text(points),
    ]
    return "\n\n".join(parts)


def draw(found: Findings) -> bytes:
    """The losses themselves over what enters, a line for each placement: a panel for each deviation
    of the weights. The lines of two placements cross where their order changes."""
    cells = {cell_of(variant).weights for variant in found.study.variants}
    drawing, panels = subplots(1, len(cells), figsize=(7.0, 3.2), sharey=True, layout="constrained")
    for axes, weights in zip(panels, sorted(cells), strict=True):
        use_log_axis(axes)
        axes.set_title(f"weights of {weights:g} at init", fontsize=FONT)
        axes.set(xlabel="rms of the residual stream that enters")
        _draw_weights(axes, weights, found)
    panels[0].set(ylabel="validation loss, nats per byte")
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4,
                   fontsize=FONT, frameon=False)  # fmt: skip
    return svg_bytes(drawing)


def _draw_weights(axes: Any, weights: float, found: Findings) -> None:
    """Each mean with its 95 % interval."""
    variants = [v for v in found.study.variants if cell_of(v).weights == weights]
    entered = sorted({cell_of(variant).enters for variant in variants})
    for place, placement in enumerate(dict.fromkeys(v.values["placement"] for v in variants)):
        colour, dashes = line_style(place)
        own = {cell_of(v).enters: found.outcomes[v.name] for v in variants
               if v.values["placement"] == placement}  # fmt: skip
        means = {enters * 1.04**place: described([*own[enters].losses.values()])
                 for enters in entered if not own[enters].failed}  # fmt: skip
        axes.plot([*means], [c.difference for c in means.values()], "o", linestyle=dashes,
                  linewidth=1.2, color=colour, markersize=3, label=placement)  # fmt: skip
        for x, c in means.items():
            axes.plot([x, x], c.interval, color=colour, linewidth=0.8)
    axes.set_xticks(entered, [f"{rms:g}" for rms in entered])
    axes.set_xticks([], minor=True)  # the labels of the decade lie over each other
