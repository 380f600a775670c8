"""A row for each difference from a baseline: the seeds, their mean and its interval."""

from statistics import median
from typing import Any

from transformer_norms.comparison.verdict import Comparison
from transformer_norms.report.figures import (
    GREY,
    LINE,
    line_style,
    style_axes,
    tag,
    tagging,
    text_size,
)
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant
from transformer_norms.text_tables import printable

BAND = "#eeeeee"  # of differences too small to count
_LONGEST = 14  # characters of a baseline's name below the axis
_FAR = 4  # times the median of the rows' extents: a difference beyond this is drawn at the edge


def limit_of(findings: Findings) -> float:
    """The difference at either end of the axis, in nats per token. A row with much larger
    differences goes on beyond the edge, so that the dots of the other rows stay apart."""
    extents = []
    for variant in findings.compared:
        compared = findings.comparisons[variant.name]
        ends = [compared.low, compared.high, compared.difference]
        if sizes := [abs(x) for x in (*ends, *compared.differences) if x]:
            extents.append(max(sizes))
    limit = min(_FAR * median(extents), max(extents)) if extents else 0.0
    return 1.1 * max(findings.study.effect, limit) or 1.0


def draw_difference_rows(axes: Any, findings: Findings) -> None:
    """Draws a dot for every seed above the mean with its 95 % interval, zero, and the band of
    differences too small to count. An arrow at the edge is an interval that goes on. A variant with
    failed runs has words only: no difference is known."""
    study, limit = findings.study, limit_of(findings)
    axes.set(xlim=(-limit, limit), ylim=(len(findings.compared) - 0.5, -0.5))
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.axvspan(-study.effect, study.effect, color=BAND, linewidth=0, zorder=0)
    axes.axvline(0, color=LINE, linewidth=0.8, zorder=1)
    names = [printable(variant.name) for variant in findings.compared]
    axes.set_yticks(range(len(names)), names, parse_math=False)
    for row, (variant, label) in enumerate(
        zip(findings.compared, axes.get_yticklabels(), strict=True)
    ):
        place, compared = study.variants.index(variant), findings.comparisons[variant.name]
        tag([label], place, variant.name)
        with tagging(axes, place, f"{variant.name}: {_difference_words(compared)}"):
            _draw_row(axes, row, place, variant, compared, limit)
    baselines = {variant.baseline for variant in findings.compared}
    name = (baselines.pop() or "") if len(baselines) == 1 else ""
    # A long name would leave no room for the words beside it.
    of = f"loss of {name}" if 0 < len(name) <= _LONGEST else "baseline's"
    axes.set_xlabel(f"loss \N{MINUS SIGN} {of}, nats per token", loc="right", parse_math=False)
    style_axes(axes)


def _difference_words(compared: Comparison) -> str:
    if compared.difference is None:
        return "runs failed" if compared.verdict == "failed" else "no pair of seeds"
    ends = (compared.low, compared.high)
    low, high = ("no bound" if end is None else f"{end:+.4f}" for end in ends)
    return f"{compared.difference:+.4f} nats, 95 % interval {low} to {high}"


def _draw_row(
    axes: Any, row: int, place: int, variant: Variant, compared: Comparison, limit: float
) -> None:
    colour, _ = line_style(place)
    at_edge = {"clip_on": False, "color": colour, "linestyle": "", "markeredgewidth": 0}
    if compared.difference is None:
        axes.annotate(
            _difference_words(compared), (0, row), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=text_size() - 1, color=GREY,
        )  # fmt: skip
        return
    pairs = zip(compared.seeds, compared.differences, strict=True)
    inside = {seed: x for seed, x in pairs if abs(x) <= limit}
    dots = axes.plot([*inside.values()], [row - 0.18] * len(inside), "o", color=colour,
                     markersize=2.8, markeredgewidth=0, alpha=0.7)  # fmt: skip
    tag(dots, place, variant.name,
        [f"{variant.name}, seed {seed}: {x:+.4f} nats" for seed, x in inside.items()])  # fmt: skip
    if (compared.low, compared.high) != (None, None):
        low = -limit if compared.low is None else max(-limit, compared.low)
        high = limit if compared.high is None else min(limit, compared.high)
        axes.plot([low, high], [row + 0.14] * 2, color=colour, linewidth=1.2)
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
            fontsize=text_size() - 1, color=colour,
        )  # fmt: skip
