"""The answers as tables: for a terminal of 80 columns, a README and a spreadsheet."""

from collections.abc import Sequence
from typing import Any

from transformer_norms.analysis.invariances.laws import BATCH, INPUTS, LAWS, SEED, TIME, WIDTH
from transformer_norms.analysis.invariances.measuring import HOLDS_BELOW, Answers
from transformer_norms.analysis.writing import grid, markdown_grid, spreadsheet
from transformer_norms.report.escape import markdown

SETTING = (
    f"{BATCH} x {TIME} tokens of {INPUTS} numbers, width {WIDTH}, seed {SEED}, float64, in training"
)
_LONGEST = 20  # characters of a name in the terminal
ROUNDING = 1e-12  # what is below says nothing but that the arithmetic is float64's
_CAUSAL = ("later_training", "later_evaluation")
_OF_A_TOKEN = ("odd", "size", *_CAUSAL)


def terminal(rows: Sequence[Answers]) -> str:
    answered = [law for law in LAWS if law.key not in _CAUSAL]
    moved = [law for law in LAWS if law.key not in _OF_A_TOKEN]
    verdicts = [["norm", *(law.code for law in answered)]]
    changes = [["norm", *(law.code for law in moved)]]
    others = [["norm", "eps", "learns", "mean square", "spread", "later: training", "evaluation"]]
    for row in rows:
        name = row.name if len(row.name) <= _LONGEST else f"{row.name[: _LONGEST - 3]}..."
        verdicts.append([name, *(word(row.changes[law.key].holds) for law in answered)])
        changes.append([name, *(number(row.changes[law.key].real) for law in moved)])
        seen = [number(row.changes[key].real) for key in ("size", *_CAUSAL)]
        others.append([name, exact(row.eps), row.learned, number(row.mean_square), *seen])
    hidden = [row.name for row in rows if row.eps is None and row.nearly]
    return "\n".join(
        [
            "y = norm(z), z = W x: does y stay what it is?",
            f"({SETTING},",
            "gains and biases random)",
            "",
            grid(verdicts),
            "",
            *(f"{law.code:3}  {law.head}: {law.words}" for law in answered),
            f"yes: max|y' - y| / rms(y) is below {exact(HOLDS_BELOW)} where eps is next to nothing",
            *(f"{name}: some no is by little; an eps or a cast in its code?" for name in hidden),
            "",
            "The same change with the norm's own eps (~0: rounding)",
            grid(changes),
            "",
            "Numbers learned at width d; an output's mean square at gain 1, and its spread",
            "over tokens; how far earlier outputs move when every last token is another",
            grid(others),
        ]
    )


def grouped(rows: Sequence[Answers]) -> list[tuple[list[str], Answers]]:
    """Norms with the same answers together: their names, and one of them."""
    found: dict[tuple[bool, ...], tuple[list[str], Answers]] = {}
    for row in rows:
        found.setdefault(row.verdicts, ([], row))[0].append(row.name)
    return list(found.values())


def markdown_table(rows: Sequence[Answers]) -> str:
    table = [["norm", *(law.head for law in LAWS)]]
    for names, row in grouped(rows):
        table.append([", ".join(names), *(word(holds) for holds in row.verdicts)])
    legend = [f"- {markdown(law.head)}: {markdown(law.words)}" for law in LAWS]
    below = f"max|y' - y| / rms(y) is below {exact(HOLDS_BELOW)} where eps is next to nothing"
    setting = f"y = norm(z), z = W x; {SETTING}, gains and biases random. yes: {below}."
    return "\n\n".join([markdown_grid(table), "\n".join(legend), markdown(setting)]) + "\n"


def as_csv(rows: Sequence[Answers]) -> bytes:
    """A row for each norm and law; an empty cell where a norm has no eps."""
    heads = "norm transformation statement verdict change_without_eps change_with_eps eps".split()
    found: list[list[Any]] = [heads]
    for row in rows:
        for law in LAWS:
            change = row.changes[law.key]
            changes = (_digits(value) for value in (change.ideal, change.own))
            found.append([row.name, law.key, law.head, word(change.holds), *changes, row.eps])
    return spreadsheet(found)


def _digits(value: float | None) -> float | None:
    """What another processor would find as well."""
    if value is None or value < ROUNDING:
        return None if value is None else 0.0
    return float(f"{value:.6g}")


def word(holds: bool) -> str:
    return "yes" if holds else "no"


def number(value: float) -> str:
    """Of two digits at most: 3e-4, 0.35, 3.5, 120; ~0 for what is but rounding."""
    if 0 < value < ROUNDING:
        return "~0"
    if value == 0 or value >= 100:
        return f"{value:.0f}"
    if value >= 0.01:
        return f"{value:.2g}"
    return f"{value:.0e}".replace("e-0", "e-")


def exact(value: float | None) -> str:
    """1e-5 and not 1e-05; none for no number."""
    return "none" if value is None else f"{value:g}".replace("e-0", "e-")
