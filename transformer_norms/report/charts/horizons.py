"""The tokens that variants save, in the drawing of the loss against tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_norms.report import figures
from transformer_norms.report.findings import Findings, sides_of
from transformer_norms.report.horizons.prices import loss_curves
from transformer_norms.report.study import Variant

_INSET = (0.5, 0.64, 0.5, 0.36)  # x, y, width and height, as shares of the axes
Points = Sequence[tuple[float, float]]  # tokens and losses


def curve_points(findings: Findings) -> dict[str, Points]:
    """The curve of each variant over its horizons, by its name: the mean loss at each, and between
    two where a law is known."""
    sides = sides_of(findings.study, findings.outcomes, findings.slack)
    points: dict[str, Points] = {}
    for name, curve in loss_curves(findings.study, sides).items():
        if not (at_horizons := curve.horizons):
            continue
        between = np.geomspace(at_horizons[0], at_horizons[-1], 200).tolist()
        tokens = {*at_horizons, *between}
        known = [(at, side.outcomes.mean) for at in sorted(tokens) if (side := curve.side_at(at))]
        points[name] = [(at, mean) for at, mean in known if mean is not None]
    return points


def saved_text(findings: Findings, variant: Variant) -> str:
    """`: 9 %`: the share of tokens that a variant saves; nothing without an estimate."""
    price = findings.prices.get(variant.name)
    return f": {100 * price.saved:z.0f} %" if price and price.saved is not None else ""


def draw_gaps(
    axes: Any, findings: Findings, longest: Sequence[Variant], curves: Mapping[str, Points]
) -> None:
    """Draws the end of the curves larger, where falling curves leave the axes empty. `longest` are
    the variants of the longest horizons. The gap of each reaches from its horizon to where the
    better one of it and its baseline has the loss that the other one has at the horizon."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    found = [(place, v, findings.prices.get(v.name)) for place, v in enumerate(longest)]
    gaps = [
        (place, v, price.horizon, price.horizon * (1 - abs(price.saved)))
        for place, v, price in found if price and price.saved is not None
    ]  # fmt: skip
    if not gaps:
        return
    inset = axes.inset_axes(_INSET)
    for place, variant in enumerate(longest):
        colour, dashes = figures.line_style(place)
        curve = zip(*curves.get(variant.name, ()), strict=True)
        inset.plot(*curve, color=colour, linestyle=dashes, linewidth=1)
    losses: list[float] = []
    for place, variant, horizon, reached in gaps:
        pair = variant, findings.study.baseline_of(variant)
        means = [mean for one in pair if (mean := findings.outcomes[one.name].mean) is not None]
        losses += means
        inset.plot([reached, horizon], [max(means)] * 2, "|-", markersize=6,
                   color=figures.line_style(place)[0], linewidth=0.9)  # fmt: skip
    first, last = min(reached for *_, reached in gaps), max(horizon for *_, horizon, _ in gaps)
    wide, high = last - first or 0.1 * last, max(losses) - min(losses) or 0.01
    inset.set(xlim=(first - 0.2 * wide, last + 0.2 * wide),
              ylim=(min(losses) - 0.2 * high, max(losses) + 0.5 * high))  # fmt: skip
    for axis in (inset.xaxis, inset.yaxis):
        axis.set_major_locator(MaxNLocator(3, min_n_ticks=3))
    inset.xaxis.set_major_formatter(EngFormatter(sep=""))
    inset.tick_params(labelsize=figures.text_size() - 1, colors=figures.GREY)
    inset.spines[["top", "right"]].set_visible(False)
