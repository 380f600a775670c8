"""The answer of a study in sentences: which variants are better, and which it cannot tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sentences import (
    comparison_sentence,
    difference_and_interval,
    plural,
    sum_sentence,
)
from transformer_norms.comparison.statistics import FEWEST, LEVEL
from transformer_norms.comparison.verdict import Verdict
from transformer_norms.report.fairness import confounds, pairs_within
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant
from transformer_norms.report.tuning_audit import caveats, same_data_note

_UNTESTED = ("failed", "not decided yet", "too few seeds")


@dataclass(frozen=True)
class Group:
    """The variants of one verdict, each with its difference in words."""

    verdict: Verdict
    members: list[tuple[Variant, str]]


@dataclass(frozen=True)
class Answer:
    """`lead` is the strongest statement that holds; `contrasts` has a sentence for each; `notes`
    are the limits of the answer."""

    lead: str
    groups: list[Group]
    contrasts: list[str]
    notes: list[str]


def answer(findings: Findings) -> Answer:
    """Sorts the variants that have a baseline by verdict, the lowest difference first. Without a
    baseline, the lead gives only the number of variants."""
    groups = []
    for verdict in get_args(Verdict):
        variants = [v for v in findings.compared if findings.verdict(v) == verdict]
        variants.sort(key=lambda v: findings.comparisons[v.name].difference or 0)
        members = [(v, _difference_text(findings, v)) for v in variants]
        if verdict == "failed":
            members += [(v, "at every value tried") for v in _lost_variants(findings)]
        groups += [Group(verdict, members)] if members else []
    return Answer(
        _lead(findings, groups),
        groups,
        [f"{contrast_sentence(findings, contrast)}." for contrast in findings.study.contrasts],
        _notes(findings, groups),
    )


def sentence(findings: Findings, variant: Variant) -> str:
    """The verdict on a variant, with what makes its tuning unfair, or how its runs ended."""
    outcomes = findings.outcomes[variant.name]
    if not variant.results:
        if variant.lost:
            return (
                f"{variant.name} failed to train at every value tried ({len(variant.trials)} runs)"
            )
        return f"{variant.name} has no runs planned for its result yet"
    if not variant.compared:
        return f"{variant.name}: {_ending_text(outcomes)}"
    baseline = findings.study.baseline_of(variant)
    verdict = comparison_sentence(
        variant.name,
        baseline.name,
        findings.comparisons[variant.name],
        outcomes,
        findings.outcomes[baseline.name],
    )
    return "; ".join([verdict, *caveats(variant, baseline)])


def contrast_sentence(findings: Findings, contrast: Contrast) -> str:
    """The verdict on a contrast, with what makes the tuning of its variants unfair."""
    study, comparison = findings.study, findings.contrasts.get(contrast.text)
    variants = [study.variant(name) for name in contrast.coefficients]
    if comparison is None:
        without = ", ".join(variant.name for variant in variants if not variant.results)
        return f"{contrast.text} has no value: {without} without results"
    outcomes = {variant.name: findings.outcomes[variant.name] for variant in variants}
    if contrast.pair:
        name, baseline = contrast.pair
        claim = comparison_sentence(name, baseline, comparison, outcomes[name], outcomes[baseline])
    else:
        claim = sum_sentence(contrast.text, contrast.unit, comparison, outcomes)
    unfair = [line for sides in pairs_within(study, contrast) for line in caveats(*sides)]
    return "; ".join([claim, *dict.fromkeys(unfair)])


def _ending_text(outcomes: Outcomes) -> str:
    """`mean 2.3000 nats over 2 seeds; failed in 1 of 3 (1 to 91 %; 1 diverged); 1 missing`"""
    missing = f"{len(outcomes.missing)} missing"
    if not outcomes.ended:
        return f"no run has ended, {missing}"
    parts = [f"failed in {outcomes.failure_text}"] if outcomes.failed else []
    if outcomes.mean is not None:
        seeds = plural(len(outcomes.losses), "seed")
        parts.insert(0, f"mean {outcomes.mean:.4f} nats over {seeds}")
    parts += [missing] if outcomes.missing else []
    return "; ".join(parts)


def _lost_variants(findings: Findings) -> list[Variant]:
    """The variants that failed wherever they were tuned: that is an answer, too."""
    return [v for v in findings.study.variants if v.compared and v.lost]


def _difference_text(findings: Findings, variant: Variant) -> str:
    comparison = findings.comparisons[variant.name]
    if comparison.verdict == "failed":
        if (failure := findings.outcomes[variant.name].failure).count:
            return f"in {failure}"
        baseline = findings.study.baseline_of(variant).name
        return f"trained; its baseline {baseline} failed in {findings.outcomes[baseline].failure}"
    if comparison.difference is None or comparison.verdict == "identical":
        return ""
    if comparison.waits:
        pairs = f"{len(comparison.seeds)} of {plural(comparison.planned, 'pair')}"
        return f"{pairs}, {comparison.difference:+.4f} so far"
    if comparison.low is None and comparison.high is None:
        return f"{comparison.difference:+.4f}"
    difference, interval = difference_and_interval(comparison)
    sign = "+" if comparison.difference > 0 else ""
    return f"{sign}{difference} ({interval.removeprefix('95 % interval ')})"


def _lead(findings: Findings, groups: list[Group]) -> str:
    """The widest claim, behind what limits it: a baseline that failed, or a variant that did."""
    compared = findings.compared
    failed = _failed_baselines(findings)
    if groups and groups[0].verdict == "better":
        best = groups[0].members[0][0]
        return f"{failed}{sentence(findings, best)}{_different_starts(findings, [best])}."
    if not compared:
        if lost := _lost_variants(findings):
            return f"{'; '.join(sentence(findings, v) for v in lost)}."
        variants = findings.study.variants
        count = sum(any(run.ended for run in (*v.results, *v.trials)) for v in variants)
        what = "nothing is compared"
        if findings.contrasts:
            what = f"compared in {plural(len(findings.contrasts), 'contrast')}"
        return f"{plural(count, 'variant')} ran; {what}."
    tested = [v for v in compared if findings.verdict(v) not in _UNTESTED]
    if not tested:
        claim = failed.removesuffix(". ") or _nothing_tested(findings)
        return f"{claim}{_different_starts(findings, compared)}."
    baselines = {variant.baseline for variant in tested}
    baseline = tested[0].baseline if len(baselines) == 1 else "its baseline"
    claim = f"{tested[0].name} is not" if len(tested) == 1 else "No variant is"
    seeds = sorted({len(findings.comparisons[v.name].seeds) for v in tested})
    fewest = "" if len(seeds) == 1 else f"{seeds[0]} to "
    claim = f"{claim} shown to be better than {baseline} with {fewest}{plural(seeds[-1], 'seed')}"
    return f"{failed}{_most_failing(findings)}{claim}{_different_starts(findings, tested)}."


def _different_starts(findings: Findings, variants: Sequence[Variant]) -> str:
    """`; post and pre have different starts (init=transformer2017 and init=mup)`, or nothing where
    each variant starts as its baseline does, or the start is what was asked about."""
    study = findings.study
    apart = [variant for variant in variants if "init" in confounds(study, variant)]
    if len(variants) == len(apart) == 1:
        pair = [variants[0], study.baseline_of(variants[0])]
        inits = dict.fromkeys(f"init={side.ended[0].choice('init')}" for side in pair)
        names = " and ".join(side.name for side in pair)
        return f"; {names} have different starts ({' and '.join(inits)})"
    several = f"; {len(apart)} of {len(variants)} variants have another start (init) than their"
    return f"{several} baseline" if apart else ""


def _most_failing(findings: Findings) -> str:
    """The sentence on the variant that failed most clearly more often than its baseline, if chance
    alone would make such failures of any variant in less than one of twenty studies."""
    p = {
        v.name: fisher
        for v in findings.compared
        if (fisher := findings.comparisons[v.name].fisher) is not None
        and not findings.outcomes[findings.study.baseline_of(v).name].failed
    }
    name = min(p, key=p.__getitem__, default=None)
    if name is None or p[name] >= LEVEL:
        return ""
    return f"{sentence(findings, findings.study.variant(name))}. "


def _failed_baselines(findings: Findings) -> str:
    """`The baseline pre failed to train in 2 of 5 (5 to 85 %; 2 diverged): ...`, or nothing."""
    names = dict.fromkeys(str(v.baseline) for v in findings.compared)
    failed = [
        f"{name} failed to train in {findings.outcomes[name].failure_text}"
        for name in names
        if findings.outcomes[name].failed
    ]
    if not failed:
        return ""
    one = len(failed) == 1
    return (
        f"The baseline{'' if one else 's'} {'; '.join(failed)}: no loss is compared with "
        f"{'it' if one else 'them'}. "
    )


def _nothing_tested(findings: Findings) -> str:
    """Why no verdict is on losses, where every baseline trained."""
    compared = findings.compared
    if len(compared) == 1:
        return sentence(findings, compared[0])
    seeds = [len(findings.comparisons[v.name].seeds) for v in compared]
    if all(findings.verdict(v) == "failed" for v in compared):
        return "Every variant failed to train in some run: no losses are compared"
    if waiting := [c for v in compared if (c := findings.comparisons[v.name]).waits]:
        least = min(waiting, key=lambda c: len(c.seeds) / c.planned)
        return (
            f"Not decided yet: {len(least.seeds)} of {plural(least.planned, 'pair')} have ended, "
            "and an early look names nothing"
        )
    if max(seeds) < FEWEST:
        return f"Too few seeds for a verdict: {max(seeds)}, and {FEWEST} are the fewest"
    return "No variant is shown to be better than its baseline"


def _notes(findings: Findings, groups: list[Group]) -> list[str]:
    verdicts = {group.verdict for group in groups}
    notes = [findings.study.unasked] if findings.study.unasked else []
    if "better" not in verdicts and (note := _lowest_mean(findings)):
        notes.append(note)
    if "not distinguishable" in verdicts:
        remedy = ", or a finer tuning with more seeds," if findings.gains else ""
        notes.append(
            f"Not distinguishable is no finding of equality: more seeds{remedy} might tell."
        )
    if len(findings.compared) > 1:
        beside = "; the contrasts are all else that is compared" if findings.contrasts else ""
        notes.append(
            f"Each variant is compared with its baseline, and not with the others{beside}."
        )
    if note := same_data_note(findings.study, findings.loss):
        notes.append(note)
    return notes


def _lowest_mean(findings: Findings) -> str:
    """The variant with the lowest mean, and how much that tells."""
    means = {
        name: outcomes.mean
        for name, outcomes in findings.outcomes.items()
        if outcomes.mean is not None and not outcomes.failed
    }
    if len(means) < 2 or not findings.comparisons:
        return ""
    name = min(means, key=means.__getitem__)
    note = f"The lowest mean is that of {name}"
    if (comparison := findings.comparisons.get(name)) is None:
        return f"{note}, which is a baseline."
    if comparison.p_holm is None:
        return ""
    if comparison.p_holm < LEVEL:  # and nothing is called better
        return f"{note}, less than the {comparison.effect:g} worth naming below its baseline's."
    return (
        f"{note}, which these seeds do not show to be better: p {comparison.p_holm:.2g} after "
        "Holm's correction."
    )
