"""The findings in sentences: each claims what its numbers carry, and no more.

The answer of a study stands before its details: which variants are better, and which it cannot
tell.
"""

import math
from dataclasses import dataclass

from transformer_norms.report.findings import Findings
from transformer_norms.report.statistics import LEVEL, Comparison, Outcomes, Share, Verdict
from transformer_norms.report.study import Variant
from transformer_norms.report.tuning import caveats


def sentence(findings: Findings, variant: Variant) -> str:
    """The verdict on a variant, with what makes its tuning unfair, or how its runs ended."""
    own = findings.outcomes[variant.name]
    if not variant.results:
        if variant.lost:
            return f"{variant.name} diverged at every value tried ({len(variant.trials)} runs)"
        return f"{variant.name} has no runs planned for its result yet"
    if not variant.compared:
        return f"{variant.name}: {_ending(own)}"
    baseline = findings.study.baseline_of(variant)
    compared, other = findings.comparisons[variant.name], findings.outcomes[baseline.name]
    verdict = comparison_sentence(variant.name, baseline.name, compared, own, other)
    return "; ".join([verdict, *caveats(variant, baseline)])


def _ending(outcomes: Outcomes) -> str:
    """`mean 2.3000 nats over 3 seeds; diverged in 1 of 3 (1 to 91 %); 1 missing`"""
    if outcomes.mean is None:
        return f"no run has ended, {len(outcomes.missing)} missing"
    count = len(outcomes.losses)
    words = f"mean {outcomes.mean:.4f} nats over {count} seed{'s' * (count > 1)}"
    if outcomes.diverged:
        words += f"; diverged in {outcomes.divergence}"
    return words + (f"; {len(outcomes.missing)} missing" if outcomes.missing else "")


def comparison_sentence(
    variant: str,
    baseline: str,
    comparison: Comparison,
    outcomes: Outcomes,
    baseline_outcomes: Outcomes,
) -> str:
    """The verdict on `variant` against `baseline`, in nats per token and without a full stop."""
    match comparison.verdict:
        case "better" | "worse":
            said = _apart(variant, baseline, comparison)
        case "equivalent":
            said = _equivalent(variant, baseline, comparison)
        case "not distinguishable":
            said = _not_distinguishable(variant, baseline, comparison)
        case "identical":
            seeds = _count(len(comparison.seeds), "seed")
            said = f"{variant} has exactly the losses of {baseline} with {seeds}"
        case "diverged":
            said = _diverged(variant, baseline, outcomes.divergence, baseline_outcomes.divergence)
        case "too few seeds":
            said = _too_few(variant, baseline, comparison)
    return said + _missing(variant, outcomes) + _missing(baseline, baseline_outcomes)


def _apart(variant: str, baseline: str, c: Comparison) -> str:
    sign = -1 if c.verdict == "better" else 1
    difference, interval = difference_and_interval(c, sign)
    return (
        f"{variant} is {c.verdict} than {baseline} by {difference} nats "
        f"({interval}, {_evidence(c)})"
    )


def _equivalent(variant: str, baseline: str, c: Comparison) -> str:
    assert c.p_equivalent is not None
    difference, interval = difference_and_interval(c)
    return (
        f"{variant} is equivalent to {baseline} within {c.effect:g} nats "
        f"(difference {difference}, {interval}, {_p(c.p_equivalent)} after Holm, "
        f"{_count(len(c.seeds), 'seed')})"
    )


def _not_distinguishable(variant: str, baseline: str, c: Comparison) -> str:
    assert c.p_holm is not None
    assert c.detectable is not None
    difference, interval = difference_and_interval(c)
    if c.p_holm < LEVEL:
        return (
            f"{variant} differs from {baseline} by {difference} nats "
            f"({interval}, {_evidence(c)}), less than the {c.effect:g} worth naming"
        )
    return (
        f"{variant} is not distinguishable from {baseline} with {_count(len(c.seeds), 'seed')} "
        f"(they would find a true difference of {_two_digits(c.detectable)} nine times in ten): "
        f"difference {difference} nats, {interval}, {_p(c.p_holm)} after Holm"
    )


def _diverged(variant: str, baseline: str, ours: Share, theirs: Share) -> str:
    first, second = (variant, ours), (baseline, theirs)
    if ours.count == 0:
        first, second = second, first
    return f"{first[0]} diverged in {first[1]}, {second[0]} in {second[1]}"


def _too_few(variant: str, baseline: str, c: Comparison) -> str:
    said = f"{variant} cannot be compared with {baseline}"
    if c.difference is None:
        return f"{said}: they have no seed in common"
    difference = _two_digits(c.difference)
    if len(c.seeds) == 1:
        return f"{said} with 1 seed (difference {difference} nats)"
    return (
        f"{said}: the difference is the same {difference} nats with each of {len(c.seeds)} seeds, "
        "which therefore count as one"
    )


def _missing(name: str, outcomes: Outcomes) -> str:
    missing, planned = len(outcomes.missing), outcomes.planned
    if not missing:
        return ""
    return (
        f"; {name}: {missing} of {_count(planned, 'run')} {'is' if missing == 1 else 'are'} missing"
    )


def difference_and_interval(c: Comparison, sign: int = 1) -> tuple[str, str]:
    """The difference, times `sign`, and its interval, to two digits of its half-width."""
    assert c.difference is not None
    assert c.low is not None
    assert c.high is not None
    decimals = max(0, -math.floor(math.log10((c.high - c.low) / 20)))
    low, high = sorted((sign * c.low, sign * c.high))
    shown = [f"{value:z.{decimals}f}" for value in (sign * c.difference, low, high)]
    return shown[0], f"95 % interval {shown[1]} to {shown[2]}"


def _evidence(c: Comparison) -> str:
    assert c.p_holm is not None
    exact = "" if c.sign_flip is None else f", sign-flip {_p(c.sign_flip)}"
    return f"{_p(c.p_holm)} after Holm{exact}, {_count(len(c.seeds), 'seed')}"


def _p(p: float) -> str:
    if p < 0.001:
        return "p below 0.001"
    if 0.0495 <= p < LEVEL:
        return "p just below 0.05"  # three decimals would say that it is not
    return f"p {p:.3f}" if p < 0.1 else f"p {p:.2f}"


def _two_digits(value: float) -> str:
    decimals = max(0, 1 - math.floor(math.log10(abs(value)))) if value else 0
    shown = f"{value:z.{decimals}f}"
    return shown.rstrip("0").rstrip(".") if decimals else shown


def _count(number: int, of: str) -> str:
    return f"{number} {of}" if number == 1 else f"{number} {of}s"


# --------------------------------------------------------------------------------------- the answer

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
    """`lead` is the strongest statement that holds; `unfinished` stands before it if runs are
    missing."""

    lead: str
    groups: list[Group]
    notes: list[str]
    unfinished: str = ""


def answer(findings: Findings) -> Answer:
    """Sorts the variants that have a baseline by verdict. Without a baseline, the lead gives only
    the number of variants."""
    compared = findings.compared
    said = {
        verdict: [(v, _difference(findings, v)) for v in _ordered(findings, compared, verdict)]
        for verdict in _ORDER
    }
    said["diverged"] += [(v, "at every value tried") for v in _lost(findings)]
    groups = [Group(verdict, variants) for verdict, variants in said.items() if variants]
    return Answer(
        _lead(findings, compared), groups, _notes(findings, groups, compared), _unfinished(findings)
    )


def _lost(findings: Findings) -> list[Variant]:
    """The variants that diverged wherever they were tuned: that is an answer, too."""
    return [v for v in findings.study.variants if v.compared and v.lost]


def _ordered(findings: Findings, compared: list[Variant], verdict: str) -> list[Variant]:
    """The variants of a verdict, the lowest difference first."""
    members = [v for v in compared if findings.comparisons[v.name].verdict == verdict]
    return sorted(members, key=lambda v: findings.comparisons[v.name].difference or 0)


def _difference(findings: Findings, variant: Variant) -> str:
    compared = findings.comparisons[variant.name]
    if compared.verdict == "diverged":
        own = findings.outcomes[variant.name]
        other = findings.outcomes[variant.baseline or variant.name]
        if not own.diverged:
            return f"(not itself; {variant.baseline} in {other.divergence})"
        return f"in {own.divergence}"
    if compared.difference is None or compared.verdict == "identical":
        return ""
    if compared.low is None:
        return f"{compared.difference:+.4f}"
    difference, interval = difference_and_interval(compared)
    sign = "+" if compared.difference > 0 else ""
    return f"{sign}{difference} ({interval.removeprefix('95 % interval ')})"


def _lead(findings: Findings, compared: list[Variant]) -> str:
    study = findings.study
    better = _ordered(findings, compared, "better")
    if better:
        return f"{sentence(findings, better[0])}."
    if not compared:
        if lost := _lost(findings):
            return f"{'; '.join(sentence(findings, v) for v in lost)}."
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
    """The limits of the answer, in sentences."""
    verdicts = {group.verdict for group in groups}
    told = [(findings.comparisons[v.name].p_holm or 0.0) < LEVEL for v in compared]
    notes = []
    if "better" not in verdicts and (lowest := _lowest(findings)):
        notes.append(lowest)
    if "not distinguishable" in verdicts and not all(told):
        notes.append("Not distinguishable is no finding of equality: more seeds might tell.")
    if len(compared) > 1:
        notes.append("Each variant is compared with its baseline, and not with the others.")
    return notes


def _lowest(findings: Findings) -> str:
    """The variant with the lowest mean, and how much that tells."""
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
