"""The final loss against the tokens of training, with the tokens that a variant saves."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from transformer_norms.comparison.price import Price
from transformer_norms.comparison.sweep_record import grouped, label
from transformer_norms.report import figures
from transformer_norms.report.charts.lines import HORIZONS, draw_line, draw_means
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant

Line = list[
    tuple[float, Variant]
]  # a kind of variant at its horizons in tokens, the shortest first


def horizon_panels(findings: Findings) -> Iterator[Any]:
    """Yields what draws the loss against the tokens of training, if a kind of variant has several
    horizons."""
    lines = [_along_tokens(kind) for kind in grouped(findings.study.variants, _kind)]
    lines = [line for line in lines if len(line) > 1]
    if lines:
        yield partial(_draw, findings, lines)


def _kind(variant: Variant) -> dict[str, Any]:
    return {key: value for key, value in variant.values.items() if key not in HORIZONS}


def _along_tokens(kind: Sequence[Variant]) -> Line:
    runs = [(variant, run) for variant in kind for run in variant.ended if run.finished]
    tokens = {variant.name: (float(run.summary.tokens), variant) for variant, run in runs}
    return sorted(tokens.values(), key=lambda one: one[0])


def _draw(findings: Findings, lines: Sequence[Line], axes: Any) -> None:
    """Draws the means of each kind, a monotone curve through them (Fritsch and Carlson 1980), and
    the gap of tokens to the baseline at the longest horizon."""
    from matplotlib.ticker import EngFormatter
    from scipy.interpolate import PchipInterpolator

    axes.set_xscale("log")
    drawn = []
    for place, line in enumerate(lines):
        longest = line[-1][1]
        name = label(_kind(longest)) or findings.study.loss_name
        points = draw_means(axes, findings, line, place)
        if len(points) > 1:
            x, means = np.array(points).T
            grid = np.geomspace(x[0], x[-1])
            curve = PchipInterpolator(np.log(x), means)(np.log(grid))
            points = [*zip(grid, curve, strict=True)]
        end = draw_line(axes, points, place)
        if price := findings.prices.get(longest.name):
            name += _saving(price)
            _draw_gap(axes, findings, longest, price, place)
        failed = {x: len(f) for x, one in line if (f := findings.outcomes[one.name].failed)}
        drawn.append(figures.DrawnLine(place, name, end, failed))
    ticks = sorted({tokens for line in lines for tokens, _ in line})
    middle = [(ticks[0] * ticks[1]) ** 0.5] * (len(ticks) == 2)  # an axis has three numbers
    axes.set_xticks(sorted([*ticks, *middle]))
    axes.xaxis.set_major_formatter(EngFormatter(places=1, sep=""))
    axes.minorticks_off()
    axes.ticklabel_format(axis="y", useOffset=False)
    figures.finish_lines(axes, drawn, findings.study.ngrams(findings.study.loss))
    axes.set_xlabel("tokens of training")
    axes.set_ylabel(f"final {findings.study.loss_name}, nats per token")


def _draw_gap(axes: Any, findings: Findings, variant: Variant, price: Price, place: int) -> None:
    """Draws a line from the horizon to where the better one of the two has the loss that the other
    one has at the horizon."""
    pair = variant, findings.study.baseline_of(variant)
    losses = [findings.outcomes[one.name].mean for one in pair]
    if price.reached is None or None in losses:
        return
    worse = max(loss for loss in losses if loss is not None)
    colour, _ = figures.line_style(place)
    with figures.tagging(axes, place, f"{variant.name}{_saving(price)}"):
        axes.plot([price.reached, price.horizon], [worse] * 2, "|-", color=colour, linewidth=0.8,
                  markersize=6, zorder=4)  # fmt: skip


def _saving(price: Price) -> str:
    """`, saves 9 %`, `, needs 12 % more`; nothing without an estimate."""
    if price.saved is None:
        return ""
    share = f"{100 * abs(price.saved):.0f} %"
    return f", saves {share}" if price.saved > 0 else f", needs {share} more"
