"""invariances.svg: how far each norm's output moves, norms down and transformations across."""

from collections.abc import Sequence
from math import log10
from textwrap import fill
from typing import Any

from transformer_norms.analysis.invariances.laws import LAWS
from transformer_norms.analysis.invariances.measuring import HOLDS_BELOW, Answers
from transformer_norms.analysis.invariances.tables import exact, number, word
from transformer_norms.report.drawing import FONT, GREY, name, plain, pyplot, saved

_LOW, _HIGH = -16, 1  # powers of ten that the shades are of
_DARKEST = 0.85  # of the colour map: the rest would hide what is written
_BEND = 2.5  # makes what eps leaves of a law lighter than what was no law
_ACROSS, _DOWN = 0.58, 0.32  # inches of a cell
_LETTERS = 10  # in a line above a column


def figure(rows: Sequence[Answers]) -> bytes:
    """A cell's shade is the change with the norm's own eps, its word the verdict without."""
    plt = pyplot()
    drawn, axes = plt.subplots(
        figsize=(_ACROSS * len(LAWS) + 2.6, _DOWN * len(rows) + 1.7), layout="constrained"
    )
    shades = [[_shade(row.changes[law.key].real) for law in LAWS] for row in rows]
    image = axes.imshow(shades, cmap="Blues", vmin=0, vmax=1 / _DARKEST, aspect="auto")
    for down, row in enumerate(rows):
        for across, law in enumerate(LAWS):
            _write(axes, across, down, row, law.key)
    _name(axes, rows)
    _scale(drawn, axes, image)
    data = saved(drawn, "svg")
    plt.close(drawn)
    return bytes(data)


def _shade(change: float) -> float:
    """From 0 to 1, darker for more."""
    power = min(max(_LOW, log10(change)), _HIGH) if change else _LOW
    return float(((power - _LOW) / (_HIGH - _LOW)) ** _BEND)


def _write(axes: Any, across: int, down: int, row: Answers, key: str) -> None:
    change = row.changes[key]
    colour = "white" if _shade(change.real) > 0.6 else "black"
    at = {"ha": "center", "va": "center", "color": colour, "parse_math": False}
    weight = "bold" if change.holds else "normal"
    axes.text(across, down - 0.17, word(change.holds), fontsize=FONT, weight=weight, **at)
    axes.text(across, down + 0.22, number(change.real), fontsize=FONT - 1.5, **at)


def _name(axes: Any, rows: Sequence[Answers]) -> None:
    heads = ["\n".join(fill(part, _LETTERS) for part in law.head.split(", ")) for law in LAWS]
    axes.set_xticks(range(len(LAWS)), heads, parse_math=False)
    axes.set_xlabel(
        "number and shade: the relative change max|y′ − y| / rms(y) with the norm's own eps;  "
        f"yes: below {exact(HOLDS_BELOW)} without eps",
        parse_math=False,
    )
    axes.set_yticks(range(len(rows)), [name(row.name) for row in rows], parse_math=False)
    plain(axes)
    axes.tick_params(length=0, labelcolor="black", labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    for across in range(1, len(LAWS)):
        apart = LAWS[across].about != LAWS[across - 1].about
        axes.axvline(across - 0.5, color="white", linewidth=4 if apart else 1)
    for down in range(1, len(rows)):
        axes.axhline(down - 0.5, color="white", linewidth=1)


def _scale(drawn: Any, axes: Any, image: Any) -> None:
    bar = drawn.colorbar(image, ax=axes, shrink=0.7, aspect=30, pad=0.01)
    bar.ax.set_ylim(0, 1)
    ticks = (1e-12, 1e-8, 1e-4, 1.0)
    bar.set_ticks([_shade(tick) for tick in ticks], labels=[number(tick) for tick in ticks])
    bar.ax.tick_params(labelsize=FONT, colors=GREY)
    bar.outline.set_visible(False)
    bar.set_label("relative change", fontsize=FONT + 1)
