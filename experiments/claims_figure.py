"""The differences that the claims rest on, with their intervals, on one page."""

from collections.abc import Sequence
from typing import Any

from claims import OPPOSITE, Claim, Judged

from transformer_norms.data.ngrams import ngram_name
from transformer_norms.report.figures import FONT, GREY, LINE, figure_bytes, subplots
from transformer_norms.text_tables import shorten

# What a model has learned more than, from light to dark.
PASSED = ("none", *map(ngram_name, range(1, 6)))
SHADES = ("#d9d9d9", "#f3c98b", "#e2a03f", "#ab3a20", "#5b1a4f", "#000000")
LINEAR = 0.1  # nats; beyond, the axis is logarithmic
LIMIT = 1.0
LONGEST = 88  # characters of a line
ROW = 0.155  # inches


def draw_claims(claims: Sequence[tuple[Claim, Sequence[Judged]]]) -> bytes:
    """An SVG with a line for each claim, and below it one for each of its differences that has an
    interval."""
    lines = lines_of(claims)
    figure, axes = subplots(figsize=(9.5, 1.1 + ROW * len(lines)))
    axes.axvline(0, color=LINE, linewidth=0.8, zorder=1)
    for y, (text, one) in enumerate(lines):
        x, colour = (0.0, "#000000") if one is None else (0.015, GREY)
        axes.text(
            x - 1.32, y, shorten(text, LONGEST), fontsize=FONT, color=colour, va="center",
            transform=axes.get_yaxis_transform(), parse_math=False,
        )  # fmt: skip
        if one is not None:
            _draw(axes, y, one)
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=1.5)
    axes.set_xlim(-LIMIT, LIMIT)
    ticks = (-0.5, -0.2, -0.1, -0.05, 0, 0.05, 0.1, 0.2, 0.5)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel("difference in nats per byte, 95 % interval")
    axes.spines["left"].set_visible(False)
    _explain(axes, {passed_by(one) for _, one in lines if one is not None})
    figure.subplots_adjust(left=0.565, right=0.985, top=1 - 0.5 / figure.get_size_inches()[1],
                           bottom=0.5 / figure.get_size_inches()[1])  # fmt: skip
    return figure_bytes(figure, "svg")


def lines_of(claims: Sequence[tuple[Claim, Sequence[Judged]]]) -> list[tuple[str, Judged | None]]:
    """The text of each line, and the difference that it shows, if it shows one."""
    lines: list[tuple[str, Judged | None]] = []
    for claim, judged in claims:
        if shown := [one for one in judged if _has_interval(one)]:
            lines += [(claim.claim, None), *((one.name, one) for one in shown)]
    return lines


def _has_interval(one: Judged) -> bool:
    c = one.comparison
    return c is not None and c.interval is not None


def _draw(axes: Any, y: float, one: Judged) -> None:
    """A bar for the interval, and a mark for the difference, filled where the report names it."""
    c, colour = one.comparison, SHADES[PASSED.index(passed_by(one))]
    assert c is not None
    assert c.interval is not None
    axes.plot(c.interval, [y, y], color=colour, linewidth=1.6, solid_capstyle="butt", zorder=2)
    face = colour if c.verdict in OPPOSITE else "white"
    axes.plot([c.difference], [y], "o", color=colour, markerfacecolor=face, markersize=4, zorder=3)


def passed_by(one: Judged) -> str:
    """The best n-gram that the baselines of a comparison pass: the least of them where they are
    several."""
    study, names = one.study, list(one.contrast.coefficients)
    baselines = [name for name in names if study.study.variant(name).baseline == name]
    passed = [study.passed(name) for name in baselines or names]
    return min((each or "none" for each in passed), key=PASSED.index)


def _explain(axes: Any, used: set[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=SHADES[PASSED.index(name)], linewidth=3, label=f"passes the {name}")
        for name in PASSED
        if name in used
    ]
    marks = {"a difference is named": GREY, "not told apart": "white"}
    handles += [
        Line2D([], [], color=GREY, marker="o", markerfacecolor=face, linewidth=0, markersize=4,
               label=label)
        for label, face in marks.items()
    ]  # fmt: skip
    axes.legend(
        handles=handles, fontsize=FONT, frameon=False, ncols=len(handles), loc="lower right",
        bbox_to_anchor=(1, 1), handlelength=1, columnspacing=1,
    )  # fmt: skip
