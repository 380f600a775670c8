"""The verdict on a variant: what the paired losses of two variants allow to be said.

Seeds make pairs: with one seed, a variant and its baseline see the same batches and start from the
same weights, so that their difference varies less than either loss.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from transformer_norms.comparison.outcomes import Outcomes, fisher_p
from transformer_norms.comparison.statistics import (
    FEWEST,
    LEVEL,
    correlation,
    detectable_difference,
    deviation,
    difference_p,
    equivalence_p,
    half_width,
    holm,
    sign_flip,
)
from transformer_norms.run.sweep_record import EFFECT

Verdict = Literal[
    "better", "worse", "failed", "equivalent", "identical", "not distinguishable", "too few seeds"
]


@dataclass(frozen=True)
class Comparison:
    """A variant against its baseline over the seeds that both have.

    A number that these seeds cannot give is None. Fewer than FEWEST seeds give only differences. So
    do seeds whose differences are all equal: they are no repetitions, and nothing measures the
    noise. A pair in which a run failed gives no difference: it is the failures that are compared.
    """

    seeds: tuple[int, ...]  # in which both trained
    difference: float | None = None  # mean of variant - baseline: below zero the variant is better
    differences: tuple[float, ...] = ()  # by seed
    low: float | None = None  # of Student's 95 % interval of the difference
    high: float | None = None
    sd: float | None = None  # of the differences
    correlation: float | None = None  # of the pairs, from 3 seeds: how much pairing helps
    p: float | None = None  # paired t, two-sided
    p_holm: float | None = None  # over all comparisons made together
    sign_flip: float | None = None  # exact, two-sided, from 6 to 30 seeds
    p_equivalent: float | None = None  # two one-sided tests against +-effect, Holm over all
    detectable: float | None = None  # the smallest true difference found nine times in ten
    fisher: float | None = None  # p of the failures, exact and two-sided, where a run failed
    verdict: Verdict = "too few seeds"
    effect: float = EFFECT  # the smallest difference that is named


def compare(pairs: Mapping[str, tuple[Outcomes, Outcomes]], effect: float) -> dict[str, Comparison]:
    """Compares each variant, by name, with its baseline: (outcomes, the baseline's outcomes). All
    are tested together.

    Holm's family are the pairs that have a p, and the pairs in which a run failed, as if their p
    were 1. That holds whatever makes runs fail. Leaving them out would hold only if a failure told
    nothing of the differences. A run fails because its loss is high, so the pairs that are left
    would be a choice of those that agree, and too much would be claimed.
    """
    comparisons = {name: _pair_numbers(*sides, effect) for name, sides in pairs.items()}
    lost = {name: 1.0 for name, sides in pairs.items() if any(side.failed for side in sides)}
    different, near = dict(lost), dict(lost)
    for name, c in comparisons.items():
        if c.p is not None and c.p_equivalent is not None:
            different[name], near[name] = c.p, c.p_equivalent
    p, p_equivalent = holm(different), holm(near)
    for name, c in comparisons.items():
        if c.sd and c.p is not None:
            c = replace(
                c,
                p_holm=p[name],
                p_equivalent=p_equivalent[name],
                detectable=detectable_difference(c.sd, len(c.seeds), len(p), effect),
            )
        comparisons[name] = replace(c, verdict=_verdict(c, *pairs[name]))
    return comparisons


def _pair_numbers(variant: Outcomes, baseline: Outcomes, effect: float) -> Comparison:
    """The comparison of one pair, before Holm's correction and the verdict."""
    seeds = tuple(sorted(variant.losses.keys() & baseline.losses.keys()))
    if variant.failed or baseline.failed:
        both = variant.ended and baseline.ended
        fisher = fisher_p(variant.failure, baseline.failure) if both else None
        return Comparison(seeds, fisher=fisher, effect=effect)
    if not seeds:
        return Comparison(seeds, effect=effect)
    losses = [variant.losses[seed] for seed in seeds]
    baseline_losses = [baseline.losses[seed] for seed in seeds]
    differences = tuple(a - b for a, b in zip(losses, baseline_losses, strict=True))
    mean = math.fsum(differences) / len(seeds)
    c = Comparison(seeds, mean, differences, effect=effect)
    if len(seeds) < FEWEST:
        return c
    sd, freedom = deviation(differences), len(seeds) - 1
    # A spread that the losses' own rounding can make is none.
    if max(differences) - min(differences) <= 1e-12 * max(map(abs, losses + baseline_losses)):
        return replace(c, sd=sd)
    error = sd / math.sqrt(len(seeds))
    half = half_width(error, freedom)
    return replace(
        c,
        low=mean - half,
        high=mean + half,
        sd=sd,
        correlation=correlation(losses, baseline_losses),
        p=difference_p(mean, error, freedom),
        sign_flip=sign_flip(differences),
        p_equivalent=equivalence_p(mean, error, freedom, effect),
    )


def _verdict(c: Comparison, variant: Outcomes, baseline: Outcomes) -> Verdict:
    """A run that failed, on either side, outranks all numbers. Better or worse: p after Holm
    below 0.05, and a mean difference of `effect` or more. Equivalent: the p of the two one-sided
    tests below 0.05, and the 95 % interval within +-effect."""
    if variant.failed or baseline.failed:
        return "failed"
    if c.p_holm is None or c.p_equivalent is None:
        return "identical" if c.difference == c.sd == 0 else "too few seeds"
    assert c.difference is not None
    assert c.low is not None
    assert c.high is not None
    if c.p_holm < LEVEL and abs(c.difference) >= c.effect:
        return "better" if c.difference < 0 else "worse"
    if c.p_equivalent < LEVEL and max(-c.low, c.high) < c.effect:
        return "equivalent"
    return "not distinguishable"


# ------------------------------------------------------------------------ the verdict in a sentence


def comparison_sentence(
    variant: str,
    baseline: str,
    comparison: Comparison,
    outcomes: Outcomes,
    baseline_outcomes: Outcomes,
) -> str:
    """The verdict on `variant` against `baseline`, in nats per token and without a full stop. It
    claims what its numbers carry, and no more."""
    match comparison.verdict:
        case "better" | "worse":
            claim = _difference_claim(variant, baseline, comparison)
        case "equivalent":
            claim = _equivalence_claim(variant, baseline, comparison)
        case "not distinguishable":
            claim = _undecided_claim(variant, baseline, comparison)
        case "identical":
            seeds = plural(len(comparison.seeds), "seed")
            claim = f"{variant} has exactly the losses of {baseline} with {seeds}"
        case "failed":
            sides = [(variant, outcomes), (baseline, baseline_outcomes)]
            claim = _failure_claim(sides if outcomes.failed else sides[::-1], comparison)
        case "too few seeds":
            claim = _too_few_claim(variant, baseline, comparison)
    return claim + _missing_note(variant, outcomes) + _missing_note(baseline, baseline_outcomes)


def _difference_claim(variant: str, baseline: str, c: Comparison) -> str:
    difference, interval = difference_and_interval(c, sign=-1 if c.verdict == "better" else 1)
    return (
        f"{variant} is {c.verdict} than {baseline} by {difference} nats "
        f"({interval}, {_evidence(c)})"
    )


def _equivalence_claim(variant: str, baseline: str, c: Comparison) -> str:
    assert c.p_equivalent is not None
    difference, interval = difference_and_interval(c)
    return (
        f"{variant} is equivalent to {baseline} within {c.effect:g} nats "
        f"(difference {difference}, {interval}, {_p_text(c.p_equivalent)} after Holm, "
        f"{plural(len(c.seeds), 'seed')})"
    )


def _undecided_claim(variant: str, baseline: str, c: Comparison) -> str:
    assert c.p_holm is not None
    assert c.detectable is not None
    difference, interval = difference_and_interval(c)
    if c.p_holm < LEVEL:
        return (
            f"{variant} differs from {baseline} by {difference} nats "
            f"({interval}, {_evidence(c)}), less than the {c.effect:g} worth naming"
        )
    return (
        f"{variant} is not distinguishable from {baseline} with {plural(len(c.seeds), 'seed')} "
        f"(they would find a true difference of {_two_digit_text(c.detectable)} nine times in "
        f"ten): difference {difference} nats, {interval}, {_p_text(c.p_holm)} after Holm"
    )


def _failure_claim(sides: Sequence[tuple[str, Outcomes]], c: Comparison) -> str:
    """`sides` are variant and baseline, one in which a run failed first."""
    (name, outcomes), (second, rest) = sides
    share = outcomes.failure_text.replace(" (", f" run{'s' * (outcomes.ended != 1)} (", 1)
    claim = f"{name} failed to train in {share}, {second} in {rest.failure_text}"
    return claim if c.fisher is None else f"{claim}; Fisher's {_p_text(c.fisher)}"


def _too_few_claim(variant: str, baseline: str, c: Comparison) -> str:
    claim = f"{variant} cannot be compared with {baseline}"
    if c.difference is None:
        return f"{claim}: they have no seed in common"
    difference = _two_digit_text(c.difference)
    if len(c.seeds) == 1:
        return f"{claim} with 1 seed (difference {difference} nats)"
    if len(c.seeds) < FEWEST:
        by_seed = " and ".join(map(_two_digit_text, c.differences))
        return (
            f"{claim} with {len(c.seeds)} seeds, {FEWEST} are the fewest (mean difference "
            f"{difference} nats, by seed {by_seed})"
        )
    return (
        f"{claim}: the difference is the same {difference} nats with each of {len(c.seeds)} seeds, "
        "which therefore count as one"
    )


def _missing_note(name: str, outcomes: Outcomes) -> str:
    missing = len(outcomes.missing)
    if not missing:
        return ""
    verb = "is" if missing == 1 else "are"
    return f"; {name}: {missing} of {plural(outcomes.planned, 'run')} {verb} missing"


def difference_and_interval(c: Comparison, sign: int = 1) -> tuple[str, str]:
    """The difference, times `sign`, and its interval, to two digits of its half-width."""
    assert c.difference is not None
    assert c.low is not None
    assert c.high is not None
    decimals = max(0, -math.floor(math.log10((c.high - c.low) / 20)))
    low, high = sorted((sign * c.low, sign * c.high))
    difference, low_text, high_text = (
        f"{value:z.{decimals}f}" for value in (sign * c.difference, low, high)
    )
    return difference, f"95 % interval {low_text} to {high_text}"


def _evidence(c: Comparison) -> str:
    assert c.p_holm is not None
    exact = "" if c.sign_flip is None else f", sign-flip {_p_text(c.sign_flip)}"
    return f"{_p_text(c.p_holm)} after Holm{exact}, {plural(len(c.seeds), 'seed')}"


def _p_text(p: float) -> str:
    if p < 0.001:
        return "p below 0.001"
    if 0.0495 <= p < LEVEL:
        return "p just below 0.05"  # three decimals would say that it is not
    return f"p {p:.3f}" if p < 0.1 else f"p {p:.2f}"


def _two_digit_text(value: float) -> str:
    decimals = max(0, 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:z.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def plural(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}{'s' * (count != 1)}"
