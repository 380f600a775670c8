"""curves.svg: the final loss of each seed, next to the curves of the variants."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.statistics import finite
from transformer_norms.data.ngrams import ngram_name
from transformer_norms.report import figures
from transformer_norms.report.findings import Findings
from transformer_norms.report.rates import draw_tuning, rate_lines, rows_of_crosses
from transformer_norms.report.study import LOSS_KEYS, TUNED_ON, Rows, Study, Variant

_WIDTH = 8.6  # inches
_ALONE = 5.2  # inches of width of a single panel
_FAR = 12  # times the distance of the median from the best: what lies beyond is at the edge
_NGRAM_ROOM = 30  # points of width of an n-gram's name
_SETTLED = 0.4  # the share of training after which losses are in view
_FURTHER = ("seconds", "step")  # of a row of metrics, where it is known
_ENOUGH = 3  # evaluations of a run whose validation loss makes a curve


@dataclass(frozen=True)
class Curve:
    """Arrays of one length: loss in nats per token, tokens, seconds of training, steps and FLOPs
    (NaN if they are not known). `name` is that of its run."""

    tokens: Any
    loss: Any
    seconds: Any
    steps: Any = nan
    flops: Any = nan
    failed: bool = False
    name: str = ""


def draw_curves(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, bytes]:
    """The figure as an SVG; none if no run has ended. `rows` are the metrics by run folder.

    The final losses are on the right, and curves of the validation loss on the left. With too few
    evaluations the losses at all tuned rates are there, or nothing: the training loss is another.
    """
    variants = [variant for variant in findings.study.variants if variant.ended]
    if not variants:
        return {}
    curves, rates = curves_of(findings, variants, rows, "val/loss"), rate_lines(findings.study)
    panels = 2 if curves or rates else 1
    names, crosses = len(variants), sum(any(curve.failed for curve in of) for of in curves)
    if rates and not curves:
        names, crosses = max(names, len(rates)), rows_of_crosses(rates)
    figure, axes = figures.subplots(
        1, panels,
        figsize=(_WIDTH if panels == 2 else _ALONE, figures.height_of(names, crosses)),
        width_ratios=(1.5, 1)[-panels:], layout="constrained", squeeze=False,
    )  # fmt: skip
    figure.get_layout_engine().set(wspace=0.05)
    *left, right = axes[0]
    if curves:
        draw_training(findings.study, variants, curves, CurveView(), left[0])
    elif rates:
        draw_tuning(left[0], findings.study, rates)
    draw_finals(right, findings, variants)
    return {"curves.svg": figures.figure_bytes(figure, "svg")}


def curves_of(
    findings: Findings,
    variants: Sequence[Variant],
    rows: Mapping[Path, Rows],
    key: str,
    most: int | None = None,
) -> list[list[Curve]]:
    """The curves of the loss `key` of each variant, of at most `most` points; none at all if most
    runs have too few points of it."""
    curves = []
    for variant in variants:
        failed, per_token = findings.outcomes[variant.name].failed, variant.flops_per_token or nan
        curves.append([
            replace(curve, flops=curve.tokens * per_token, failed=run.seed in failed,
                    name=f"seed {run.seed}: {run.folder.name}")
            for run in variant.ended
            if (curve := _loss_curve(rows[run.folder], key, most))
        ])  # fmt: skip
    enough = sum(len(curve.loss) >= _ENOUGH for members in curves for curve in members)
    return curves if 2 * enough > sum(len(variant.ended) for variant in variants) else []


def _loss_curve(rows: Rows, key: str, most: int | None) -> Curve | None:
    """The loss `key` of the rows in which it is finite. More than `most` rows become as many means
    of neighbours. None if there is no such row."""
    points = [
        (row["tokens"], row[key], *(row[x] if finite(row.get(x)) else nan for x in _FURTHER))
        for row in rows
        if finite(row.get("tokens")) and finite(row.get(key))
    ]
    if not points:
        return None
    tokens, loss, seconds, steps = np.array(points, dtype=float).T
    if most and len(points) > most:
        ends = np.linspace(0, len(points), most + 1).astype(int)
        loss = np.add.reduceat(loss, ends[:-1]) / np.diff(ends)
        tokens, seconds, steps = (x[ends[1:] - 1] for x in (tokens, seconds, steps))
    return Curve(tokens, loss, seconds, steps)


def _mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """The mean at the tokens of the curve with the fewest points, as far as all curves go."""
    if not curves:
        return None
    grid = min((curve.tokens for curve in curves), key=len)
    grid = grid[grid <= min(curve.tokens[-1] for curve in curves)]
    means = (
        np.mean([np.interp(grid, c.tokens, getattr(c, name)) for c in curves], axis=0)
        for name in ("loss", "seconds", "steps", "flops")
    )
    return Curve(grid, *means)


def loss_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """The range of losses that shows how training ended. It leaves out the first steps, the runs
    that failed and those that ended above their start. If all failed, it reaches to twice the loss
    at the start."""
    if not curves:
        return 0.0, 1.0
    calm = [curve for curve in curves if not curve.failed]
    initial = float(np.median([curve.loss[0] for curve in calm or curves]))
    if not calm:
        return 0.0, 2 * initial
    calm = [curve for curve in calm if len(curve.loss) == 1 or curve.loss[-1] <= initial] or calm
    horizon = max(curve.tokens[-1] for curve in calm)
    late = [c.loss[(c.tokens >= _SETTLED * horizon) | (c.tokens == c.tokens[-1])] for c in calm]
    low = float(min(values.min() for values in late))
    high = float(np.quantile(np.concatenate(late), 0.98))
    high = min(high, initial) if initial > low else high
    room = 0.06 * (high - low) or 0.1
    return low - room, high + 2 * room


# Each axis of a curve has a label.
ALONG = {"tokens": "tokens", "steps": "steps", "flops": "FLOPs", "seconds": "seconds of training"}


@dataclass(frozen=True)
class CurveView:
    """How curves of the loss `loss`, a key of LOSS_KEYS, are drawn along a key of ALONG: how
    training ended, or all of it on logarithmic axes."""

    loss: str = "val/loss"
    along: str = "tokens"
    log: bool = False

    def values(self, curve: Curve) -> Any:
        return getattr(curve, self.along)

    def known(self, curves: Iterable[Curve]) -> list[Curve]:
        """The curves whose values along the axis are known."""
        return [curve for curve in curves if np.isfinite(self.values(curve)).all()]


def draw_training(
    study: Study,
    variants: Sequence[Variant],
    by_variant: Sequence[Sequence[Curve]],
    view: CurveView,
    axes: Any,
) -> None:
    """Draws each seed as a thin line below the mean, and names the lines."""
    pairs = [*zip(variants, by_variant, strict=True)]
    known = [(variant, own) for variant, curves in pairs if (own := view.known(curves))]
    _set_axes(axes, [curve for _, own in known for curve in own], view)
    lines = [_draw_variant(axes, study, *one, view) for one in known]
    figures.finish_lines(axes, lines, study.ngrams(TUNED_ON) if view.loss == "val/loss" else ())
    axes.set(xlabel=ALONG[view.along], ylabel=f"{LOSS_KEYS[view.loss]}, nats per token")


def _set_axes(axes: Any, curves: Sequence[Curve], view: CurveView) -> None:
    """Sets the ranges and the numbers at the axes."""
    from matplotlib.ticker import EngFormatter

    if view.log:
        calm = [curve for curve in curves if not curve.failed] or curves
        losses = np.concatenate([curve.loss[curve.loss > 0] for curve in calm])
        low, high = (losses.min() / 1.03, losses.max() * 1.03) if len(losses) else (1.0, 10.0)
        axes.set(xscale="log", yscale="log", ylim=(low, high))
        figures.number_parts_of_decades(axes.yaxis)
    else:
        last = [view.values(curve)[-1] for curve in curves]
        axes.set(ylim=loss_range(curves), xlim=(0, max(last, default=1) * 1.01))
        axes.ticklabel_format(axis="y", useOffset=False)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_variant(
    axes: Any, study: Study, variant: Variant, curves: Sequence[Curve], view: CurveView
) -> figures.DrawnLine:
    """Draws one variant."""
    place = study.variants.index(variant)
    colour, dashes = figures.line_style(place)
    for curve in curves:
        line = axes.plot(view.values(curve), curve.loss, color=colour, linewidth=0.5, alpha=0.35,
                         zorder=2)  # fmt: skip
        figures.tag(line, place, f"{variant.name}, {curve.name}", kind="seed")
    average = _mean_curve([curve for curve in curves if not curve.failed])
    if average is not None:
        mean = axes.plot(view.values(average), average.loss, color=colour, linestyle=dashes,
                         linewidth=1.4, zorder=3)  # fmt: skip
        figures.tag(mean, place, f"{variant.name}, mean")
    last = average or curves[0]
    end = float(view.values(last)[-1]), float(last.loss[-1])
    failed = Counter(sorted(float(view.values(curve)[-1]) for curve in curves if curve.failed))
    return figures.DrawnLine(place, variant.name, end, failed)


def draw_finals(axes: Any, findings: Findings, variants: Sequence[Variant]) -> None:
    """Draws a row for each variant: a dot for every seed above the mean with Student's 95 %
    interval, from three seeds on. The right edge has a cross with the number of failed runs, and a
    triangle for losses outside."""
    outcomes = [findings.outcomes[variant.name] for variant in variants]
    axes.set_xlim(*_loss_span(outcomes))
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.ticklabel_format(axis="x", useOffset=False)
    names = [figures.short_name(variant.name) for variant in variants]
    axes.set_yticks(range(len(names)), names, fontsize=figures.text_size(), parse_math=False)
    for row, (variant, label) in enumerate(zip(variants, axes.get_yticklabels(), strict=True)):
        place = findings.study.variants.index(variant)
        figures.tag([label], place, variant.name)
        words = f"{variant.name}: {len(outcomes[row].failed)} of {outcomes[row].ended} failed"
        with figures.tagging(axes, place, words):
            _draw_row(axes, row, place, variant, outcomes[row])
    _draw_vertical_ngrams(axes, findings.study.ngrams(findings.study.loss))
    # To the right: next to long names the axes are narrower than their label.
    axes.set_xlabel(f"final {findings.study.loss_name}, nats per token", loc="right")


def _draw_row(axes: Any, row: int, place: int, variant: Variant, outcome: Outcomes) -> None:
    losses, (colour, _) = list(outcome.losses.values()), figures.line_style(place)
    folders = {member.seed: member.folder.name for member in variant.results}
    points = [f"{variant.name}, seed {seed}: {folders[seed]}, {loss:.4f}"
              for seed, loss in outcome.losses.items()]  # fmt: skip
    at_edge = {"clip_on": False, "transform": axes.get_yaxis_transform()}
    above = [row - 0.18] * len(losses)
    figures.draw_dots(axes, (losses, above), place, variant.name, points)
    if any(loss > axes.get_xlim()[1] for loss in losses):
        axes.plot([1], above[:1], ">", color=colour, markersize=4, **at_edge)
    if losses:
        bar = axes.errorbar(np.mean(losses), row + 0.14, xerr=outcome.half, fmt="|", color=colour,
                            capsize=2, markersize=7, linewidth=1.2)  # fmt: skip
        figures.tag(bar.get_children(), place, f"{variant.name}, mean {np.mean(losses):.4f}")
    if outcome.failed:
        axes.plot([1], [row + 0.14], "x", color=colour, markersize=5, **at_edge)
        axes.annotate(
            f"{len(outcome.failed)} of {outcome.ended}", (1, row + 0.14),
            xycoords=axes.get_yaxis_transform(), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=figures.text_size() - 1, color=colour, annotation_clip=False,
        )  # fmt: skip


def _draw_vertical_ngrams(axes: Any, ngrams: Sequence[float]) -> None:
    """Draws the lines that are in view, with their names above the axes."""
    low, high = axes.get_xlim()
    shown = figures.ngrams_in_view(ngrams, low, high)
    if not shown:
        return
    points = 72 * axes.figure.get_size_inches()[0] / (4 if axes.figure.axes[1:] else 2)
    wanted = [(loss - low) / (high - low) for _, loss in shown]
    for (order, loss), x in zip(
        shown, figures.spread_apart(wanted, _NGRAM_ROOM / points), strict=True
    ):
        axes.axvline(loss, color=figures.LINE, linewidth=0.6, zorder=1)
        axes.annotate(
            ngram_name(order), (x, 1), xycoords="axes fraction", xytext=(0, 2),
            textcoords="offset points", ha="center", fontsize=figures.text_size() - 1,
            color=figures.GREY, annotation_clip=False,
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
