"""The differences that the claims rest on, with what could have been found and what was published:
a figure for each question."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claims import BYTES, COLOURS, Claims, Judged

from transformer_norms.report.figures import FONT, GREY, LINE, figure_bytes, subplots

TITLES = {
    "placements": "Where do the norms go? Variant - pre-norm",
    "norms": "Which norm? Variant - LayerNorm or RMSNorm",
    "changes": "What changes a gap, or the loss? One setting - another",
}
# Of each word, as its character in the table is coloured.
PAINT = dict(zip(COLOURS, "#2e8a5c #ab3a20 #20408f #e2a03f #888888 #000000".split(), strict=True))
LIMIT = 0.3  # nats per byte; a difference beyond is written out
ROW = 0.2  # inches


def draw_claims(claims: Claims, question: str) -> bytes:
    """An SVG with a line for the row of each claim that has an interval in nats."""
    lines = lines_of(claims, question)
    effects = [one.claim.published / BYTES for one, *_ in claims if one.claim.published is not None]
    figure, axes = subplots(figsize=(8.0, 1.0 + ROW * len(lines)), layout="constrained")
    axes.axvspan(-max(effects), max(effects), color="#e6e6e6", linewidth=0, zorder=0)
    axes.axvline(0, color=LINE, linewidth=0.8, zorder=1)
    for y, one in enumerate(lines):
        c = one.comparison
        assert c is not None
        assert c.interval is not None
        assert c.difference is not None
        if (x := c.detectable) is not None:
            axes.plot([-x, x], [y, y], "|", color=LINE, markersize=9, zorder=2)
        style = {"color": PAINT[one.word], "linewidth": 2, "solid_capstyle": "butt"}
        axes.plot(c.interval, [y, y], zorder=3, **style)
        axes.plot(c.difference, y, "o", color=PAINT[one.word], markersize=4, zorder=3)
        if abs(c.difference) > LIMIT:
            left = c.difference < 0
            x = max(c.interval[1], -LIMIT) + 0.01 if left else min(c.interval[0], LIMIT) - 0.01
            axes.text(x, y, f"{c.difference:+.2f}", fontsize=FONT, color=PAINT[one.word],
                      va="center", ha="left" if left else "right")  # fmt: skip
    axes.set_xlim(-LIMIT, LIMIT)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), [one.claim.claim for one in lines], fontsize=FONT)
    axes.set_xlabel("nats per byte, 95 % interval; below zero the loss is lower")
    axes.set_title(TITLES[question], fontsize=FONT + 1, loc="left")
    axes.spines["left"].set_visible(False)
    _explain(axes, [word for word in COLOURS if word in {one.word for one in lines}])
    return figure_bytes(figure, "svg")


def lines_of(claims: Claims, question: str) -> list[Judged]:
    return [
        first
        for first, *_ in claims
        if first.claim.question == question and not first.claim.unit and first.has_interval
    ]


def _explain(axes: Any, words: Sequence[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        *(Line2D([], [], color=PAINT[w], marker="o", markersize=4, label=w) for w in words),
        Line2D([], [], color=GREY, marker="|", linewidth=0, label="found nine times in ten"),
        Patch(color="#e6e6e6", label="published effects"),
    ]
    axes.figure.legend(handles=handles, fontsize=FONT, frameon=False, ncols=len(handles),
                       loc="outside lower center", handlelength=1, columnspacing=1)  # fmt: skip


def write_figures(claims: Claims, home: Path) -> None:
    for question in TITLES:
        (home / f"claims_{question}.svg").write_bytes(draw_claims(claims, question))
