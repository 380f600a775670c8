"""Published claims beside what the studies here found: as much as their statistics carry."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter

from transformer_norms.report.escape import markdown
from transformer_norms.report.findings import Findings
from transformer_norms.report.statistics import Comparison, compare
from transformer_norms.report.verdict import measured

ENOUGH = 5  # seeds; with fewer a study screens
Says = Literal["better", "worse", "equivalent"]
SAME = ("equivalent", "identical")


@dataclass(frozen=True)
class Part:
    """One comparison of a study that a claim rests on: what it says of `variant` against
    `baseline`, both by the names that the study's report has for them."""

    variant: str
    says: Says
    baseline: str | None = None  # the study's own where none is named


@dataclass(frozen=True)
class Claim:
    """A published sentence and its source; the comparisons in which it would show; `beside` is
    what has to be read with it. Of a claim that no comparison of runs carries, `found` has {} in
    the place of what was measured."""

    claim: str
    source: str
    study: str
    parts: list[Part] | None = None
    found: str = ""
    beside: str = ""


def claims_table(file: Path, studies: Mapping[str, Findings], words: Mapping[str, str]) -> str:
    """A row a claim. `words` has what a study says that is no comparison of runs."""
    claims = TypeAdapter(list[Claim]).validate_python(yaml.safe_load(file.read_text()))
    rows = ["| claim | source | found here | study |", "|---|---|---|---|"]
    for claim in claims:
        study = claim.study
        found = claim.found.replace("{}", words.get(study, "")) or _found(claim, studies[study])
        said = markdown(f"{found}{'; ' * bool(claim.beside)}{claim.beside}")
        rows.append(f"| {claim.claim} | {claim.source} | {said} | [{study}]({study}) |")
    return "\n".join(rows)


def _found(claim: Claim, study: Findings) -> str:
    """`reproduced` of ENOUGH seeds and more, where every part shows as the claim has it."""
    assert claim.parts
    compared = [(part, _compared(part, study)) for part in claim.parts]
    agree = [_agrees(part, comparison) for part, comparison in compared]
    seeds = min(len(comparison.seeds) for _, comparison in compared)
    if any(one is False for one in agree):
        word = "not reproduced" if seeds >= ENOUGH else "screened: against it"
    elif all(agree):
        word = "reproduced" if seeds >= ENOUGH else "screened: for it"
    else:
        word = "not distinguishable at this size"
    return f"{word}: {'; '.join(_numbers(part, one) for part, one in compared)}; {seeds} seeds"


def _compared(part: Part, study: Findings) -> Comparison:
    """The report's own comparison; of another pair than the report's, that pair alone."""
    if part.baseline is None:
        return study.comparisons[part.variant]
    pair = study.outcomes[part.variant], study.outcomes[part.baseline]
    return compare({part.variant: pair}, study.study.effect)[part.variant]


def _agrees(part: Part, comparison: Comparison) -> bool | None:
    """None: the numbers cannot tell."""
    verdict = comparison.verdict
    if part.says == "equivalent":
        return None if verdict == "not distinguishable" else verdict in SAME
    if verdict in ("better", "worse"):
        return verdict == part.says
    return False if verdict in SAME else None


def _numbers(part: Part, comparison: Comparison) -> str:
    against = f" - {part.baseline}" if part.baseline else ""
    if comparison.low is None:
        return f"{part.variant}{against}: {comparison.verdict}"
    difference, interval = measured(comparison)
    return f"{part.variant}{against} {difference} nats ({interval})"
