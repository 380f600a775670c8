"""A row for each difference from a baseline: the seeds, their mean and its interval."""

from typing import Any

from transformer_norms.comparison.verdict import Comparison
from transformer_norms.report.figures import GREY, LINE, line_style, style_axes, text_size
from transformer_norms.report.findings import Findings
from transformer_norms.report.page.differences import scale

_BAND = "#eeeeee"  # of differences too small to count
_LONGEST = 14  # characters of a baseline's name below the axis


def draw_difference_rows(axes: Any, findings: Findings) -> None:
    """Draws, on the scale of the page: a dot for every seed above the mean with its 95 % interval,
    zero, and the band of differences too small to count. An arrow at the edge is an interval that
    goes on, a cross a variant with failed runs, of which no difference is known."""
    study, limit = findings.study, scale(findings).limit
    axes.set(xlim=(-limit, limit), ylim=(len(findings.compared) - 0.5, -0.5))
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.axvspan(-study.effect, study.effect, color=_BAND, linewidth=0, zorder=0)
    axes.axvline(0, color=LINE, linewidth=0.8, zorder=1)
    for row, variant in enumerate(findings.compared):
        colour, _ = line_style(study.variants.index(variant))
        _draw_row(axes, row, colour, findings.comparisons[variant.name], limit)
    baselines = {variant.baseline for variant in findings.compared}
    name = (baselines.pop() or "") if len(baselines) == 1 else ""
    # A long name would leave no room for the words beside it.
    of = f"loss of {name}" if 0 < len(name) <= _LONGEST else "baseline's"
    axes.set_xlabel(f"loss \N{MINUS SIGN} {of}, nats per token", loc="right", parse_math=False)
    style_axes(axes)


def _draw_row(axes: Any, row: int, colour: str, compared: Comparison, limit: float) -> None:
    at_edge = {"clip_on": False, "color": colour, "linestyle": "", "markeredgewidth": 0}
    if compared.difference is None:
        axes.annotate(
            "runs failed" if compared.verdict == "failed" else "no pair of seeds", (0, row),
            xytext=(4, 0), textcoords="offset points", va="center", fontsize=text_size() - 1,
            color=GREY,
        )  # fmt: skip
        return
    inside = [x for x in compared.differences if abs(x) <= limit]
    axes.plot(inside, [row - 0.18] * len(inside), "o", color=colour, markersize=2.8,
              markeredgewidth=0, alpha=0.7)  # fmt: skip
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
