"""Measures what each norm, as built here, is invariant to."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from math import log10
from textwrap import fill
from typing import Any

from transformer_norms.analysis.command import analysis_parser, run_analysis
from transformer_norms.analysis.invariance_laws import (
    BATCH,
    HOLDS_BELOW,
    INPUTS,
    LAWS,
    SEED,
    TIME,
    WIDTH,
    Law,
    measure_norms,
)
from transformer_norms.analysis.outcome import Analysis, Number, Outcome, Row, Rows, View
from transformer_norms.commands.terminal import Parser
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.progress import Tell
from transformer_norms.report.figures import FONT, GREY, short_name

SETTING = (
    f"y = norm(z), z = W x; {BATCH} x {TIME} tokens of {INPUTS} numbers, width {WIDTH}, seed "
    f"{SEED}, float64, in training, gains and biases random."
)
ROUNDING = 1e-12  # float64's arithmetic alone makes a smaller change
CAUSAL = ("later_training", "later_evaluation")
OF_A_TOKEN = ("odd", "size", *CAUSAL)
MEASURED = ("change_without_eps", "change_with_eps", "mean_square")


def make_parser() -> Parser:
    parser = analysis_parser(__doc__, "norm=rmsnorm,dyt", name="invariances")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE",
        help="norm=A,B, norm.KEY=VALUE and plugins=DIR, as train takes them (default: all norms"
        " but those that differ from another in eps alone)",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> Outcome:
    return outcome(measure_norms(typed.overrides, tell))


def outcome(rows: Rows) -> Outcome:
    """The rows of `measure_norms`, with the digits that another processor would find as well."""
    rounded = [{**row, **{key: _round(row[key]) for key in MEASURED}} for row in rows]
    return Outcome(ANALYSIS, rounded, "", [SETTING])


def _round(value: float | None) -> float | None:
    if value is None or value < ROUNDING:
        return None if value is None else 0.0
    return float(f"{value:.6g}")


# ---------------------------------------------------------------------------------------- tables


def number(value: float) -> str:
    """A number of two digits at most: 3e-4, 0.35, 3.5, 120, and 0 for one that is rounding."""
    if value < ROUNDING or value >= 100:
        return f"{value:.0f}"
    if value >= 0.01:
        return f"{value:.2g}"
    return f"{value:.0e}".replace("e-0", "e-")


def exact(value: float | None) -> str:
    """A number as one writes it, 1e-5 and not 1e-05; `none` for no number."""
    return "none" if value is None else f"{value:g}".replace("e-0", "e-")


def change_of(row: Row) -> float:
    """The change of the norm as it is trained."""
    own = row.get("change_with_eps")
    return float(row["change_without_eps"] if own is None else own)


def by_norm(cell: Callable[[Row], str]) -> Callable[[Rows], Rows]:
    """For each norm a cell of each law."""

    def pivot(rows: Rows) -> Rows:
        norms: dict[str, dict[str, Any]] = {}
        for row in rows:
            own = norms.setdefault(row["norm"], {"norm": row["norm"], "eps": exact(row.get("eps"))})
            own |= {"learned": str(row["learned"]), "mean_square": number(row["mean_square"])}
            own[row["transformation"]] = cell(row)
        return list(norms.values())

    return pivot


verdicts_by_norm = by_norm(lambda row: str(row["verdict"]))


def alike(rows: Rows) -> Rows:
    """The verdicts, with the norms that have the same ones together."""
    groups = grouped(verdicts_by_norm(rows), lambda row: [row[law.key] for law in LAWS])
    return [{**own[0], "norm": ", ".join(row["norm"] for row in own)} for own in groups]


def columns(laws: Sequence[Law]) -> dict[str, Number]:
    return {law.key: Number(law.code) for law in laws}


BELOW = f"yes: max|y' - y| / rms(y) is below {exact(HOLDS_BELOW)} where eps is next to nothing"
VERDICTS = View(alike, ("norm",), {law.key: Number(law.head) for law in LAWS})
VIEWS = (
    View(
        verdicts_by_norm,
        ("norm",),
        columns([law for law in LAWS if law.key not in CAUSAL]),
        f"Does y stay what it is? {BELOW}. "
        + "; ".join(f"{law.code}: {law.head}, {law.words}" for law in LAWS)
        + ".",
    ),
    View(
        by_norm(lambda row: number(change_of(row))),
        ("norm",),
        columns([law for law in LAWS if law.key not in OF_A_TOKEN]),
        "The same change with the norm's own eps.",
    ),
    View(
        by_norm(lambda row: number(change_of(row))),
        ("norm",),
        {
            "eps": Number("eps"),
            "learned": Number("learns", "numbers learned at width d"),
            "mean_square": Number("mean square", "of an output at gain 1"),
            "size": Number("spread", "of the mean square over tokens"),
            "later_training": Number(
                "later: training", "how far earlier outputs move when every last token is another"
            ),
            "later_evaluation": Number("evaluation"),
        },
    ),
)


# ------------------------------------------------------------------------------------ the figure

LOW, HIGH = -16, 1  # powers of ten that the shades are of
DARKEST = 0.85  # of the colour map: the rest would hide what is written
BEND = 2.5  # makes a law that eps bends lighter than what was not a law
ACROSS, DOWN = 0.58, 0.32  # inches of a cell
LETTERS = 10  # in a line above a column


def draw_changes(axes: Any, rows: Rows) -> None:
    """Norms down and laws across.

    A cell's shade is the change with the norm's own eps, its word the verdict without eps.
    """
    names = list(dict.fromkeys(row["norm"] for row in rows))
    shades = [[_shade(change_of(row)) for row in rows if row["norm"] == name] for name in names]
    image = axes.imshow(shades, cmap="Blues", vmin=0, vmax=1 / DARKEST, aspect="auto")
    for place, row in enumerate(rows):
        down, across = divmod(place, len(LAWS))
        colour = "white" if shades[down][across] > 0.6 else "black"
        weight = "bold" if row["verdict"] == "yes" else "normal"
        at = {"ha": "center", "va": "center", "color": colour, "parse_math": False}
        axes.text(across, down - 0.17, row["verdict"], fontsize=FONT, weight=weight, **at)
        axes.text(across, down + 0.22, number(change_of(row)), fontsize=FONT - 1.5, **at)
    _label_axes(axes, names)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.7, aspect=30, pad=0.01)
    bar.ax.set_ylim(0, 1)
    ticks = (1e-12, 1e-8, 1e-4, 1.0)
    bar.set_ticks([_shade(tick) for tick in ticks], labels=[number(tick) for tick in ticks])
    bar.ax.tick_params(labelsize=FONT, colors=GREY)
    bar.outline.set_visible(False)
    bar.set_label("relative change", fontsize=FONT + 1)


def _shade(change: float) -> float:
    """A number from 0 to 1, darker for a larger change."""
    power = min(max(LOW, log10(change)), HIGH) if change else LOW
    return float(((power - LOW) / (HIGH - LOW)) ** BEND)


def _label_axes(axes: Any, names: Sequence[str]) -> None:
    heads = ["\n".join(fill(part, LETTERS) for part in law.head.split(", ")) for law in LAWS]
    axes.set_xticks(range(len(LAWS)), heads, parse_math=False)
    axes.set_xlabel(
        "number and shade: the relative change max|y′ − y| / rms(y) with the norm's own eps;  "
        f"yes: below {exact(HOLDS_BELOW)} without eps",
        parse_math=False,
    )
    axes.set_yticks(range(len(names)), [short_name(name) for name in names], parse_math=False)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    for across in range(1, len(LAWS)):
        apart = LAWS[across].about != LAWS[across - 1].about
        axes.axvline(across - 0.5, color="white", linewidth=4 if apart else 1)
    for down in range(1, len(names)):
        axes.axhline(down - 0.5, color="white", linewidth=1)


ANALYSIS = Analysis(
    "invariances",
    "What norms are invariant to",
    views=VIEWS,
    panels=(draw_changes,),
    size=lambda rows: (ACROSS * len(LAWS) + 2.6, DOWN * len(rows) / len(LAWS) + 1.7),
)
