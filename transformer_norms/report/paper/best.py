"""Finds the lowest mean of a table, which is bold, and those from which no test tells it apart."""

from collections.abc import Mapping
from itertools import combinations

from transformer_norms.comparison.verdict import Sides, compare, pair
from transformer_norms.report.findings import Findings


def best_variants(findings: Findings) -> Mapping[str, list[str]]:
    """The variant of the lowest mean among those that have the same baseline, with the names of
    those that it is not shown to be better than, by the tests of the study, Holm's correction over
    all pairs of them: any of them could have been the lowest.

    A variant of which a run failed or is missing stands beside no other. Nothing is returned where
    one variant would stand alone.
    """
    groups: dict[str, list[str]] = {}
    for variant in findings.study.variants:
        outcomes = findings.outcomes[variant.name]
        if variant.baseline and outcomes.losses and not (outcomes.failed or outcomes.missing):
            groups.setdefault(variant.baseline, []).append(variant.name)
    ordered = [
        sorted(names, key=lambda name: findings.outcomes[name].mean or 0.0)
        for names in groups.values()
        if len(names) > 1
    ]
    asked: dict[str, Sides] = {
        f"{lower} - {name}": pair(
            findings.outcomes[lower],
            findings.outcomes[name],
            (findings.gains.get(lower, 0.0), findings.gains.get(name, 0.0)),
        )
        for names in ordered
        for lower, name in combinations(names, 2)
    }
    compared = compare(asked, findings.rules)
    return {
        first: [name for name in rest if compared[f"{first} - {name}"].verdict != "better"]
        for first, *rest in ordered
    }
