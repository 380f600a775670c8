"""rates.svg: the loss that each variant reaches at each learning rate that was tried."""

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
    ends = [_draw(axes, place, audit) for place, audit in enumerate(found)]
    axes.margins(x=0.04)
    name_ends(axes, [audit.variant.name for audit in found], ends)
    axes.set(xlabel=study.rate, ylabel="validation loss, nats per token")
    plain(axes)
    data = saved(figure, "svg")
    plt.close(figure)
    return {"rates.svg": data}


def _span(found: list[Audit]) -> tuple[float, float]:
    """Of all that did not diverge."""
    losses = [
        loss for audit in found for rate, loss in audit.losses.items() if rate not in audit.diverged
    ]
    if not losses:
        return 0.0, 1.0
    room = 0.06 * (max(losses) - min(losses)) or 0.1
    return min(losses) - room, max(losses) + 2 * room


def _draw(axes: Any, place: int, audit: Audit) -> tuple[float, float]:
    """A line through what did not diverge, the best as a ring, diverged rates at the upper edge.
    Where the line ends."""
    colour, dashes = style(place)
    calm = {rate: loss for rate, loss in audit.losses.items() if rate not in audit.diverged}
    axes.plot(list(calm), list(calm.values()), "o", linestyle=dashes, color=colour, markersize=3,
              linewidth=1.2)  # fmt: skip
    top = axes.get_ylim()[1]
    for rate in sorted(audit.diverged):
        axes.plot([rate], [top], "x", color=colour, markersize=6, clip_on=False)
    if calm:
        best = min(calm, key=calm.__getitem__)
        axes.plot([best], [calm[best]], "o", markersize=8, markerfacecolor="none", color=colour)
        return list(calm.items())[-1]
    return max(audit.losses), top
