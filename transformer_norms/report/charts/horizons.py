"""The final loss against the tokens of training, with the tokens that a variant saves."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from transformer_norms.comparison.price import LossCurve, Price
from transformer_norms.comparison.sentences import price_text
from transformer_norms.comparison.sweep_record import grouped, label
from transformer_norms.report import figures
from transformer_norms.report.charts.lines import draw_line, draw_means
from transformer_norms.report.findings import Findings, sides_of
from transformer_norms.report.horizons.prices import horizon_of, loss_curves, without_horizon
from transformer_norms.report.study import Variant

Line = list[tuple[float, Variant]]  # one kind of variant by its tokens, the fewest first


def horizon_panels(findings: Findings) -> Iterator[Any]:
    """Yields what draws the loss against the tokens of training, if a kind of variant has several
    horizons."""
    kinds = grouped(findings.study.variants, without_horizon)
    lines = [sorted((at, v) for v in kind if (at := horizon_of(v))) for kind in kinds]
    if lines := [line for line in lines if len(line) > 1]:
        yield partial(_draw, findings, lines)


def _draw(findings: Findings, lines: Sequence[Line], axes: Any) -> None:
    """Draws the means of each kind, the curve through them that prices are read from, and the gap
    of tokens to the baseline at the longest horizon."""
    from matplotlib.ticker import EngFormatter

    study = findings.study
    curves = loss_curves(study, sides_of(study, findings.outcomes, findings.slack))
    axes.set_xscale("log")
    drawn = []
    for place, line in enumerate(lines):
        longest = line[-1][1]
        name = label(without_horizon(longest)) or study.loss_name
        draw_means(axes, findings, line, place)
        end = draw_line(axes, _curve_points(curves[longest.name]), place)
        if price := findings.prices.get(longest.name):
            name += "" if price.saved is None else f": {100 * price.saved:z.0f} %"
            _draw_gap(axes, findings, longest, price, place)
        failed = {x: len(f) for x, one in line if (f := findings.outcomes[one.name].failed)}
        drawn.append(figures.DrawnLine(place, name, end, failed))
    ticks = sorted({tokens for line in lines for tokens, _ in line})
    middle = [(ticks[0] * ticks[1]) ** 0.5] * (len(ticks) == 2)  # an axis has three numbers
    axes.set_xticks(sorted([*ticks, *middle]))
    axes.xaxis.set_major_formatter(EngFormatter(places=1, sep=""))
    axes.minorticks_off()
    axes.ticklabel_format(axis="y", useOffset=False)
    figures.finish_lines(axes, drawn, study.ngrams(study.loss))
    axes.set_xlabel("tokens of training")
    axes.set_ylabel(f"final {study.loss_name}, nats per token")


def _curve_points(curve: LossCurve) -> list[tuple[float, float]]:
    """The mean loss at each horizon, and between horizons where a law is known."""
    if not curve.horizons:
        return []
    between = np.geomspace(curve.horizons[0], curve.horizons[-1]).tolist()
    sides = {at: curve.side_at(at) for at in sorted({*between, *curve.horizons})}
    means = {at: side.outcomes.mean for at, side in sides.items() if side}
    return [(at, mean) for at, mean in means.items() if mean is not None]


def _draw_gap(axes: Any, findings: Findings, variant: Variant, price: Price, place: int) -> None:
    """Draws a line from the horizon to where the better one of the two has the loss that the other
    one has at the horizon."""
    pair = variant, findings.study.baseline_of(variant)
    losses = [loss for one in pair if (loss := findings.outcomes[one.name].mean) is not None]
    if price.reached is None:
        return
    colour, _ = figures.line_style(place)
    with figures.tagging(axes, place, f"{variant.name}: tokens saved, {price_text(price)}"):
        axes.plot([price.reached, price.horizon], [max(losses)] * 2, "|-", color=colour,
                  linewidth=0.8, markersize=6, zorder=4)  # fmt: skip
