"""The verdicts of all studies by the rules before 2026-11-28, and what became of them since."""

import csv
from collections.abc import Mapping
from pathlib import Path

from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.report.findings import Findings
from transformer_norms.text_tables import markdown_table

HOME = Path(__file__).parent / "judged_anew"
BEFORE = HOME / "verdicts.csv"
# The same claim in today's words.
RENAMED = {
    "not distinguishable": "not told apart",
    "not distinguishable from zero": "not told apart",
    "below zero": "better",
    "above zero": "worse",
    "too few seeds": "not decided yet",
}


def verdicts_table(found: Mapping[str, Findings]) -> str:
    """A sentence with the number of verdicts that stayed, and a row for each that changed."""
    rows = [["study", "comparison", "difference", "before", "now", "because"]]
    same = undecided = 0
    with open(BEFORE, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            study, name = found[row["study"]], row["comparison"]
            now = (study.comparisons | study.contrasts)[name]
            before = RENAMED.get(row["verdict"], row["verdict"])
            if now.verdict == before:
                same += 1
            elif (before, now.verdict) == ("not told apart", "described"):
                undecided += 1
            else:
                cells = [row["study"], name, row["difference"], before, now.verdict]
                rows.append([*cells, _reason(study, name, now)])
    changed = len(rows) - 1
    return (
        f"Of {same + undecided + changed} verdicts {same} stayed. {undecided} that were not told "
        "apart are only described now, since their studies declared contrasts, which are the "
        f"family. {changed} changed:\n\n{markdown_table(rows)}"
    )


def _reason(study: Findings, name: str, now: Comparison) -> str:
    """Names the rule that changed the verdict."""
    match now.verdict:
        case "best rate not found":
            return "the best rate is the first or the last that was tried"
        case "described":
            return "it is not among the declared contrasts"
        case "equivalent":
            return f"its bounds lie within {now.margin:g} nats"
        case "not told apart" if now.spread and now.sd and now.sd**2 >= now.spread.variance:
            return "its own variance, larger than the usual one, is kept"
        case "not told apart":
            return f"one interval for {plural(study.compared_together, 'comparison')} decides"
    if abs(now.difference or 0.0) < 0.005:
        return "a difference is named if it is told apart, whatever its size"
    return "variances are shrunk with more weight, and the tuning error is bounded with 80 %"
