"""Published claims beside what the studies here found: as much as their statistics carry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter

from transformer_norms.report.findings import Findings, confounds
from transformer_norms.report.statistics import Comparison, compare
from transformer_norms.report.verdict import difference_and_interval
from transformer_norms.text_tables import escape_markdown

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
        found = claim.found.replace("{}", words.get(study, ""))
        if claim.parts:
            found = _found(claim.parts, studies[study]) + _besides(claim.parts, studies[study])
        said = escape_markdown(f"{found}{'; ' * bool(claim.beside)}{claim.beside}")
        rows.append(f"| {claim.claim} | {claim.source} | {said} | [{study}]({study}) |")
    return "\n".join(rows)


def _found(parts: Sequence[Part], study: Findings) -> str:
    """`reproduced` of ENOUGH seeds and more, where every part shows as the claim has it."""
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
    """The report's own comparison; of another pair, that pair as one more beside all of these."""
    if part.baseline is None:
        return study.comparisons[part.variant]
    pairs = {
        v.name: (study.outcomes[v.name], study.outcomes[v.baseline])
        for v in study.study.variants
        if v.name in study.comparisons and v.baseline is not None
    }
    own = study.outcomes[part.variant], study.outcomes[part.baseline]
    return compare({**pairs, f"{part}": own}, study.study.effect)[f"{part}"]


def _agrees(part: Part, comparison: Comparison) -> bool | None:
    """None: the numbers cannot tell. A pair in which a run diverged has no verdict but that, and
    bears nobody's claim of a difference in loss."""
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
    if comparison.verdict == "diverged":
        lost = (f"{one} in {study.outcomes[one].divergence}"
                for one in (part.variant, other))  # fmt: skip
        return f"{name}: diverged, {' and '.join(lost)}"
    if comparison.low is None or comparison.p_holm is None:
        return f"{name}: {comparison.verdict}"
    difference, interval = difference_and_interval(comparison)
    p = "p below 0.001" if comparison.p_holm < 0.001 else f"p {comparison.p_holm:.3f}"
    return f"{name} {difference} nats ({interval}, {p} after Holm)"


def _besides(parts: Sequence[Part], study: Findings) -> str:
    """What a variant differs in besides what was asked, by the settings' names."""
    found = []
    for part in parts:
        variant = study.study.variant(part.variant)
        against = replace(variant, baseline=part.baseline or variant.baseline)
        keys = confounds(study.study, against)
        if keys:
            found.append(f"{variant.name} differs in {', '.join(keys)} as well")
    return "".join(f"; {one}" for one in dict.fromkeys(found))
