"""The final loss against the tokens of training, with the tokens that a variant saves."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from transformer_norms.comparison.price import LossCurve, Price
from transformer_norms.comparison.sentences import price_text
from transformer_norms.comparison.sweep_record import grouped, label
from transformer_norms.config.overrides import HORIZONS
from transformer_norms.report import figures
from transformer_norms.report.charts.lines import draw_line, draw_means
from transformer_norms.report.findings import Findings, sides_of
from transformer_norms.report.horizons.prices import horizon_of, loss_curves
from transformer_norms.report.study import Variant

_INSET = (0.5, 0.64, 0.5, 0.36)  # x, y, width and height, as shares of the axes


class _Line(NamedTuple):
    """A kind of variant by its tokens, the fewest first, the points of its curve, and the price of
    the longest one."""

    variants: Sequence[tuple[float, Variant]]
    points: Sequence[tuple[float, float]]
    price: Price | None


def _kind(variant: Variant) -> dict[str, Any]:
    return {key: value for key, value in variant.values.items() if key not in HORIZONS}


def horizon_panels(findings: Findings) -> Iterator[Any]:
    """Yields what draws the loss against the tokens of training, if a kind of variant has several
    horizons."""
    study = findings.study
    curves = loss_curves(study, sides_of(study, findings.outcomes, findings.slack))
    lines = []
    for kind in grouped(study.variants, _kind):
        known = sorted((at, place) for place, v in enumerate(kind) if (at := horizon_of(v)))
        if len(known) > 1:
            variants = [(float(at), kind[place]) for at, place in known]
            name = variants[-1][1].name
            points = _curve_points(curves[name])
            lines.append(_Line(variants, points, findings.prices.get(name)))
    if lines:
        yield partial(_draw, findings, lines)


def _curve_points(curve: LossCurve) -> list[tuple[float, float]]:
    """The mean loss at each horizon, and between horizons where a law is known."""
    if not curve.horizons:
        return []
    between = np.geomspace(curve.horizons[0], curve.horizons[-1], 200).tolist()
    sides = {at: curve.side_at(at) for at in sorted({*between, *curve.horizons})}
    means = {at: side.outcomes.mean for at, side in sides.items() if side}
    return [(at, mean) for at, mean in means.items() if mean is not None]


def _draw(findings: Findings, lines: Sequence[_Line], axes: Any) -> None:
    """Draws the means of each kind, and the curve through them that prices are read from."""
    from matplotlib.ticker import EngFormatter

    loss, drawn = findings.study.loss_name, []
    axes.set_xscale("log")
    for place, line in enumerate(lines):
        name = label(_kind(line.variants[-1][1])) or loss
        if line.price and line.price.saved is not None:
            name += f": {100 * line.price.saved:z.0f} %"
        means = draw_means(axes, findings, line.variants, place)
        end = draw_line(axes, line.points or means, place)
        failed = {x: len(f) for x, v in line.variants if (f := findings.outcomes[v.name].failed)}
        drawn.append(figures.DrawnLine(place, name, end, failed))
    ticks = sorted({tokens for line in lines for tokens, _ in line.variants})
    middle = [(ticks[0] * ticks[1]) ** 0.5] * (len(ticks) == 2)  # an axis has three numbers
    axes.set_xticks(sorted([*ticks, *middle]))
    axes.xaxis.set_major_formatter(EngFormatter(places=1, sep=""))
    axes.minorticks_off()
    axes.ticklabel_format(axis="y", useOffset=False)
    figures.finish_lines(axes, drawn, findings.study.ngrams(findings.study.loss))
    axes.set(xlabel="tokens of training", ylabel=f"final {loss}, nats per token")
    if any(line.price and line.price.reached for line in lines):
        _draw_gaps(axes, findings, lines)


def _draw_gaps(axes: Any, findings: Findings, lines: Sequence[_Line]) -> None:
    """Draws the end of the curves larger, where falling curves leave the axes empty. The gap of a
    variant reaches from its horizon to where the better one of it and its baseline has the loss
    that the other one has at the horizon."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    inset = axes.inset_axes(_INSET)
    losses: list[float] = []
    starts: list[float] = []
    for place, line in enumerate(lines):
        draw_line(inset, line.points, place)
        price, variant = line.price, line.variants[-1][1]
        if not (price and price.reached):
            continue
        pair = variant, findings.study.baseline_of(variant)
        means = [mean for one in pair if (mean := findings.outcomes[one.name].mean) is not None]
        losses, starts = [*losses, *means], [*starts, price.reached]
        colour, _ = figures.line_style(place)
        gap = [price.reached, price.horizon], [max(means)] * 2
        with figures.tagging(inset, place, f"{variant.name}: tokens saved, {price_text(price)}"):
            inset.plot(*gap, "|-", color=colour, linewidth=0.9, markersize=6)
    last = max(line.variants[-1][0] for line in lines)
    room, high = 0.2 * (last - min(starts)), max(losses) - min(losses)
    inset.set(xlim=(min(starts) - room, last + room),
              ylim=(min(losses) - 0.2 * high, max(losses) + 0.5 * high))  # fmt: skip
    inset.xaxis.set_major_locator(MaxNLocator(3, min_n_ticks=3))
    inset.xaxis.set_major_formatter(EngFormatter(sep=""))
    inset.yaxis.set_major_locator(MaxNLocator(3, min_n_ticks=3))
    inset.tick_params(labelsize=figures.text_size() - 1, colors=figures.GREY)
    inset.spines[["top", "right"]].set_visible(False)
