"""curves.svg, curves.png and rates.svg: how the variants trained, where each seed ended, and the
loss at each learning rate that was tried.

Figures share styles that read in grey, names that do not overlap, and stable bytes.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.statistics import half_interval
from transformer_norms.report.findings import LOSSES, Findings
from transformer_norms.report.study import (
    LOSS_KEYS,
    Curve,
    Rows,
    Study,
    Variant,
    loss_curve,
    loss_range,
    mean_curve,
    shown_loss,
)
from transformer_norms.report.tuning_audit import Audit, audits
from transformer_norms.text_tables import printable, shorten

# From dark to light, about equally far apart in lightness; as many more than dashes as makes every
# pair of the two come up.
COLOURS = ("#000000", "#20408f", "#ab3a20", "#2e8a5c", "#b97fa6", "#e2a03f")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (9, 3)),
)
GREY = "#666666"
FONT = 7.5  # points
DPI = 200
_FRAME = 0.8  # inches of a figure that its axes do not have
_LONGEST_NAME = 34  # characters


def line_style(place: int) -> tuple[str, Any]:
    """Colour and dashes of the variant at a place. The first 30 places differ from each other."""
    return COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]


def short_name(text: str) -> str:
    return shorten(printable(text), _LONGEST_NAME)


def spread_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart, in the order of `wanted` and as close to it as possible (by
    least squares), inside low..high; evenly spread if there is no room for that."""
    from scipy.optimize import isotonic_regression

    count = len(wanted)
    steps = min(gap, (high - low) / max(1, count - 1)) * np.arange(count)
    order = np.argsort(wanted, kind="stable")
    fitted = isotonic_regression(np.asarray(wanted)[order] - steps).x
    placed = np.empty(count)
    placed[order] = np.clip(fitted, low, high - steps[-1]) + steps
    return [float(position) for position in placed]


def label_ends(axes: Any, names: Sequence[str], ends: Sequence[tuple[float, float]]) -> None:
    """Writes each name beside the end of its line, in its colour, apart from the others."""
    low, high = axes.get_ylim()
    inches = axes.figure.get_size_inches()[1] - _FRAME
    wanted = [min(max((y - low) / (high - low), 0), 1) for _, y in ends]
    heights = spread_apart(wanted, FONT * 1.25 / 72 / inches, 0.0, 1.0)
    for place, ((x, _), at, y) in enumerate(zip(ends, wanted, heights, strict=True)):
        colour, _ = line_style(place)
        axes.annotate(
            short_name(names[place]), (x, low + at * (high - low)), xytext=(1.05, y),
            textcoords="axes fraction", va="center", fontsize=FONT, color=colour,
            parse_math=False, annotation_clip=False, arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.4, "relpos": (0, 0.5),
                "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip


def style_axes(axes: Any) -> None:
    axes.tick_params(labelsize=FONT, colors=GREY)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_size(FONT + 1)
    axes.spines[["top", "right"]].set_visible(False)


def pyplot() -> Any:
    """Matplotlib for files, imported when something is drawn. The same drawing is the same file."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "report"
    from matplotlib import pyplot

    return pyplot


def figure_bytes(figure: Any, kind: str) -> bytes:
    data = BytesIO()
    stamp = {"svg": {"Date": None}, "png": {"Software": None}}[kind]
    figure.savefig(data, format=kind, dpi=DPI, metadata=stamp)
    return data.getvalue()


# -------------------------------------------------------------------------------------- loss curves

_WIDTH, _HEIGHT, _PER_NAME = 8.6, 3.4, 0.15  # inches
_FAR = 12  # times the distance of the median from the best: what lies beyond is at the edge


def draw_curves(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, bytes]:
    """The figure as an SVG and as a PNG; none if no run has ended. `rows` are the metrics by run
    folder."""
    variants = [variant for variant in findings.study.variants if variant.ended]
    if not variants:
        return {}
    plt = pyplot()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(_WIDTH, max(_HEIGHT, _PER_NAME * len(variants) + 1)),
        width_ratios=(1.5, 1), layout="constrained",
    )  # fmt: skip
    figure.get_layout_engine().set(wspace=0.05)
    names = [variant.name for variant in variants]
    loss = _draw_training(left, variants, rows)
    left.set(xlabel="tokens", ylabel=f"{loss}, nats per token")
    _draw_finals(right, names, [findings.outcomes[name] for name in names])
    # To the right: beside long names the axes are narrower than their label.
    right.set_xlabel(f"final {LOSSES[findings.loss]}, nats per token", loc="right")
    files = {f"curves.{kind}": figure_bytes(figure, kind) for kind in ("svg", "png")}
    plt.close(figure)
    return files


def _draw_training(axes: Any, variants: Sequence[Variant], rows: Mapping[Path, Rows]) -> str:
    """Draws each seed as a thin line behind the mean, and each name at the end of its line. Returns
    the name of the loss that is drawn."""
    from matplotlib.ticker import EngFormatter

    runs = [run for variant in variants for run in variant.ended]
    evaluated = [loss_curve(rows[run.folder], "val/loss") for run in runs]
    key = shown_loss([0 if curve is None else len(curve.loss) for curve in evaluated])
    by_variant = [
        [
            curve
            for run in variant.ended
            if (curve := loss_curve(rows[run.folder], key, run.summary.status == "diverged"))
        ]
        for variant in variants
    ]
    curves = [curve for members in by_variant for curve in members]
    axes.set_ylim(*loss_range(curves))
    axes.set_xlim(0, max((curve.tokens[-1] for curve in curves), default=1) * 1.01)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.ticklabel_format(axis="y", useOffset=False)
    ends = [_draw_variant(axes, place, members) for place, members in enumerate(by_variant)]
    label_ends(axes, [variant.name for variant in variants], ends)
    style_axes(axes)
    return LOSS_KEYS[key]


def _draw_variant(axes: Any, place: int, curves: Sequence[Curve]) -> tuple[float, float]:
    """Draws one variant. Returns the end of its line."""
    colour, dashes = line_style(place)
    for curve in curves:
        axes.plot(curve.tokens, curve.loss, color=colour, linewidth=0.5, alpha=0.35, zorder=2)
        if curve.diverged:
            low, high = axes.get_ylim()
            y = min(max(curve.loss[-1], low), high)  # at the edge if it is out of view
            axes.plot(curve.tokens[-1:], [y], "x", color=colour, clip_on=False, zorder=4)
    average = mean_curve([curve for curve in curves if not curve.diverged])
    if average is not None:
        axes.plot(
            average.tokens, average.loss, color=colour, linestyle=dashes, linewidth=1.4, zorder=3
        )
    last = average or (curves[0] if curves else None)
    return (last.tokens[-1], last.loss[-1]) if last else (0.0, axes.get_ylim()[1])


def _draw_finals(axes: Any, names: Sequence[str], outcomes: Sequence[Outcomes]) -> None:
    """Draws a row for each variant: a dot for every seed above the mean with Student's 95 %
    interval. The right edge has a cross for each failed run, a triangle for each loss outside."""
    finished = [list(outcome.losses.values()) for outcome in outcomes]
    span = _loss_span(finished)
    axes.set_xlim(*span)
    axes.ticklabel_format(axis="x", useOffset=False)
    at_edge = {"clip_on": False, "transform": axes.get_yaxis_transform()}
    for place, (losses, outcome) in enumerate(zip(finished, outcomes, strict=True)):
        colour, _ = line_style(place)
        above = [place - 0.18] * len(losses)
        axes.plot(losses, above, "o", color=colour, markersize=2.8, markeredgewidth=0, alpha=0.7)
        if any(loss > span[1] for loss in losses):
            axes.plot([1], above[:1], ">", color=colour, markersize=4, **at_edge)
        if losses:
            half = half_interval(losses)
            axes.errorbar(np.mean(losses), place + 0.14, xerr=half, fmt="|", color=colour,
                          capsize=2, markersize=7, linewidth=1.2)  # fmt: skip
        for i in range(len(outcome.failed)):
            y = place - 0.3 + 0.6 * (i + 1) / (len(outcome.failed) + 1)
            axes.plot([1], [y], "x", color=colour, markersize=5, **at_edge)
    axes.set_yticks(
        range(len(names)), [short_name(text) for text in names], fontsize=FONT, parse_math=False
    )
    axes.set_ylim(len(names) - 0.5, -0.5)
    style_axes(axes)


def _loss_span(finished: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The range that shows all dots and the intervals of three seeds or more. It leaves out what
    lies so far above the median that the other dots would fall together."""
    ends = [loss for losses in finished for loss in losses]
    if not ends:
        return 0.0, 1.0
    far = min(ends) + _FAR * (float(np.median(ends)) - min(ends))
    for losses in finished:
        if len(losses) > 2:
            half = half_interval(losses) or 0
            ends += [float(np.mean(losses)) - half, float(np.mean(losses)) + half]
    near = [end for end in ends if end <= far] if far > min(ends) else ends
    room = 0.06 * (max(near) - min(near)) or 0.01
    return min(near) - room, max(near) + 2 * room


# -------------------------------------------------------------------------------------- tuned rates


def draw_rates(study: Study) -> dict[str, bytes]:
    """The figure as an SVG; none if nothing was tuned."""
    tuned = [audit for audit in audits(study) if audit.losses]
    if not tuned or study.rate is None:
        return {}
    plt = pyplot()
    height = max(_HEIGHT, _PER_NAME * len(tuned) + 1)
    figure, axes = plt.subplots(figsize=(5.2, height), layout="constrained")
    if min(study.tune[study.rate]) > 0:
        axes.set_xscale("log")
    axes.set_ylim(0.0, 1.0)
    if losses := [loss for audit in tuned for loss in audit.curve.values()]:
        room = 0.06 * (max(losses) - min(losses)) or 0.1
        axes.set_ylim(min(losses) - room, max(losses) + 2 * room)
    ends = [_draw_audit(axes, place, audit, study.rate) for place, audit in enumerate(tuned)]
    axes.margins(x=0.04)
    label_ends(axes, [audit.variant.name for audit in tuned], ends)
    axes.set(xlabel=study.rate, ylabel="validation loss, nats per token")
    style_axes(axes)
    data = figure_bytes(figure, "svg")
    plt.close(figure)
    return {"rates.svg": data}


def _draw_audit(axes: Any, place: int, audit: Audit, key: str) -> tuple[float, float]:
    """Draws a line through the rates at which a run finished, a ring around the chosen one, and a
    cross at the upper edge for each that diverged. Returns the end of the line."""
    colour, dashes = line_style(place)
    curve = audit.curve
    axes.plot(
        list(curve), list(curve.values()), "o", linestyle=dashes, color=colour, markersize=3,
        linewidth=1.2,
    )  # fmt: skip
    top = axes.get_ylim()[1]
    for rate in sorted(audit.diverged):
        axes.plot([rate], [top], "x", color=colour, markersize=6, clip_on=False)
    for rate, loss in curve.items():
        if rate == audit.best.get(key):
            axes.plot([rate], [loss], "o", markersize=8, markerfacecolor="none", color=colour)
    return list(curve.items())[-1] if curve else (max(audit.losses), top)
