"""Published claims beside the results of the studies here, as far as their statistics carry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter

from transformer_norms.comparison.verdict import Comparison, compare, difference_and_interval, pair
from transformer_norms.report.findings import Findings, confounds
from transformer_norms.text_tables import escape_markdown

ENOUGH = 5  # seeds; with fewer a study screens
Says = Literal["better", "worse", "equivalent"]
SAME = ("equivalent", "identical")


@dataclass(frozen=True)
class Part:
    """One comparison that a claim rests on: the verdict that it expects of `variant` against
    `baseline`, both by their names in the study's report."""

    variant: str
    says: Says
    baseline: str | None = None  # the study's own where none is named


@dataclass(frozen=True)
class Claim:
    """A published sentence, its source, and the comparisons in which it would show. `beside` has to
    be read with it. If no comparison of runs can show the claim, `found` is its text, with {} for
    the measured value."""

    claim: str
    source: str
    study: str
    parts: list[Part] | None = None
    found: str = ""
    beside: str = ""


def claims_table(file: Path, studies: Mapping[str, Findings], words: Mapping[str, str]) -> str:
    """A row for each claim. `words` has the results of studies that compare no runs."""
    claims = TypeAdapter(list[Claim]).validate_python(yaml.safe_load(file.read_text()))
    rows = ["| claim | source | found here | study |", "|---|---|---|---|"]
    for claim in claims:
        study = claim.study
        found = claim.found.replace("{}", words.get(study, ""))
        if claim.parts:
            found = _finding(claim.parts, studies[study]) + _other_differences(
                claim.parts, studies[study]
            )
        said = escape_markdown(f"{found}{'; ' * bool(claim.beside)}{claim.beside}")
        rows.append(f"| {claim.claim} | {claim.source} | {said} | [{study}]({study}) |")
    return "\n".join(rows)


def _finding(parts: Sequence[Part], study: Findings) -> str:
    """`reproduced` if every part shows what the claim states, with at least ENOUGH seeds."""
    compared = [(part, _compared(part, study)) for part in parts]
    agree = [_agrees(part, comparison) for part, comparison in compared]
    seeds = min(len(comparison.seeds) for _, comparison in compared)
    enough = seeds >= ENOUGH
    if any(one is False for one in agree):
        word = "not reproduced" if enough else "screened, and against it"
    elif all(agree):
        word = "reproduced" if enough else "screened, and for it"
    else:
        word = "not distinguishable at this size"
    said = "; ".join(_numbers(part, one, study) for part, one in compared)
    return f"{word}: {said}; {seeds} seed{'s' * (seeds != 1)}"


def _compared(part: Part, study: Findings) -> Comparison:
    """The report's own comparison; another pair is compared as one more beside all of these."""
    if part.baseline is None:
        return study.comparisons[part.variant]
    pairs = {
        v.name: pair(study.outcomes[v.name], study.outcomes[v.baseline])
        for v in study.study.variants
        if v.name in study.comparisons and v.baseline is not None
    }
    own = pair(study.outcomes[part.variant], study.outcomes[part.baseline])
    return compare({**pairs, f"{part}": own}, study.study.effect)[f"{part}"]


def _agrees(part: Part, comparison: Comparison) -> bool | None:
    """None if the numbers cannot tell. A pair in which a run failed supports no claim of a
    difference in loss."""
    verdict = comparison.verdict
    if verdict in ("better", "worse"):
        return verdict == part.says
    if verdict in SAME:
        return part.says == "equivalent"
    return None


def _numbers(part: Part, comparison: Comparison, study: Findings) -> str:
    against = f" - {part.baseline}" if part.baseline else ""
    name = f"{part.variant}{against}"
    other = part.baseline or study.study.variant(part.variant).baseline or part.variant
    if comparison.verdict == "failed":
        lost = (f"{one} in {study.outcomes[one].failure}"
                for one in (part.variant, other))  # fmt: skip
        return f"{name}: failed, {' and '.join(lost)}"
    if comparison.low is None or comparison.p_holm is None:
        return f"{name}: {comparison.verdict}"
    difference, interval = difference_and_interval(comparison)
    p = "p below 0.001" if comparison.p_holm < 0.001 else f"p {comparison.p_holm:.3f}"
    return f"{name} {difference} nats ({interval}, {p} after Holm)"


def _other_differences(parts: Sequence[Part], study: Findings) -> str:
    """The settings in which a variant and its baseline differ beyond the question."""
    found = []
    for part in parts:
        variant = study.study.variant(part.variant)
        against = replace(variant, baseline=part.baseline or variant.baseline)
        keys = confounds(study.study, against)
        if keys:
            found.append(f"{variant.name} differs in {', '.join(keys)} as well")
    return "".join(f"; {one}" for one in dict.fromkeys(found))
