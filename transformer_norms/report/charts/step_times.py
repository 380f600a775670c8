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
    """A variant, its place in the study, its mean loss in nats per token with half its interval,
    and the time of a step, that of the reference being 1."""

    variant: Variant
    place: int
    loss: float
    half: float | None
    time: CostRatio


def step_time_panels(findings: Findings) -> Iterator[Any]:
    """Yields what draws the loss against the time of a step, if the times of all variants whose
    losses may be compared can be compared. The reference is the baseline of the longest horizon."""
    known = [v for v in findings.study.baselines if not _failed(findings, v)]
    reference = max(known, key=lambda v: v.ended[0].summary.tokens or 0, default=None)
    if reference is None:
        return
    points = list(_points(findings, reference))
    if len(points) > 1 and not any(point.time.apart for point in points):
        yield partial(_draw, findings, points)


def _points(findings: Findings, reference: Variant) -> Iterator[_Point]:
    for place, variant in enumerate(findings.study.variants):
        outcomes = findings.outcomes[variant.name]
        if outcomes.mean is None or _failed(findings, variant):
            continue
        time = cost_ratio(variant, reference, step_seconds)
        if time and not obstacles(reference.ended[0], variant.ended[0]):
            yield _Point(variant, place, outcomes.mean, outcomes.half, time)


def _failed(findings: Findings, variant: Variant) -> bool:
    """Whether it has no results, or one that failed: a mean of the others flatters it."""
    return not variant.ended or bool(findings.outcomes[variant.name].failed)


def _draw(findings: Findings, points: list[_Point], axes: Any) -> None:
    """Draws each mean with its 95 % interval and the quartiles of the time, and rings and
    a line along the front: no other variant has a lower loss in less time."""
    at = [(point.time.median, point.loss) for point in points]
    front = sorted((x, y) for x, y in at if not any(time < x and loss < y for time, loss in at))
    for variant, place, loss, half, time in points:
        colour, _ = figures.line_style(place)
        sides = [[time.median - time.low], [time.high - time.median]]
        bar = axes.errorbar(time.median, loss, xerr=sides, yerr=half, fmt="o", color=colour,
                            markersize=3.5, linewidth=0.9, capsize=1.5)  # fmt: skip
        figures.tag(bar.get_children(), place, f"{variant.name}: {loss:.4f} nats, step time {time}")
    axes.step(*zip(*front, strict=True), where="post", color=figures.LINE, linewidth=1, zorder=1)
    axes.plot(*zip(*front, strict=True), "o", markersize=8, markerfacecolor="none",
              color=figures.GREY, markeredgewidth=0.8)  # fmt: skip
    axes.ticklabel_format(useOffset=False)
    ends = zip(points, at, strict=True)
    figures.finish_lines(axes, [figures.DrawnLine(p.place, p.variant.name, end) for p, end in ends])
    axes.set_xlabel("time of a step, baseline = 1", loc="right")
    axes.set_ylabel(f"final {findings.study.loss_name}, nats per token")
