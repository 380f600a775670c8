"""The verdict on a variant: what the paired losses of two variants allow to be said.

Seeds make pairs: with one seed, a variant and its baseline see the same batches and start from the
same weights, so that their difference varies less than either loss.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from transformer_norms.comparison.contrasts import is_pair
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
    "better", "worse", "failed", "equivalent", "identical", "not distinguishable", "too few seeds",
    "below zero", "above zero", "equivalent to zero", "not distinguishable from zero",
]  # fmt: skip
# The words for a sum that is no difference of two variants: an interaction, or a trend.
_OF_A_SUM: dict[Verdict, Verdict] = {
    "better": "below zero",
    "worse": "above zero",
    "equivalent": "equivalent to zero",
    "identical": "equivalent to zero",
    "not distinguishable": "not distinguishable from zero",
}


class Side(NamedTuple):
    """A variant's part in a comparison: `coefficient` x loss."""

    coefficient: float
    outcomes: Outcomes


Sides = Sequence[Side]  # their coefficients sum to zero


def pair(variant: Outcomes, baseline: Outcomes) -> Sides:
    """The sides of variant - baseline."""
    return Side(1.0, variant), Side(-1.0, baseline)


@dataclass(frozen=True)
class Comparison:
    """A variant against its baseline, or another sum of coefficient x loss, over the seeds that all
    its variants have.

    A number that these seeds cannot give is None. Fewer than FEWEST seeds give only differences. So
    do seeds whose differences are all equal: they are no repetitions, and nothing measures the
    noise. A comparison in which a run failed gives no difference: it is the failures of a pair that
    are compared.
    """

    seeds: tuple[int, ...]  # in which all trained
    squares: float = 2.0  # the sum of the squared coefficients: the variance, if losses had 1 each
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


def compare(asked: Mapping[str, Sides], effect: float) -> dict[str, Comparison]:
    """Compares the sides of each comparison, by its name. All are tested together.

    Holm's family are the comparisons that have a p, and those in which a run failed, as if their p
    were 1. That holds whatever makes runs fail. Leaving them out would hold only if a failure told
    nothing of the differences. A run fails because its loss is high, so the pairs that are left
    would be a choice of those that agree, and too much would be claimed.
    """
    comparisons = {name: _numbers(sides, effect) for name, sides in asked.items()}
    lost = {name: 1.0 for name, sides in asked.items() if _failed(sides)}
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
        verdict = _verdict(c, asked[name])
        if not is_pair(side.coefficient for side in asked[name]):
            verdict = _OF_A_SUM.get(verdict, verdict)
        comparisons[name] = replace(c, verdict=verdict)
    return comparisons


def _failed(sides: Sides) -> bool:
    return any(side.outcomes.failed for side in sides)


def _numbers(sides: Sides, effect: float) -> Comparison:
    """One comparison, before Holm's correction and the verdict."""
    seeds = tuple(sorted(set.intersection(*(set(side.outcomes.losses) for side in sides))))
    c = Comparison(seeds, math.fsum(side.coefficient**2 for side in sides), effect=effect)
    if _failed(sides):
        return replace(c, fisher=_failure_p(sides))
    if not seeds:
        return c
    parts = [[side.coefficient * side.outcomes.losses[seed] for seed in seeds] for side in sides]
    differences = tuple(map(math.fsum, zip(*parts, strict=True)))
    mean = math.fsum(differences) / len(seeds)
    c = replace(c, difference=mean, differences=differences)
    if len(seeds) < FEWEST:
        return c
    sd, freedom = deviation(differences), len(seeds) - 1
    # A spread that the losses' own rounding can make is none.
    if max(differences) - min(differences) <= 1e-12 * max(abs(x) for part in parts for x in part):
        return replace(c, sd=sd)
    error = sd / math.sqrt(len(seeds))
    half = half_width(error, freedom)
    return replace(
        c,
        low=mean - half,
        high=mean + half,
        sd=sd,
        correlation=_pair_correlation(sides, seeds),
        p=difference_p(mean, error, freedom),
        sign_flip=sign_flip(differences),
        p_equivalent=equivalence_p(mean, error, freedom, effect),
    )


def _failure_p(sides: Sides) -> float | None:
    """Fisher's p of the failures of a pair; None for more sides, and if a side has no runs."""
    if len(sides) != 2 or not all(side.outcomes.ended for side in sides):
        return None
    return fisher_p(*(side.outcomes.failure for side in sides))


def _pair_correlation(sides: Sides, seeds: Sequence[int]) -> float | None:
    """The correlation of the losses of two sides; None for more sides."""
    if len(sides) != 2:
        return None
    return correlation(*([side.outcomes.losses[seed] for seed in seeds] for side in sides))


def _verdict(c: Comparison, sides: Sides) -> Verdict:
    """A run that failed, on any side, outranks all numbers. Better or worse: p after Holm
    below 0.05, and a mean difference of `effect` or more. Equivalent: the p of the two one-sided
    tests below 0.05, and the 95 % interval within +-effect."""
    if _failed(sides):
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
