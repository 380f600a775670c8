"""init_gradients.svg: the last gradient by depth, and gradients and streams by block."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from transformer_norms.analysis.init_gradients.law import Variant, bounds, geometric
from transformer_norms.analysis.init_gradients.measuring import Row
from transformer_norms.report.drawing import FONT, GREY, name_ends, plain, pyplot, saved, style

_WIDTH, _HEIGHT, _PER_NAME = 10.0, 3.4, 0.15  # inches
_ASIDE = 0.05  # of an octave, between the dots of neighbours
_OFF = 1.2  # times the outermost dot, where a reference line runs
_DOT: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 2, "markeredgewidth": 0}
_REFERENCE: dict[str, Any] = {"color": GREY, "linewidth": 0.6, "zorder": 1}
_BELOW: dict[str, Any] = {  # a word under the right end of what it names
    "xytext": (0, -2), "textcoords": "offset points", "ha": "right", "va": "top",
    "color": GREY, "fontsize": FONT - 1,
}  # fmt: skip
End = tuple[float, float]


def figure(found: Sequence[Variant], depths: Sequence[int]) -> bytes:
    """Three panels, logarithmic upwards: each seed a dot, what seeds have in common a line."""
    plt = pyplot()
    height = max(_HEIGHT, _PER_NAME * len(found) + 1)
    drawn, panels = plt.subplots(1, 3, figsize=(_WIDTH, height), layout="constrained")
    deepest = max(depths)
    for axes in panels:
        axes.set_yscale("log", nonpositive="mask")
    gradients, down, square = panels
    ends = [
        _by_depth(gradients, found, depths),
        _by_block(down, found, deepest, geometric, lambda row: row.down),
        _by_block(square, found, deepest, fmean, lambda row: row.square),
    ]
    if any(variant.bound == -0.5 for variant in found):
        _bounds(square, deepest)
    for axes, own in zip(panels, ends, strict=True):
        _names(axes, [variant.name for variant in found], own)
        _ticks(axes)
        plain(axes)
    gradients.set(xlabel="depth N, blocks", ylabel="|dL/dW_down| in the last block")
    down.set(xlabel=f"block of {deepest}", ylabel="|dL/dW_down| in the block")
    square.set(xlabel=f"block of {deepest}", ylabel="mean square of the stream after the block")
    data = saved(drawn, "svg")
    plt.close(drawn)
    return data


def _by_depth(axes: Any, found: Sequence[Variant], depths: Sequence[int]) -> list[End]:
    """The dots of neighbours stand a little aside of each other; the lines do not."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, [str(depth) for depth in depths], minor=False)
    axes.xaxis.minorticks_off()
    ends = []
    for place, variant in enumerate(found):
        colour, dashes = style(place)
        last = variant.last
        aside = 2 ** (_ASIDE * (place - (len(found) - 1) / 2))
        axes.plot([row.depth * aside for row in last], [row.down for row in last],
                  color=colour, alpha=0.7, **_DOT)  # fmt: skip
        law = variant.law
        values = [law(depth) if law else 0.0 for depth in depths]
        axes.plot(depths, values, color=colour, linestyle=dashes, linewidth=1.2)
        ends.append((float(depths[-1]), values[-1]))
    _slopes(axes, found, depths)
    return ends


def _slopes(axes: Any, found: Sequence[Variant], depths: Sequence[int]) -> None:
    """Xiong's two: 0 above all dots, -1/2 below them."""
    dots = [(r.depth, r.down) for variant in found for r in variant.last if 0 < r.down < np.inf]
    if not dots:
        return
    top = _OFF * max(y for _, y in dots)
    low = min(y * n**0.5 for n, y in dots) / _OFF
    for label, line in (
        ("0", [top for _ in depths]),
        ("-1/2", [low / n**0.5 for n in depths]),
    ):
        axes.plot(depths, line, **_REFERENCE)
        axes.annotate(f"slope {label}", (depths[-1], line[-1]), **_BELOW)


def _by_block(
    axes: Any,
    found: Sequence[Variant],
    depth: int,
    mean: Callable[[Sequence[float]], float],
    value: Callable[[Row], float],
) -> list[End]:
    ends = []
    for place, variant in enumerate(found):
        colour, dashes = style(place)
        rows = variant.model(depth)
        axes.plot([row.block for row in rows], [value(row) for row in rows],
                  color=colour, alpha=0.25, rasterized=True, **_DOT)  # fmt: skip
        line = variant.by_block(depth, mean, value)
        axes.plot(range(1, depth + 1), line, color=colour, linestyle=dashes, linewidth=1.2)
        ends.append((float(depth), line[-1]))
    axes.set_xticks(sorted({1, *(round(depth * part / 4) for part in range(1, 5))}))
    return ends


def _bounds(axes: Any, depth: int) -> None:
    blocks = list(range(1, depth + 1))
    low, high = zip(*map(bounds, blocks), strict=True)
    axes.fill_between(blocks, low, high, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    axes.annotate("bounds of pre", (depth, low[-1]), **_BELOW)


def _ticks(axes: Any) -> None:
    """As many numbers as say where a line is: all decades, and parts of them where they are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    parts = (1,) if high / low > 1e3 else (1, 2, 5) if high / low > 10 else (1, 2, 3, 5, 7)
    axes.yaxis.set_major_locator(LogLocator(subs=parts))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _names(axes: Any, names: Sequence[str], ends: Sequence[End]) -> None:
    """`name_ends` reckons in straight scales, which the logarithms have."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    beside = axes.twinx()
    beside.set_ylim(np.log10(low), np.log10(high))
    beside.set_axis_off()
    shown = [(x, np.log10(y) if 0 < y < np.inf else np.log10(low)) for x, y in ends]
    name_ends(beside, names, shown)
