"""Published claims and our own questions with the answers of the studies here."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import yaml
from pydantic import TypeAdapter

from transformer_norms.analysis.outcome import csv_of
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
Word = Literal["seen", "contrary", "equal", "unclear", "untested", "failed"]
COLOURS = dict(zip(get_args(Word), "🟢 🔴 🔵 🟡 ⚪ ⚫".split(), strict=True))
TITLES = {"published": "Published claims", "own": "Our own questions"}
OPPOSITE = {"better": "worse", "worse": "better"}
BYTES = 4.5  # of a token of a published model
Measured = Mapping[str, Mapping[str, Comparison]]  # by study and by name, what a tool measured


@dataclass(frozen=True)
class Part:
    """A comparison in which a claim would show: of `variant` against `baseline`, both by their
    names in the study's report, of a `contrast` between variants, or one that was `measured`.
    `called` is a short name. `study` and `says` are the claim's where a part has none."""

    variant: str = ""
    baseline: str | None = None  # the study's own where none is named
    contrast: str = ""
    measured: str = ""
    called: str = ""
    study: str = ""
    says: Says | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence, its source, and the parts in which it would show. The first part is its row.
    `published` is its effect in nats per token, `unit` that of its numbers, if they are not nats
    per byte. A tool measured the models of the study `runs`. A claim that `says` nothing is
    untested."""

    claim: str
    asked: Literal["published", "own"]
    question: Literal["placements", "norms", "changes"]
    source: str
    study: str
    parts: list[Part]
    says: Says | None = None
    published: float | None = None
    unit: str = ""
    runs: str = ""
    note: str = ""


def judge_claims(
    file: Path, studies: Mapping[str, Findings], measured: Measured
) -> list[list["Judged"]]:
    """The parts of each claim of a file, as the studies judge them."""
    claims = TypeAdapter(list[Claim]).validate_python(yaml.safe_load(file.read_text()))
    return [[Judged(one, part, studies, measured) for part in one.parts] for one in claims]


def word_of(says: Says, verdict: Verdict) -> Word:
    """Whether a verdict shows what a claim says. A comparison in which a run failed says nothing of
    losses, and nothing at all where both sides fail alike."""
    if verdict == says or (says == "different" and verdict in OPPOSITE):
        return "seen"
    if verdict in OPPOSITE:
        return "contrary"
    words: dict[Verdict, Word] = {
        "equivalent": "equal",
        "not told apart": "unclear",
        "described": "untested",
    }
    return words.get(verdict, "failed")


class Judged:
    """A part of a claim with the comparison that judges it: the report's own one, one that is only
    described, as the study did not declare it, or one that a tool measured."""

    def __init__(
        self, claim: Claim, part: Part, studies: Mapping[str, Findings], measured: Measured
    ) -> None:
        self.claim, self.part = claim, part
        self.study, self.says = part.study or claim.study, part.says or claim.says
        self.findings = studies.get(claim.runs or self.study)
        self.contrast = Contrast({}, part.measured)
        if part.measured:
            self.comparison: Comparison | None = measured[self.study][part.measured]
        else:
            self.contrast = contrast_of(part, studies[self.study])
            self.comparison = comparison_of(studies[self.study], self.contrast)

    @property
    def word(self) -> Word:
        """A variant without results failed wherever it was tuned."""
        if self.comparison is None:
            return "failed"
        verdict = self._failing_side() or self.comparison.verdict
        return word_of(self.says, verdict) if self.says else "untested"

    def _failing_side(self) -> Verdict | None:
        """`worse` of a variant that fails to train where its baseline trains, as Fisher's exact
        test says it; `better` if it is the other way round. None if the test does not tell."""
        fisher = self.comparison.fisher if self.comparison else None
        if self.contrast.pair is None or fisher is None or fisher >= LEVEL:
            return None
        assert self.findings is not None
        own, base = (self.findings.outcomes[name].failure for name in self.contrast.pair)
        return "worse" if own.count * base.total > base.count * own.total else "better"

    @property
    def name(self) -> str:
        part = self.part
        return part.called or part.contrast or part.measured or part.variant

    @property
    def has_interval(self) -> bool:
        c = self.comparison
        return c is not None and c.interval is not None and c.verdict != "best rate not found"

    @property
    def numbers(self) -> str:
        """`-0.032 (-0.039 to -0.024)`, or why there is no difference."""
        c = self.comparison
        if c is None:
            return "failed at every rate"
        if c.verdict == "failed":
            assert self.findings is not None
            lost = [self.findings.outcomes[name].failure for name in self.contrast.coefficients]
            counts = [f"{one.count} of {one.total} runs failed" for one in lost if one.count]
            return " and ".join(counts) + (f", p {c.fisher:.3f}" if c.fisher is not None else "")
        if not self.has_interval:
            return c.verdict
        difference, interval = difference_and_interval(c)
        sign = "" if difference.startswith("-") else "+"
        return f"{sign}{difference} ({interval.removeprefix('95 % interval ')})"

    @property
    def regime(self) -> str:
        return regime(self.findings, self.contrast.coefficients) if self.findings else ""

    @property
    def tags(self) -> str:
        """Parameters and bytes; init and seeds."""
        if not self.regime:
            return ""
        sizes, init, seeds, tuned = self.regime.split("; ")
        size = sizes.replace(" parameters", "").replace(" training bytes", "B").split(", best")[0]
        untuned = ", untuned" if tuned == "not tuned" else ""
        return f"`{size}` `{init.removeprefix('init ')}, {seeds}{untuned}`"

    @property
    def findable(self) -> str:
        """The difference that is found nine times in ten, and the published one per byte."""
        c, published = self.comparison, self.claim.published
        found = c.detectable if c is not None else None
        texts = [] if found is None else [f"{found:.3f}"]
        if published is not None:
            sign = "" if found is None else "> " if found > published / BYTES else "< "
            texts.append(f"{sign}{published / BYTES:.4f} published")
        return " ".join(texts)

    def known(self) -> dict[str, Any]:
        """The claim, the comparison and its numbers."""
        c, claim = self.comparison or Comparison(()), self.claim
        low, high = c.interval or (None, None)
        numbers = {
            "difference": c.difference, "low": low, "high": high, "p": c.p, "fisher": c.fisher,
            "could_find": c.detectable, "published": claim.published and claim.published / BYTES,
        }  # fmt: skip
        return {
            "asked": claim.asked, "source": claim.source, "study": self.study, "part": self.name,
            "says": self.says, "here": self.word,
            "reason": None if self.has_interval else self.numbers,
            **{key: number and round(number, 5) for key, number in numbers.items()},
            "unit": claim.unit or "nats per byte", "seeds": len(c.seeds) or None,
            "comparison": self.contrast.text, "regime": self.regime, "note": claim.note,
        }  # fmt: skip

    def beside(self, opposite: "Opposite") -> dict[str, str]:
        """The settings in which a variant and its baseline differ beyond the question, and the
        other studies that found the other sign."""
        if self.findings is None or self.contrast.pair is None:
            return {}
        study = self.findings.study
        variant, baseline = map(study.variant, self.contrast.pair)
        own = variant.baseline == baseline.name
        places = opposite.get((self.study, variant.name), ()) if own else ()
        return {
            "differs_in": ", ".join(confounds(study, variant, baseline)),
            "other_sign_in": ", ".join(dict(places)),
        }


Claims = Sequence[Sequence[Judged]]  # the parts of each, the one of its row first


def contrast_of(part: Part, study: Findings) -> Contrast:
    if part.contrast:
        return find_contrast(part.contrast, {v.name: v.values for v in study.study.variants})
    baseline = part.baseline or study.study.variant(part.variant).baseline or part.variant
    return Contrast({part.variant: 1.0, baseline: -1.0}, f"{part.variant} - {baseline}")


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


# ---------------------------------------------------------------------------- the page and the file


def claims_text(claims: Claims, homes: Mapping[str, str]) -> str:
    """A table of one line for each claim, for what was published and for what we asked."""
    in_nats = [first for first, *_ in claims if not first.claim.unit]
    tested = [(c.detectable, first.claim.published) for first in in_nats
              if (c := first.comparison) and c.detectable is not None]  # fmt: skip
    finds = [found for found, _ in tested]
    hidden = [found > effect / BYTES for found, effect in tested if effect is not None]
    parts = [
        f"The {len(finds)} tested rows could find {min(finds):.3f} to {max(finds):.2f} nats per "
        f"byte, half of them {median(finds):.3f} or less. The published effect is known for "
        f"{len(hidden)} of them; {sum(hidden)} of these lie below what could be found."
    ]
    for asked, title in TITLES.items():
        own = [judged for judged in claims if judged[0].claim.asked == asked]
        counts = Counter(first.word for first, *_ in own)
        said = ", ".join(f"{counts[w]} {COLOURS[w]} {w}" for w in COLOURS if counts[w])
        rows = ["| claim | source | here | difference | could find | also | regime | study |"]
        rows += [
            "|---|---|---|---|---|---|---|---|",
            *(_row(*judged, homes=homes) for judged in own),
        ]
        parts.append(f"## {title}\n\n{said}.\n\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _row(first: Judged, *rest: Judged, homes: Mapping[str, str]) -> str:
    claim = first.claim
    source = escape_markdown(claim.source.partition(";")[0])
    source = re.sub(r"^(.*?), arXiv:([\d.]+).*", r"[\1](https://arxiv.org/abs/\2)", source)
    counts = Counter(one.word for one in rest)
    also = f"{counts.pop(first.word, 0)} of {len(rest)}" if rest else ""
    also += "".join(f", {counts[w]} {w}" for w in ("seen", "contrary") if counts[w])
    unit = claim.unit if first.has_interval else ""
    difference = f"{first.numbers} {unit}".rstrip()
    cells = [
        claim.claim, source, f"{COLOURS[first.word]} {first.word}", difference, first.findable,
        also, first.tags, f"[{claim.study}]({homes[claim.study]})",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def claims_csv(claims: Claims, studies: Mapping[str, Findings]) -> bytes:
    """A row for each part of a claim, with all that is known of it."""
    opposite, rows = opposite_signs(studies), []
    for judged in claims:
        for one in judged:
            first = {"claim": one.claim.claim, "row": "yes" if one is judged[0] else "no"}
            rows.append(first | one.known() | one.beside(opposite))
    return csv_of(rows)


# --------------------------------------------------------------- studies that contradict each other

Place = tuple[str, str]  # a study, and a variant of it
Opposite = Mapping[Place, Sequence[Place]]


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


def contradictions(
    study: str, studies: Mapping[str, Findings], homes: Mapping[str, str]
) -> list[str]:
    """A line in Markdown for each variant of a study whose sign is another in another study, which
    it names with what is different there."""
    lines, results, opposite = [], studies[study], opposite_signs(studies)
    for variant in results.study.variants:
        name = variant.name
        if (others := opposite.get((study, name))) is None:
            continue
        here = _pair_regime(results, name)
        there = [
            f"[{place}]({os.path.relpath(homes[place], homes[study])}) "
            f"({escape_markdown(_apart(studies[place], one, here))})"
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
