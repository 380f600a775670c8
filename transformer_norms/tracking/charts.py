"""What was probed, drawn: a chart for each measure and part, a line for each block.

One drawing is one small file. W&B's own charts of many lines would be a table each, which is an
artifact of the run, some twenty a run, and beside them a dozen numbers that are no metrics.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from typing import Any

from transformer_norms.report.drawing import FONT, GREY, plain, pyplot, saved
from transformer_norms.training.measures import MEASURES, Measure, Place, place_of

_COLUMNS, _WIDTH, _HEIGHT = 3, 3.6, 2.5  # inches

Line = tuple[list[float], list[float]]  # tokens and values, NaN where one was not finite
Charts = dict[tuple[str, str], dict[Place, Line]]  # by measure and part


def drawn(rows: Iterable[Mapping[str, Any]]) -> str:
    """The charts of the rows of a metrics.jsonl as an SVG; '' where nothing was probed."""
    charts = of_rows(rows)
    if not charts:
        return ""
    plt = pyplot()
    lines = -(-len(charts) // _COLUMNS)
    figure, every = plt.subplots(
        lines, _COLUMNS, figsize=(_COLUMNS * _WIDTH, lines * _HEIGHT),
        squeeze=False,
    )  # fmt: skip
    # By hand: matplotlib's own layouts take longer than all the rest.
    figure.subplots_adjust(0.07, 0.5 / lines / _HEIGHT, 0.98, 1 - 0.3 / lines / _HEIGHT, 0.25, 0.5)
    for axes in every.flat[len(charts) :]:
        axes.remove()
    for axes, (measure, part) in zip(every.flat, charts, strict=False):
        _draw(axes, plt.colormaps["viridis"], measure, part, charts[measure, part])
    data = saved(figure, "svg")
    plt.close(figure)
    return data.decode()


def of_rows(rows: Iterable[Mapping[str, Any]]) -> Charts:
    """In the order of MEASURES; what stands outside the blocks shares a chart."""
    found: Charts = {}
    for row in rows:
        for key, value in row.items():
            if (place := place_of(key)) is not None:
                part = "" if place.block is None else place.part
                tokens, values = found.setdefault((place.measure, part), {}).setdefault(
                    place, ([], [])
                )
                tokens.append(row["tokens"])
                values.append(nan if value is None else value)
    order = [*MEASURES, *sorted({measure for measure, _ in found} - MEASURES.keys())]
    return {chart: found[chart] for chart in sorted(found, key=lambda c: (order.index(c[0]), c))}


def _draw(axes: Any, colours: Any, measure: str, part: str, lines: Mapping[Place, Line]) -> None:
    from matplotlib.ticker import EngFormatter

    about = MEASURES.get(measure, Measure(measure, ""))
    places = sorted(lines, key=lambda place: (place.block is None, place.block or 0, place.part))
    depth = max([place.block for place in places if place.block is not None], default=0)
    for place in places:
        if place.block is None:
            look = {"color": GREY, "linestyle": "--", "label": place.part}
        else:
            look = {"color": colours(0.9 * place.block / max(1, depth))}
            look["label"] = f"block {place.block}" if place.block in (0, depth) else "_"
        axes.plot(*lines[place], linewidth=1, **look)
    if about.log and _positive([value for _, values in lines.values() for value in values]):
        axes.set_yscale("log")
    axes.set_title(" ".join(filter(None, [about.title, part])), fontsize=FONT + 1, parse_math=False)
    axes.set_xlabel("tokens")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(fontsize=FONT - 1, frameon=False, loc="upper right")
    plain(axes)


def _positive(values: Sequence[float]) -> bool:
    known = [value for value in values if value == value]
    return bool(known) and min(known) > 0
