"""The final loss against the time of a step: which variants are worth their time."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from transformer_norms.report import figures
from transformer_norms.report.fairness import obstacles
from transformer_norms.report.findings import Findings
from transformer_norms.report.measured.cost import CostRatio, cost_ratio, step_seconds
from transformer_norms.report.study import Variant


class _Point(NamedTuple):
    """A variant, its place in the study, and its step time, that of the reference being 1."""

    variant: Variant
    place: int
    time: CostRatio


def step_time_panels(findings: Findings) -> Iterator[Any]:
    """Yields what draws the loss against the time of a step, if the times of all variants whose
    losses may be compared can be compared. The reference is the baseline of the longest horizon.
    A variant of which a run failed is left out: a mean of the others flatters it."""
    study, outcomes = findings.study, findings.outcomes
    trained = [v for v in study.variants if v.ended and not outcomes[v.name].failed]
    known = [v for v in study.baselines if v in trained]
    if not known:
        return
    reference = max(known, key=lambda v: v.ended[0].summary.tokens or 0)
    points = [
        _Point(variant, place, time)
        for place, variant in enumerate(study.variants)
        if variant in trained and not obstacles(reference.ended[0], variant.ended[0])
        if (time := cost_ratio(study, variant, reference, step_seconds))
    ]
    if len(points) > 1 and not any(point.time.apart for point in points):
        yield partial(_draw, findings, points)


def _draw(findings: Findings, points: list[_Point], axes: Any) -> None:
    """Draws each mean with its 95 % interval and the quartiles of the time, and rings and
    a line along the front: no other variant has a lower loss in less time."""
    outcomes = [findings.outcomes[point.variant.name] for point in points]
    at = [(p.time.median, one.mean or 0.0) for p, one in zip(points, outcomes, strict=True)]
    front = sorted((x, y) for x, y in at if not any(time < x and loss < y for time, loss in at))
    for (variant, place, time), one in zip(points, outcomes, strict=True):
        colour, _ = figures.line_style(place)
        sides = [[time.median - time.low], [time.high - time.median]]
        bar = axes.errorbar(time.median, one.mean, xerr=sides, yerr=one.half, fmt="o", color=colour,
                            markersize=3.5, linewidth=0.9, capsize=1.5)  # fmt: skip
        figures.tag(
            bar.get_children(), place, f"{variant.name}: {one.mean:.4f} nats, step time {time}"
        )
    axes.step(*zip(*front, strict=True), where="post", color=figures.LINE, linewidth=1, zorder=1)
    axes.plot(*zip(*front, strict=True), "o", markersize=8, markerfacecolor="none",
              color=figures.GREY, markeredgewidth=0.8)  # fmt: skip
    axes.ticklabel_format(useOffset=False)
    ends = zip(points, at, strict=True)
    figures.finish_lines(axes, [figures.DrawnLine(p.place, p.variant.name, end) for p, end in ends])
    axes.set_xlabel("time of a step, baseline = 1", loc="right")
    axes.set_ylabel(f"final {findings.study.loss_name}, nats per token")
