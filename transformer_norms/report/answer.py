"""The answer of a study before its details: which variants are better, and which it cannot tell."""

from dataclasses import dataclass

from transformer_norms.report.findings import Findings
from transformer_norms.report.paired_tests import LEVEL
from transformer_norms.report.statistics import Verdict
from transformer_norms.report.study import Variant
from transformer_norms.report.verdict import measured, share_in_words

_ORDER: tuple[Verdict, ...] = (
    "better", "worse", "diverged", "equivalent", "identical", "not distinguishable", "too few seeds"
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """The variants of one verdict, each with its difference in words."""

    verdict: Verdict
    said: list[tuple[Variant, str]]


@dataclass(frozen=True)
class Answer:
    """`lead` is the strongest thing that can be said; `unfinished` stands before it where runs are
    missing."""

    lead: str
    groups: list[Group]
    notes: list[str]
    unfinished: str = ""


def answer(findings: Findings) -> Answer:
    """Of variants that have a baseline; of others the lead says only how many there are."""
    compared = [v for v in findings.study.variants if v.name in findings.comparisons]
    said = {
        verdict: [(v, _by(findings, v)) for v in _ordered(findings, compared, verdict)]
        for verdict in _ORDER
    }
    said["diverged"] += [(v, "at every value tried") for v in _lost(findings)]
    groups = [Group(verdict, variants) for verdict, variants in said.items() if variants]
    return Answer(
        _lead(findings, compared), groups, _notes(findings, groups, compared), _unfinished(findings)
    )


def _lost(findings: Findings) -> list[Variant]:
    """What diverged wherever it was tuned: there is nothing to compare, and it is an answer."""
    return [v for v in findings.study.variants if v.compared and v.lost]


def _ordered(findings: Findings, compared: list[Variant], verdict: str) -> list[Variant]:
    """The lowest difference first."""
    found = [v for v in compared if findings.comparisons[v.name].verdict == verdict]
    return sorted(found, key=lambda v: findings.comparisons[v.name].difference or 0)


def _by(findings: Findings, variant: Variant) -> str:
    compared = findings.comparisons[variant.name]
    if compared.verdict == "diverged":
        own = findings.outcomes[variant.name]
        other = findings.outcomes[variant.baseline or variant.name]
        if not own.diverged:
            return f"(not itself; {variant.baseline} in {share_in_words(other.divergence)})"
        return f"in {share_in_words(own.divergence)}"
    if compared.difference is None or compared.verdict == "identical":
        return ""
    if compared.low is None:
        return f"{compared.difference:+.4f}"
    difference, interval = measured(compared)
    sign = "+" if compared.difference > 0 else ""
    return f"{sign}{difference} ({interval.removeprefix('95 % interval ')})"


def _lead(findings: Findings, compared: list[Variant]) -> str:
    study = findings.study
    better = _ordered(findings, compared, "better")
    if better:
        return f"{findings.sentence(better[0])}."
    if not compared:
        if lost := _lost(findings):
            return f"{'; '.join(map(findings.sentence, lost))}."
        ran = [(*variant.results, *variant.trials) for variant in study.variants]
        count = sum(any(run.ended for run in runs) for runs in ran)
        return f"{count} variant{'s' * (count != 1)} ran; nothing is compared."
    baselines = sorted({variant.baseline or "" for variant in compared})
    of = baselines[0] if len(baselines) == 1 else "its baseline"
    one = len(compared) == 1
    said = f"{compared[0].name} is not shown" if one else "No variant is shown"
    seeds = {len(findings.comparisons[v.name].seeds) for v in compared}
    many = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    return f"{said} to be better than {of} with {many} seed{'s' * (seeds != {1})}."


def _notes(findings: Findings, groups: list[Group], compared: list[Variant]) -> list[str]:
    """Sentences that keep a reader from taking the groups for more than they are."""
    found = {group.verdict for group in groups}
    told = [(findings.comparisons[v.name].p_holm or 0.0) < LEVEL for v in compared]
    notes = []
    if "better" not in found and (lowest := _lowest(findings)):
        notes.append(lowest)
    if "not distinguishable" in found and not all(told):
        notes.append("Not distinguishable is no finding of equality: more seeds might tell.")
    if len(compared) > 1:
        notes.append("Each variant is compared with its baseline, and not with the others.")
    return notes


def _lowest(findings: Findings) -> str:
    """Which variant has the lowest mean, where it is compared, and how much that says."""
    means = {
        variant.name: mean
        for variant in findings.study.variants
        if (mean := findings.outcomes[variant.name].mean) is not None
    }
    if len(means) < 2 or not findings.comparisons:
        return ""
    name = min(means, key=lambda name: means[name])
    if (compared := findings.comparisons.get(name)) is None:
        return f"The lowest mean is that of {name}, which is a baseline."
    if compared.p_holm is None:
        return ""
    said = f"The lowest mean is that of {name}"
    if compared.p_holm < LEVEL:
        return f"{said}, less than the {compared.effect:g} worth naming below its baseline's."
    return (
        f"{said}, which these seeds do not show to be better: p {compared.p_holm:.2g} after "
        "Holm's correction."
    )


def _unfinished(findings: Findings) -> str:
    count = findings.study.count()
    if count["missing"]:
        return f"Not finished: {count['missing']} of {count['runs']} runs have no result."
    return "Not finished: results are not planned yet." if findings.study.unfinished else ""
