"""rates.svg: the loss that each variant reaches at each learning rate that was tried."""

from math import isfinite
from typing import Any

from transformer_norms.report.drawing import name_ends, plain, pyplot, saved, style
from transformer_norms.report.study import Study
from transformer_norms.report.tuning import Audit, audits

_HEIGHT, _PER_NAME = 3.4, 0.15  # inches


def rates(study: Study) -> dict[str, bytes]:
    """The figure as an SVG; none where nothing was tuned."""
    found = [audit for audit in audits(study) if audit.losses]
    if not found or study.rate is None:
        return {}
    plt = pyplot()
    height = max(_HEIGHT, _PER_NAME * len(found) + 1)
    figure, axes = plt.subplots(figsize=(5.2, height), layout="constrained")
    if min(study.tune[study.rate]) > 0:
        axes.set_xscale("log")
    axes.set_ylim(*_span(found))
    ends = [_draw(axes, place, audit, study.rate) for place, audit in enumerate(found)]
    axes.margins(x=0.04)
    name_ends(axes, [audit.variant.name for audit in found], ends)
    axes.set(xlabel=study.rate, ylabel="validation loss, nats per token")
    plain(axes)
    data = saved(figure, "svg")
    plt.close(figure)
    return {"rates.svg": data}


def _span(found: list[Audit]) -> tuple[float, float]:
    """Of all that a point is drawn for."""
    losses = [loss for audit in found for loss in _points(audit).values()]
    if not losses:
        return 0.0, 1.0
    room = 0.06 * (max(losses) - min(losses)) or 0.1
    return min(losses) - room, max(losses) + 2 * room


def _points(audit: Audit) -> dict[float, float]:
    """The losses at the rates at which a run finished."""
    return {
        rate: loss
        for rate, loss in audit.losses.items()
        if rate not in audit.lost and isfinite(loss)
    }


def _draw(axes: Any, place: int, audit: Audit, key: str) -> tuple[float, float]:
    """A line through the rates at which a run finished, the one that was chosen in a ring; a cross
    at the upper edge where one diverged. Where the line ends."""
    colour, dashes = style(place)
    points = _points(audit)
    axes.plot(
        list(points), list(points.values()), "o", linestyle=dashes, color=colour, markersize=3,
        linewidth=1.2,
    )  # fmt: skip
    top = axes.get_ylim()[1]
    for rate in sorted(audit.diverged):
        axes.plot([rate], [top], "x", color=colour, markersize=6, clip_on=False)
    best = (audit.variant.tuned.best if audit.variant.tuned else None) or {}
    for rate in [rate for rate in points if rate == best.get(key)]:
        axes.plot([rate], [points[rate]], "o", markersize=8, markerfacecolor="none", color=colour)
    return list(points.items())[-1] if points else (max(audit.losses), top)
