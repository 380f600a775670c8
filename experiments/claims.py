"""Published claims beside the results of the studies here, as far as their statistics carry."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter

from transformer_norms.comparison.contrasts import Contrast, find_contrast
from transformer_norms.comparison.sentences import difference_and_interval
from transformer_norms.comparison.statistics import LEVEL
from transformer_norms.comparison.verdict import Comparison, Verdict, compare
from transformer_norms.report.fairness import check_comparable, confounds
from transformer_norms.report.findings import Findings, asked_comparisons
from transformer_norms.report.scope import regime
from transformer_norms.report.study import Variant
from transformer_norms.text_tables import escape_markdown

Says = Literal["better", "worse", "equivalent", "different"]
Word = Literal[
    "seen here", "other sign here", "equivalent here", "not told apart", "not tested here",
    "not askable here", "mixed",
]  # fmt: skip
OPPOSITE = {"better": "worse", "worse": "better"}


@dataclass(frozen=True)
class Part:
    """One comparison that a claim rests on, and the verdict that it expects: of `variant` against
    `baseline`, both by their names in the study's report, or of a `contrast` between its variants.
    `called` is its name in the table and the figure, where those words would be too long.
    """

    says: Says
    variant: str = ""
    baseline: str | None = None  # the study's own where none is named
    contrast: str = ""
    called: str = ""


@dataclass(frozen=True)
class Claim:
    """A published sentence, its source, and the comparisons in which it would show. `beside` has to
    be read with it. If no comparison of runs can show the claim, `found` is its text, with {} for
    the measured value, and `runs` the study whose trained models were measured, if any were."""

    claim: str
    source: str
    study: str
    parts: list[Part] | None = None
    found: str = ""
    runs: str = ""
    beside: str = ""


def judge_claims(file: Path, studies: Mapping[str, Findings]) -> list[tuple[Claim, list["Judged"]]]:
    """The claims of a file, each with its parts as the studies judge them."""
    claims = TypeAdapter(list[Claim]).validate_python(yaml.safe_load(file.read_text()))
    return [
        (claim, [Judged(part, studies[claim.study]) for part in claim.parts or ()])
        for claim in claims
    ]


def claims_table(
    claims: Sequence[tuple[Claim, Sequence["Judged"]]],
    studies: Mapping[str, Findings],
    words: Mapping[str, str],
) -> str:
    """A row for each claim. `words` has the results of studies that compare no runs."""
    rows = ["| claim | source | found here | regime | study |", "|---|---|---|---|---|"]
    opposite = opposite_signs(studies)
    for claim, judged in claims:
        study = claim.study
        scope = escape_markdown(regime(studies[claim.runs])) if claim.runs else ""
        said = escape_markdown(claim.found.replace("{}", words.get(study, "")))
        if judged:
            said = "; ".join([finding(judged), *_other_differences(judged)])
            said += _elsewhere(study, judged, opposite)
            names = dict.fromkeys(name for one in judged for name in one.contrast.coefficients)
            scope = escape_markdown(regime(studies[study], names))
        said += f"; {escape_markdown(claim.beside)}" if claim.beside else ""
        rows.append(f"| {claim.claim} | {claim.source} | {said} | {scope} | [{study}]({study}) |")
    return "\n".join(rows)


def finding(judged: Sequence["Judged"]) -> str:
    """The word for all parts, and the numbers of each. `mixed`, if parts have different words."""
    word = common_word(one.word for one in judged)
    parts = [
        escape_markdown(one.numbers) + (f": *{one.word}*" if word == "mixed" else "")
        for one in judged
    ]
    return f"*{word}*: {'; '.join(parts)}"


def common_word(words: Iterable[Word]) -> Word:
    """The word of all parts of a claim; `mixed` where they have different ones."""
    different = set(words)
    return different.pop() if len(different) == 1 else "mixed"


def word_of(says: Says, verdict: Verdict) -> Word:
    """Whether a verdict shows what a claim says. A comparison in which a run failed says nothing of
    losses, and nothing at all where both sides fail alike."""
    if verdict == says or (says == "different" and verdict in OPPOSITE):
        return "seen here"
    if verdict in OPPOSITE:
        return "other sign here"
    words: dict[Verdict, Word] = {
        "equivalent": "equivalent here",
        "not told apart": "not told apart",
        "described": "not tested here",
    }
    return words.get(verdict, "not askable here")


class Judged:
    """A part of a claim with the comparison of the study that judges it: the report's own one, or
    one that is only described, as the study did not declare it."""

    def __init__(self, part: Part, study: Findings) -> None:
        self.part, self.study = part, study
        if part.contrast:
            variants = {variant.name: variant.values for variant in study.study.variants}
            self.contrast = find_contrast(part.contrast, variants)
        else:
            own = study.study.variant(part.variant).baseline
            baseline = part.baseline or own or part.variant
            self.contrast = Contrast({part.variant: 1.0, baseline: -1.0}, f"{part}")
        self.comparison = comparison_of(study, self.contrast)

    @property
    def word(self) -> Word:
        """The word of the part. A variant without results failed wherever it was tuned."""
        if self.comparison is None:
            return "not askable here"
        return word_of(self.part.says, self._failing_side() or self.comparison.verdict)

    def _failing_side(self) -> Verdict | None:
        """`worse` of a variant that fails to train where its baseline trains, as Fisher's exact
        test says it; `better` if it is the other way round. None if the test does not tell."""
        assert self.comparison is not None
        pair, fisher = self.contrast.pair, self.comparison.fisher
        if pair is None or fisher is None or fisher >= LEVEL:
            return None
        own, base = (self.study.outcomes[name].failure for name in pair)
        return "worse" if own.count * base.total > base.count * own.total else "better"

    @property
    def name(self) -> str:
        part = self.part
        pair = f"{part.variant}{f' - {part.baseline}' if part.baseline else ''}"
        return part.called or part.contrast or pair

    @property
    def numbers(self) -> str:
        name, c = self.name, self.comparison
        if c is None:
            return f"{name}: failed to train at every value tried"
        if c.verdict == "failed":
            outcomes = self.study.outcomes
            lost = [
                f"{one} in {outcomes[one].failure_text}"
                for one in self.contrast.coefficients
                if outcomes[one].failed
            ]
            fisher = "" if c.fisher is None else f", Fisher's p {c.fisher:.3f}"
            return f"{name}: failed to train, {' and '.join(lost)}{fisher}"
        if c.interval is None or c.verdict == "best rate not found":
            return f"{name}: {c.verdict}"
        difference, interval = difference_and_interval(c)
        p = "" if c.p is None else ", p below 0.001" if c.p < 0.001 else f", p {c.p:.3f}"
        return f"{name} {difference} nats ({interval}{p})"


def comparison_of(findings: Findings, contrast: Contrast) -> Comparison | None:
    """The comparison of a study that has these coefficients, or else one more, which is described.
    None if one of its variants has no results."""
    for name, comparison in findings.every.items():
        if findings.study.asked[name].coefficients == contrast.coefficients:
            return comparison
    study = replace(findings.study, contrasts=[*findings.study.contrasts, contrast])
    check_comparable(study)
    asked = asked_comparisons(study, findings.outcomes, findings.slack)
    return compare(asked, findings.rules, described=asked).get(contrast.text)


def _other_differences(judged: Sequence[Judged]) -> list[str]:
    """The settings in which a variant and its baseline differ beyond the question."""
    notes = []
    for one in judged:
        study = one.study.study
        pair = [study.variant(name) for name in one.contrast.pair or ()]
        if pair and (keys := confounds(study, *pair)):
            notes.append(escape_markdown(f"{pair[0].name} differs in {', '.join(keys)} as well"))
    return list(dict.fromkeys(notes))


# --------------------------------------------------------------- studies that contradict each other

Place = tuple[str, str]  # a study, and a variant of it


def opposite_signs(studies: Mapping[str, Findings]) -> dict[Place, list[Place]]:
    """The variants that are better than their baseline in one study, and worse than the same
    baseline in another: each with all its opposites. Two pairs are the same if the values in which
    variant and baseline differ are the same, whatever else their studies have."""
    named: dict[str, list[tuple[Place, str]]] = {}
    for study, results in studies.items():
        for variant in results.compared:
            if (verdict := results.verdict(variant)) in OPPOSITE:
                place = (study, variant.name)
                named.setdefault(_difference(results, variant), []).append((place, verdict))
    opposite: dict[Place, list[Place]] = {}
    for members in named.values():
        for place, verdict in members:
            others = [there for there, sign in members if sign == OPPOSITE[verdict]]
            if others := [there for there in others if there[0] != place[0]]:
                opposite[place] = others
    return opposite


def _difference(results: Findings, variant: Variant) -> str:
    """The values in which a variant and its baseline differ, of both."""
    own, base = variant.values, results.study.baseline_of(variant).values
    keys = sorted(key for key in {**own, **base} if own.get(key) != base.get(key))
    return str([(key, own.get(key), base.get(key)) for key in keys])


def _elsewhere(
    study: str, judged: Sequence[Judged], opposite: Mapping[Place, Sequence[Place]]
) -> str:
    """Links to the other studies that found the other sign."""
    places = []
    for one in judged:
        variant, baseline = one.contrast.pair or ("", "")
        if variant and one.study.study.variant(variant).baseline == baseline:
            places += [name for name, _ in opposite.get((study, variant), ())]
    links = ", ".join(f"[{name}]({name})" for name in dict.fromkeys(places))
    return f"; other sign in {links}" if links else ""


def contradictions(study: str, studies: Mapping[str, Findings]) -> list[str]:
    """A line in Markdown for each variant of a study whose sign is another in another study, which
    it names with what is different there."""
    lines, results, opposite = [], studies[study], opposite_signs(studies)
    for variant in results.study.variants:
        name = variant.name
        if (others := opposite.get((study, name))) is None:
            continue
        here = _pair_regime(results, name)
        there = [
            f"[{place}](../{place}) ({escape_markdown(_apart(studies[place], one, here))})"
            for place, one in others
        ]
        sign = results.verdict(variant)
        lines.append(
            f"{escape_markdown(f'{name} is {sign} than {variant.baseline}')} here, and "
            f"{OPPOSITE[sign]} in {', '.join(there)}"
        )
    return lines


def _pair_regime(results: Findings, name: str) -> list[str]:
    """The parts of the regime of a variant and its baseline."""
    pair = [name, results.study.baseline_of(results.study.variant(name)).name]
    return regime(results, pair).replace(", ", "; ").split("; ")


def _apart(results: Findings, name: str, here: Sequence[str]) -> str:
    """The name of a variant, and the parts of its regime that are not those of `here`."""
    return "; ".join([name, *(part for part in _pair_regime(results, name) if part not in here)])
