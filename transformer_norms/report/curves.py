"""curves.svg and curves.png: where each seed ended, beside how the variants came there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.data.ngrams import ngram_name
from transformer_norms.report.figures import (
    FONT,
    GREY,
    LINE,
    figure_bytes,
    label_ends,
    line_style,
    mark_failures,
    ngrams_in_view,
    pyplot,
    short_name,
    spread_apart,
    style_axes,
)
from transformer_norms.report.findings import LOSSES, Findings
from transformer_norms.report.rates import draw_rate_lines, rate_lines
from transformer_norms.report.regime import TUNED_ON, shared_lines
from transformer_norms.report.study import (
    Curve,
    Rows,
    Study,
    Variant,
    enough_evaluations,
    loss_curve,
    loss_range,
    mean_curve,
)

_WIDTH, _HEIGHT, _PER_NAME = 8.6, 3.4, 0.15  # inches
_ALONE = 5.2  # inches of width of a single panel
_FAR = 12  # times the distance of the median from the best: what lies beyond is at the edge
_NGRAM_ROOM = 30  # points of width of an n-gram's name


def draw_curves(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, bytes]:
    """The figure as an SVG and as a PNG; none if no run has ended. `rows` are the metrics by run
    folder.

    To the right stands the loss that the table is about. To the left stand curves of the validation
    loss. If the runs were evaluated too rarely for that, the losses at all rates that were tuned
    stand there, or nothing: a curve of the training loss is about another loss than the table.
    """
    variants = [variant for variant in findings.study.variants if variant.ended]
    if not variants:
        return {}
    plt = pyplot()
    curves, rates = _validation_curves(findings, variants, rows), rate_lines(findings.study)
    panels = 2 if curves or rates else 1
    figure, axes = plt.subplots(
        1, panels, figsize=(_WIDTH if panels == 2 else _ALONE, _height(len(variants))),
        width_ratios=(1.5, 1)[-panels:], layout="constrained", squeeze=False,
    )  # fmt: skip
    figure.get_layout_engine().set(wspace=0.05)
    *left, right = axes[0]
    if curves:
        _draw_training(left[0], findings.study, variants, curves)
    elif rates:
        draw_rate_lines(left[0], findings.study, rates)
    _draw_finals(right, findings, variants)
    files = {f"curves.{kind}": figure_bytes(figure, kind) for kind in ("svg", "png")}
    plt.close(figure)
    return files


def _height(names: int) -> float:
    return max(_HEIGHT, _PER_NAME * names + 1)


def _validation_curves(
    findings: Findings, variants: Sequence[Variant], rows: Mapping[Path, Rows]
) -> list[list[Curve]]:
    """The curves of each variant; none at all if most runs have too few evaluations."""
    curves = [
        [
            curve
            for run in variant.ended
            if (
                curve := loss_curve(
                    rows[run.folder], "val/loss", run.seed in findings.outcomes[variant.name].failed
                )
            )
        ]
        for variant in variants
    ]
    evaluations = [len(curve.loss) for members in curves for curve in members]
    runs = sum(len(variant.ended) for variant in variants)
    return curves if enough_evaluations([*evaluations, *[0] * (runs - len(evaluations))]) else []


def _draw_training(
    axes: Any, study: Study, variants: Sequence[Variant], by_variant: Sequence[Sequence[Curve]]
) -> None:
    """Draws each seed as a thin line behind the mean, and each name at the end of its line."""
    from matplotlib.ticker import EngFormatter

    curves = [curve for members in by_variant for curve in members]
    axes.set_ylim(*loss_range(curves))
    axes.set_xlim(0, max((curve.tokens[-1] for curve in curves), default=1) * 1.01)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.ticklabel_format(axis="y", useOffset=False)
    places = [study.variants.index(variant) for variant in variants]
    lines = [*zip(places, by_variant, strict=True)]
    ends = [_draw_variant(axes, place, members) for place, members in lines]
    failing = [line for line in lines if any(curve.failed for curve in line[1])]
    for row, (place, members) in enumerate(failing):
        tokens = [curve.tokens[-1] for curve in members if curve.failed]
        for x in sorted(set(tokens)):
            mark_failures(axes, x, tokens.count(x), row, line_style(place)[0])
    names = [variant.name for variant in variants]
    label_ends(axes, names, ends, places, shared_lines(study, TUNED_ON))
    axes.set(xlabel="tokens", ylabel="validation loss, nats per token")
    style_axes(axes)


def _draw_variant(axes: Any, place: int, curves: Sequence[Curve]) -> tuple[float, float]:
    """Draws one variant. Returns the end of its line."""
    colour, dashes = line_style(place)
    for curve in curves:
        axes.plot(curve.tokens, curve.loss, color=colour, linewidth=0.5, alpha=0.35, zorder=2)
    average = mean_curve([curve for curve in curves if not curve.failed])
    if average is not None:
        axes.plot(
            average.tokens, average.loss, color=colour, linestyle=dashes, linewidth=1.4, zorder=3
        )
    last = average or (curves[0] if curves else None)
    return (last.tokens[-1], last.loss[-1]) if last else (0.0, axes.get_ylim()[1])


def _draw_finals(axes: Any, findings: Findings, variants: Sequence[Variant]) -> None:
    """Draws a row for each variant: a dot for every seed above the mean with Student's 95 %
    interval, from three seeds on. The right edge has a cross with the number of failed runs, and a
    triangle for losses outside."""
    outcomes = [findings.outcomes[variant.name] for variant in variants]
    axes.set_xlim(*_loss_span(outcomes))
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.ticklabel_format(axis="x", useOffset=False)
    for row, variant in enumerate(variants):
        colour, _ = line_style(findings.study.variants.index(variant))
        _draw_row(axes, row, colour, outcomes[row])
    names = [short_name(variant.name) for variant in variants]
    axes.set_yticks(range(len(names)), names, fontsize=FONT, parse_math=False)
    _draw_vertical_ngrams(axes, shared_lines(findings.study, findings.loss))
    # To the right: beside long names the axes are narrower than their label.
    axes.set_xlabel(f"final {LOSSES[findings.loss]}, nats per token", loc="right")
    style_axes(axes)


def _draw_row(axes: Any, row: int, colour: str, outcome: Outcomes) -> None:
    losses = list(outcome.losses.values())
    at_edge = {"clip_on": False, "transform": axes.get_yaxis_transform()}
    above = [row - 0.18] * len(losses)
    axes.plot(losses, above, "o", color=colour, markersize=2.8, markeredgewidth=0, alpha=0.7)
    if any(loss > axes.get_xlim()[1] for loss in losses):
        axes.plot([1], above[:1], ">", color=colour, markersize=4, **at_edge)
    if losses:
        axes.errorbar(np.mean(losses), row + 0.14, xerr=outcome.half, fmt="|", color=colour,
                      capsize=2, markersize=7, linewidth=1.2)  # fmt: skip
    if outcome.failed:
        axes.plot([1], [row + 0.14], "x", color=colour, markersize=5, **at_edge)
        axes.annotate(
            f"{len(outcome.failed)} of {outcome.ended}", (1, row + 0.14),
            xycoords=axes.get_yaxis_transform(), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=FONT - 1, color=colour, annotation_clip=False,
        )  # fmt: skip


def _draw_vertical_ngrams(axes: Any, ngrams: Sequence[float]) -> None:
    """Draws the lines that are in view, with their names above the axes."""
    low, high = axes.get_xlim()
    shown = ngrams_in_view(ngrams, low, high)
    if not shown:
        return
    points = 72 * axes.figure.get_size_inches()[0] / (4 if axes.figure.axes[1:] else 2)
    wanted = [(loss - low) / (high - low) for _, loss in shown]
    for (order, loss), x in zip(
        shown, spread_apart(wanted, _NGRAM_ROOM / points, 0, 1), strict=True
    ):
        axes.axvline(loss, color=LINE, linewidth=0.6, zorder=1)
        axes.annotate(
            ngram_name(order), (x, 1), xycoords="axes fraction", xytext=(0, 2),
            textcoords="offset points", ha="center", fontsize=FONT - 1, color=GREY,
            annotation_clip=False,
        )  # fmt: skip


def _loss_span(outcomes: Sequence[Outcomes]) -> tuple[float, float]:
    """The range that shows all dots and intervals. It leaves out what lies so far above the median
    that the other dots would fall together."""
    ends = [loss for outcome in outcomes for loss in outcome.losses.values()]
    if not ends:
        return 0.0, 1.0
    far = min(ends) + _FAR * (float(np.median(ends)) - min(ends))
    for outcome in outcomes:
        if outcome.mean is not None and outcome.half is not None:
            ends += [outcome.mean - outcome.half, outcome.mean + outcome.half]
    near = [end for end in ends if end <= far] if far > min(ends) else ends
    room = 0.06 * (max(near) - min(near)) or 0.01
    return min(near) - room, max(near) + 2 * room
