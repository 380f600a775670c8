"""The verdicts that the studies had before 2026-11-23, and what changed each of them since."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.comparison.verdict import Rules, compare
from transformer_norms.report.findings import Findings, asked_comparisons
from transformer_norms.report.table import number
from transformer_norms.text_tables import markdown_table

HOME = Path(__file__).parent / "judged_anew"
BEFORE = HOME / "verdicts.csv"


def verdicts_table(found: Mapping[str, Findings]) -> str:
    """A sentence with the number of verdicts that stayed, and a row for each that changed."""
    rows, same = [["study", "variant", "difference", "before", "now", "because"]], 0
    with open(BEFORE, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            now = found[row["study"]].comparisons[row["variant"]]
            if now.verdict == row["verdict"]:
                same += 1
                continue
            reason = _reason(found[row["study"]], row["variant"], row["verdict"])
            rows.append(
                [
                    row["study"],
                    row["variant"],
                    row["difference"],
                    row["verdict"],
                    now.verdict,
                    reason,
                ]
            )
    count = len(rows) - 1
    return f"{same} of {same + count} verdicts stayed, {count} changed:\n\n{markdown_table(rows)}"


def _reason(findings: Findings, name: str, before: str) -> str:
    """Names the rule that changed the verdict: the first without which it is what it was."""
    now = findings.comparisons[name]
    if now.verdict == "failed":
        baseline = findings.study.baseline_of(findings.study.variant(name)).name
        sides = [side for side in (name, baseline) if findings.outcomes[side].failed]
        return "; ".join(f"{side}: {findings.outcomes[side].reasons}" for side in sides)
    if now.verdict == "too few seeds":
        return f"{len(now.seeds)} seeds; {FEWEST} are the fewest"
    gains = ", ".join(number(gain, infinite="unknown") for gain in now.gains)
    without_gains = dict.fromkeys(findings.gains, 0.0)
    if _verdict(findings, name, without_gains, findings.rules) == before:
        return f"the tuning error, {gains} nats (variant, baseline)"
    if _verdict(findings, name, findings.gains, replace(findings.rules, prior=None)) == before:
        return "the shrunk variance"
    if _verdict(findings, name, without_gains, replace(findings.rules, prior=None)) == before:
        return f"the shrunk variance, and the tuning error, {gains} nats (variant, baseline)"
    return "other comparisons of the study failed, and count in Holm's correction"


def _verdict(findings: Findings, name: str, gains: Mapping[str, float], rules: Rules) -> str:
    asked = asked_comparisons(findings.study, findings.outcomes, gains)
    return compare(asked, rules)[name].verdict
