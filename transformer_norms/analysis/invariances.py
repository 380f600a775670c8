"""Measures what each norm, as built here, is invariant to."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import groupby
from math import log10
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from markupsafe import Markup

from transformer_norms.analysis import invariance_laws
from transformer_norms.analysis.command import (
    analysis_parser,
    run_analysis,
    svg_bytes,
)
from transformer_norms.analysis.invariance_laws import (
    BATCH,
    HOLDS_BELOW,
    INPUTS,
    LAWS,
    SEED,
    TIME,
    WIDTH,
    Answers,
    measure_norms,
)
from transformer_norms.commands.terminal import Parser
from transformer_norms.progress import Tell
from transformer_norms.report.figures import FONT, GREY, pyplot, short_name, style_axes
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import (
    csv_table,
    escape_markdown,
    markdown_list,
    markdown_table,
    templates,
    text_table,
)

SETTING = (
    f"{BATCH} x {TIME} tokens of {INPUTS} numbers, width {WIDTH}, seed {SEED}, float64, in training"
)
LONGEST = 20  # characters of a name in the terminal
ROUNDING = 1e-12  # a smaller change comes of float64's arithmetic alone
CAUSAL = ("later_training", "later_evaluation")
OF_A_TOKEN = ("odd", "size", *CAUSAL)
STYLE = Path(__file__).parents[1] / "report" / "page" / "page.css"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def make_parser() -> Parser:
    parser = analysis_parser(
        "invariances", __doc__, "a page, a figure and tables, written there", "norm=rmsnorm,dyt"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE",
        help="norm=A,B, norm.KEY=VALUE and plugins=DIR, as train takes them (default: all norms"
        " but those that differ from another in eps alone)",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    rows = measure_norms(typed.overrides, tell)
    paths = write_files(typed.out, files(rows)) if typed.out else []
    return terminal(rows), {"norms": len(rows), "files": paths}


def files(rows: Sequence[Answers]) -> dict[str, bytes]:
    """The contents of invariances.html, .svg, .csv and .md."""
    return {
        "invariances.html": page(rows).encode(),
        "invariances.svg": figure(rows),
        "invariances.csv": csv_rows(rows),
        "invariances.md": markdown_page(rows).encode(),
    }


# --------------------------------------------------------------------------------------- numbers


def word(holds: bool) -> str:
    return "yes" if holds else "no"


def number(value: float) -> str:
    """A number of two digits at most: 3e-4, 0.35, 3.5, 120, and ~0 for one that is rounding."""
    if 0 < value < ROUNDING:
        return "~0"
    if value == 0 or value >= 100:
        return f"{value:.0f}"
    if value >= 0.01:
        return f"{value:.2g}"
    return f"{value:.0e}".replace("e-0", "e-")


def exact(value: float | None) -> str:
    """A number as one writes it, 1e-5 and not 1e-05; `none` for no number."""
    return "none" if value is None else f"{value:g}".replace("e-0", "e-")


# ---------------------------------------------------------------------------------------- tables


def terminal(rows: Sequence[Answers]) -> str:
    """Three tables within 80 columns: verdicts, changes, and the other measurements."""
    laws = [law for law in LAWS if law.key not in CAUSAL]
    moved = [law for law in LAWS if law.key not in OF_A_TOKEN]
    verdicts = [["norm", *(law.code for law in laws)]]
    changes = [["norm", *(law.code for law in moved)]]
    rest = [["norm", "eps", "learns", "mean square", "spread", "later: training", "evaluation"]]
    for row in rows:
        name = row.name if len(row.name) <= LONGEST else f"{row.name[: LONGEST - 3]}..."
        verdicts.append([name, *(word(row.changes[law.key].holds) for law in laws)])
        changes.append([name, *(number(row.changes[law.key].real) for law in moved)])
        real = [number(row.changes[key].real) for key in ("size", *CAUSAL)]
        rest.append([name, exact(row.eps), row.learned, number(row.mean_square), *real])
    hidden = [row.name for row in rows if row.eps is None and row.nearly]
    return "\n".join(
        [
            "y = norm(z), z = W x: does y stay what it is?",
            f"({SETTING},",
            "gains and biases random)",
            "",
            text_table(verdicts),
            "",
            *(f"{law.code:3}  {law.head}: {law.words}" for law in laws),
            f"yes: max|y' - y| / rms(y) is below {exact(HOLDS_BELOW)} where eps is next to nothing",
            *(f"{name}: some no is by little; an eps or a cast in its code?" for name in hidden),
            "",
            "The same change with the norm's own eps (~0: rounding)",
            text_table(changes),
            "",
            "Numbers learned at width d; an output's mean square at gain 1, and its spread",
            "over tokens; how far earlier outputs move when every last token is another",
            text_table(rest),
        ]
    )


def group_norms(rows: Sequence[Answers]) -> list[tuple[list[str], Answers]]:
    """Norms with the same verdicts together: their names, and the answers of one of them."""
    groups: dict[tuple[bool, ...], tuple[list[str], Answers]] = {}
    for row in rows:
        groups.setdefault(row.verdicts, ([], row))[0].append(row.name)
    return list(groups.values())


def markdown_page(rows: Sequence[Answers]) -> str:
    table = [["norm", *(law.head for law in LAWS)]]
    for names, row in group_norms(rows):
        table.append([", ".join(names), *(word(holds) for holds in row.verdicts)])
    legend = markdown_list([f"{law.head}: {law.words}" for law in LAWS])
    below = f"max|y' - y| / rms(y) is below {exact(HOLDS_BELOW)} where eps is next to nothing"
    setting = f"y = norm(z), z = W x; {SETTING}, gains and biases random. yes: {below}."
    return "\n\n".join([markdown_table(table), legend, escape_markdown(setting)]) + "\n"


def csv_rows(rows: Sequence[Answers]) -> bytes:
    """A row for each norm and law. A cell is empty where a norm has no eps."""
    heads = "norm transformation statement verdict change_without_eps change_with_eps eps".split()
    table: list[list[Any]] = [heads]
    for row in rows:
        for law in LAWS:
            change = row.changes[law.key]
            changes = (_round(value) for value in (change.ideal, change.own))
            table.append([row.name, law.key, law.head, word(change.holds), *changes, row.eps])
    return csv_table(table)


def _round(value: float | None) -> float | None:
    """The digits that another processor would find as well."""
    if value is None or value < ROUNDING:
        return None if value is None else 0.0
    return float(f"{value:.6g}")


# -------------------------------------------------------------------------------------- the page


def page(rows: Sequence[Answers]) -> str:
    """One HTML file for students that loads nothing and runs nothing."""
    environment = templates(Path(__file__).parent)
    environment.filters |= {"exact": exact, "number": number, "word": word}
    return environment.get_template("invariances.html").render(
        policy=POLICY,
        style=Markup(STYLE.read_text(encoding="utf-8")),
        rows=rows,
        groups=group_norms(rows),
        abouts=[(about, len(list(own))) for about, own in groupby(law.about for law in LAWS)],
        setting=invariance_laws,
        leaks=[row for row in rows if not row.changes["later_training"].holds],
        rounding=ROUNDING,
        torch=torch.__version__,
    )


# ------------------------------------------------------------------------------------ the figure

LOW, HIGH = -16, 1  # powers of ten that the shades are of
DARKEST = 0.85  # of the colour map: the rest would hide what is written
BEND = 2.5  # makes what eps leaves of a law lighter than what was no law
ACROSS, DOWN = 0.58, 0.32  # inches of a cell
LETTERS = 10  # in a line above a column


def figure(rows: Sequence[Answers]) -> bytes:
    """An SVG of norms down and laws across.

    A cell's shade is the change with the norm's own eps, its word the verdict without eps.
    """
    plt = pyplot()
    size = (ACROSS * len(LAWS) + 2.6, DOWN * len(rows) + 1.7)
    drawing, axes = plt.subplots(figsize=size, layout="constrained")
    shades = [[_shade(row.changes[law.key].real) for law in LAWS] for row in rows]
    image = axes.imshow(shades, cmap="Blues", vmin=0, vmax=1 / DARKEST, aspect="auto")
    for down, row in enumerate(rows):
        for across, law in enumerate(LAWS):
            change, shade = row.changes[law.key], shades[down][across]
            colour, weight = (
                "white" if shade > 0.6 else "black",
                "bold" if change.holds else "normal",
            )
            at = {"ha": "center", "va": "center", "color": colour, "parse_math": False}
            axes.text(across, down - 0.17, word(change.holds), fontsize=FONT, weight=weight, **at)
            axes.text(across, down + 0.22, number(change.real), fontsize=FONT - 1.5, **at)
    _label_axes(axes, rows)
    bar = drawing.colorbar(image, ax=axes, shrink=0.7, aspect=30, pad=0.01)
    bar.ax.set_ylim(0, 1)
    ticks = (1e-12, 1e-8, 1e-4, 1.0)
    bar.set_ticks([_shade(tick) for tick in ticks], labels=[number(tick) for tick in ticks])
    bar.ax.tick_params(labelsize=FONT, colors=GREY)
    bar.outline.set_visible(False)
    bar.set_label("relative change", fontsize=FONT + 1)
    return svg_bytes(drawing)


def _shade(change: float) -> float:
    """A number from 0 to 1, darker for a larger change."""
    power = min(max(LOW, log10(change)), HIGH) if change else LOW
    return float(((power - LOW) / (HIGH - LOW)) ** BEND)


def _label_axes(axes: Any, rows: Sequence[Answers]) -> None:
    heads = ["\n".join(fill(part, LETTERS) for part in law.head.split(", ")) for law in LAWS]
    axes.set_xticks(range(len(LAWS)), heads, parse_math=False)
    axes.set_xlabel(
        "number and shade: the relative change max|y′ − y| / rms(y) with the norm's own eps;  "
        f"yes: below {exact(HOLDS_BELOW)} without eps",
        parse_math=False,
    )
    axes.set_yticks(range(len(rows)), [short_name(row.name) for row in rows], parse_math=False)
    style_axes(axes)
    axes.tick_params(length=0, labelcolor="black", labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    for across in range(1, len(LAWS)):
        apart = LAWS[across].about != LAWS[across - 1].about
        axes.axvline(across - 0.5, color="white", linewidth=4 if apart else 1)
    for down in range(1, len(rows)):
        axes.axhline(down - 0.5, color="white", linewidth=1)


if __name__ == "__main__":
    sys.exit(main())
