"""The answer of a study in sentences: which variants are better, and which it cannot tell apart."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sentences import comparison_sentence, plural, price_clause
from transformer_norms.comparison.statistics import LEVEL
from transformer_norms.comparison.verdict import Verdict
from transformer_norms.report.fairness import confounds, pairs_within
from transformer_norms.report.findings import Findings
from transformer_norms.report.horizons import at_text
from transformer_norms.report.measured.cost import seconds_price
from transformer_norms.report.study import Variant
from transformer_norms.report.table import branch_note
from transformer_norms.report.tuning_audit import caveats, same_data_note

Groups = dict[Verdict, list[Variant]]


@dataclass(frozen=True)
class Answer:
    """`lead` is the strongest statement that holds; `groups` has the variants by verdict; `notes`
    are the limits of the answer."""

    lead: str
    groups: Groups
    notes: list[str]


def answer(findings: Findings) -> Answer:
    """Sorts the variants that have a baseline by verdict, the lowest difference first. Without a
    baseline, the lead gives only the number of variants."""
    groups: Groups = {}
    for verdict in get_args(Verdict):
        variants = [v for v in findings.compared if findings.verdict(v) == verdict]
        variants.sort(key=lambda v: findings.comparisons[v.name].difference or 0)
        variants += _lost_variants(findings) if verdict == "failed" else []
        groups |= {verdict: variants} if variants else {}
    others = len(findings.compared) > 1 and not findings.contrasts
    notes = [
        findings.study.unasked,
        "Each variant is compared with its baseline, and not with the others." * others,
        same_data_note(findings.study),
        branch_note(findings.study),
        findings.price_note,
        *findings.study.registered,
    ]
    return Answer(_lead(findings, groups), groups, [*filter(None, notes)])


def sentence(findings: Findings, variant: Variant) -> str:
    """The verdict on a variant, with what makes its tuning unfair, or how its runs ended."""
    if variant.lost and not variant.results:
        return f"{variant.name} failed to train at every value tried ({len(variant.trials)} runs)"
    if not variant.results:
        return f"{variant.name} has no runs planned for its result yet"
    if not variant.compared:
        return f"{variant.name}: {_ending_text(findings.outcomes[variant.name])}"
    return contrast_sentence(findings, findings.study.asked[variant.name], variant.name)


def contrast_sentence(findings: Findings, contrast: Contrast, name: str = "") -> str:
    """The verdict on a contrast, with what makes the tuning of its variants unfair. `name` is that
    of its comparison, unless this is its text."""
    study, name = findings.study, name or contrast.text
    comparison = findings.every.get(name)
    variants = [study.variant(one) for one in contrast.pair or contrast.coefficients]
    budget = findings.budgets.get(name)
    if comparison is None and budget:
        return f"{contrast.title} has no value{at_text(study.at)}: {budget.lacking}"
    if comparison is None:
        without = ", ".join(variant.name for variant in variants if not variant.results)
        return f"{contrast.title} has no value: {without} without results"
    outcomes = {variant.name: findings.outcomes[variant.name] for variant in variants}
    edges = [f"{one.name} ({one.at_edge})" for one in variants if one.at_edge]
    claim = comparison_sentence(contrast, comparison, outcomes, edges)
    if budget:
        claim = f"{at_text(study.at).strip()}, {claim}"
    less = [
        f"{one} is read at {share:.1%} of its tokens".replace("%", " %")
        for one, share in (budget.shares.items() if budget else ())
        if share < 1
    ]
    word = findings.alone.get(name)  # the verdict follows from what is judged together with it
    alone = [f"judged alone, by its own variance, it would be {word}"] if word else []
    price = findings.prices.get(name)
    clause = []
    if price and contrast.pair:
        net = seconds_price(study, variants[0], variants[1], price)[1]
        clause = [price_clause(price, *contrast.pair)]
        clause += [price_clause(net, *contrast.pair, unit="seconds")] if net else []
    unfair = [line for sides in pairs_within(study, contrast) for line in caveats(study, *sides)]
    return "; ".join([claim, *less, *clause, *alone, *dict.fromkeys(unfair)])


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


def _lead(findings: Findings, groups: Groups) -> str:
    """The declared contrasts, if there are any; the best variant that is better than its baseline;
    else the number of each verdict."""
    study, compared = findings.study, findings.compared
    at = at_text(study.at)
    if declared := [c for c in study.contrasts if c.declared and c.text in findings.contrasts]:
        words = Counter(findings.contrasts[c.text].verdict for c in declared)
        pairs = [pair for contrast in declared for pair in pairs_within(study, contrast)]
        claim = f"{len(declared)} contrasts are declared{at} ({_counts(words)})"
        claim = claim if len(declared) > 1 else contrast_sentence(findings, declared[0])
        return f"{claim}{_different_starts(findings, pairs)}."
    if said := groups.get("better", compared if len(compared) == 1 else [])[:1]:
        pairs = [(said[0], study.baseline_of(said[0]))]
        return f"{sentence(findings, said[0])}{_different_starts(findings, pairs)}."
    if compared:
        words = Counter({verdict: len(members) for verdict, members in groups.items()})
        claim = f"No variant is shown to be better than its baseline{at} ({_counts(words)})"
        pairs = [(variant, study.baseline_of(variant)) for variant in compared]
        failures = f"{_failed_baselines(findings)}{_most_failing(findings)}"
        return f"{failures}{claim}{_different_starts(findings, pairs)}."
    if lost := _lost_variants(findings):
        return f"{'; '.join(sentence(findings, v) for v in lost)}."
    count = sum(any(run.ended for run in (*v.results, *v.trials)) for v in study.variants)
    contrasts = plural(len(findings.contrasts), "contrast")
    what = f"compared in {contrasts}" if findings.contrasts else "nothing is compared"
    return f"{plural(count, 'variant')} ran; {what}."


def _counts(words: Counter[Verdict]) -> str:
    return ", ".join(f"{word} {count}" for word, count in words.items())


def _different_starts(findings: Findings, pairs: Sequence[tuple[Variant, Variant]]) -> str:
    """`; post and pre have different starts (init=transformer2017 and init=mup)`, or nothing where
    each variant starts as its baseline does, or the start is what was asked about."""
    apart = [pair for pair in pairs if "init" in confounds(findings.study, *pair)]
    if len(pairs) == len(apart) == 1:
        inits = dict.fromkeys(f"init={side.ended[0].choice('init')}" for side in apart[0])
        names = " and ".join(side.name for side in apart[0])
        return f"; {names} have different starts ({' and '.join(inits)})"
    several = f"; {len(apart)} of {len(pairs)} variants have another start (init) than their"
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
    """`The baseline pre failed to train in 2 of 5: no loss is compared with it. `, or nothing."""
    names = dict.fromkeys(str(variant.baseline) for variant in findings.compared)
    failed = {name: findings.outcomes[name] for name in names if findings.outcomes[name].failed}
    return "".join(
        f"The baseline {name} failed to train in {outcomes.failure_text}: no loss is compared with "
        "it. "
        for name, outcomes in failed.items()
    )
