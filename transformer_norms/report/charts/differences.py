"""A row for each difference: the seeds, their mean, its interval and the bounds that decide."""

from collections.abc import Sequence
from math import isfinite
from statistics import median
from typing import Any

from transformer_norms.comparison.sentences import difference_and_interval
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.report import figures
from transformer_norms.report.findings import Findings
from transformer_norms.text_tables import printable

BAND = "#eeeeee"  # of differences within the margin
LEGEND = 0.34  # inches above the axes
_BOUNDS = "bounds: for all comparisons at once,\nwith the tuning error; they decide"
_THICK, _THIN = 2.4, 0.8
_FAR = 4  # times the median of the rows' extents: a difference beyond this is drawn at the edge
Row = tuple[int, str, Comparison]  # the place that sets its style, its name


def difference_rows(findings: Findings) -> list[Row]:
    """The variants that have a baseline, and the contrasts that are differences in nats."""
    study = findings.study
    contrasts = [c for c in study.contrasts if not c.over and c.text in findings.contrasts]
    rows = [(study.variants.index(v), v.name, findings.every[v.name]) for v in findings.compared]
    further = enumerate(contrasts, start=len(study.variants))
    return rows + [(place, c.title, findings.every[c.text]) for place, c in further]


def limit_of(rows: Sequence[Row], margin: float) -> float:
    """The difference at either end of the axis, in nats per token. A row with much larger
    differences goes on beyond the edge, so that the dots of the other rows stay apart."""
    extents = []
    for _, _, c in rows:
        every = [*(c.interval or ()), *(c.bounds or ()), *c.differences]
        if sizes := [abs(x) for x in every if x and isfinite(x)]:
            extents.append(max(sizes))
    limit = min(_FAR * median(extents), max(extents)) if extents else 0.0
    return 1.1 * max(margin, limit) or 1.0


def draw_difference_rows(axes: Any, rows: Sequence[Row], margin: float, budget: str = "") -> None:
    """Draws a dot for every seed above the mean, a thick bar for its 95 % interval and a thin one
    for the bounds that decide, zero, and the band of the margin. An arrow at the edge is an
    interval that goes on. A comparison with failed runs has words only: no difference is known."""
    limit = limit_of(rows, margin)
    axes.set(xlim=(-limit, limit), ylim=(len(rows) - 0.5, -0.5))
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.axvspan(-margin, margin, color=BAND, linewidth=0, zorder=0)
    axes.axvline(0, color=figures.LINE, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(rows)), [printable(name) for _, name, _ in rows], parse_math=False)
    for at, ((place, name, c), label) in enumerate(zip(rows, axes.get_yticklabels(), strict=True)):
        figures.tag([label], place, name)
        with figures.tagging(axes, place, f"{name}: {_difference_words(c)}"):
            _draw_row(axes, at, place, name, c, limit)
    _draw_legend(axes, rows)
    axes.set_xlabel(f"difference{budget}, nats per token", loc="right")


def _draw_legend(axes: Any, rows: Sequence[Row]) -> None:
    """Draws the legend above the axes, as wide as the figure, of what the rows have."""
    from matplotlib.lines import Line2D

    dot = Line2D([], [], marker="o", linestyle="", markersize=2.8, color=figures.GREY)
    thick, thin = (Line2D([], [], color=figures.GREY, linewidth=width) for width in (_THICK, _THIN))
    marks = {
        "a seed": (dot, any(c.differences for *_, c in rows)),
        "95 % interval": (thick, any(c.interval for *_, c in rows)),
        _BOUNDS: (thin, any(c.bounds for *_, c in rows)),
    }
    shown = {words: mark for words, (mark, there) in marks.items() if there}
    axes.legend(
        shown.values(), shown.keys(), loc="lower right", bbox_to_anchor=(1, 1), ncols=2,
        frameon=False, borderpad=0, borderaxespad=0.2, columnspacing=1, handlelength=1.6,
        fontsize=figures.text_size() - 1, labelcolor=figures.GREY,
    )  # fmt: skip


def _difference_words(compared: Comparison) -> str:
    if compared.difference is None:
        return "runs failed" if compared.verdict == "failed" else "no pair of seeds"
    difference, interval = difference_and_interval(compared)
    return f"{difference} nats, {interval}"


def _draw_row(
    axes: Any, row: int, place: int, name: str, compared: Comparison, limit: float
) -> None:
    colour, _ = figures.line_style(place)
    at_edge = {"clip_on": False, "color": colour, "linestyle": "", "markeredgewidth": 0}
    if compared.difference is None:
        axes.annotate(
            _difference_words(compared), (0, row), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=figures.text_size() - 1, color=figures.GREY,
        )  # fmt: skip
        return
    pairs = zip(compared.seeds, compared.differences, strict=True)
    inside = [(seed, x) for seed, x in pairs if abs(x) <= limit]  # joined studies repeat seeds
    at = [x for _, x in inside], [row - 0.18] * len(inside)
    words = [f"{name}, seed {seed}: {x:+.4f} nats" for seed, x in inside]
    figures.draw_dots(axes, at, place, name, words)
    for interval, width in ((compared.bounds, _THIN), (compared.interval, _THICK)):
        if interval is None:
            continue
        low, high = max(-limit, interval[0]), min(limit, interval[1])
        axes.plot([low, high], [row + 0.14] * 2, color=colour, linewidth=width)
        for end, edge, mark in ((low, -limit, "<"), (high, limit, ">")):
            if end == edge:
                axes.plot([edge], [row + 0.14], marker=mark, markersize=4, **at_edge)
    if abs(compared.difference) <= limit:
        axes.plot([compared.difference], [row + 0.14], "|", color=colour, markersize=7)
    else:
        right = compared.difference > 0
        axes.annotate(
            f"{compared.difference:+.3g}".replace("-", "\N{MINUS SIGN}"),
            (limit if right else -limit, row), xytext=(-4 if right else 4, 1),
            textcoords="offset points", ha="right" if right else "left", va="bottom",
            fontsize=figures.text_size() - 1, color=colour,
        )  # fmt: skip
