"""The verdict on a variant: what the paired losses of two variants allow to be said.

Seeds make pairs: with one seed, a variant and its baseline see the same batches and draw the same
numbers for their weights, so that their difference varies less than either loss. Variances are
shrunk toward the study's (moderation.py), the tuning error widens each interval
(tuning_error.py), and where seeds were added after a look the tests are those of sequence.py.

A plan with a fixed number of seeds is tested once, when all of its pairs have ended. A test before
that, besides the planned one, would be a second chance to be wrong in 5 % of studies. Nothing is
named before that but runs that failed: more seeds do not undo a failure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from transformer_norms.comparison.contrasts import is_pair
from transformer_norms.comparison.moderation import Prior, Spread, fit_prior, moderate
from transformer_norms.comparison.outcomes import Outcomes, fisher_p
from transformer_norms.comparison.sequence import (
    always_valid_p,
    confidence_sequence,
    detectable_in_sequence,
)
from transformer_norms.comparison.statistics import (
    FEWEST,
    LEVEL,
    correlation,
    detectable_difference,
    deviation,
    difference_p,
    half_width,
    holm,
    sign_flip,
    upper_p,
)
from transformer_norms.run.failure import EFFECT

Verdict = Literal[
    "better", "worse", "failed", "equivalent", "identical", "below the effect",
    "not distinguishable", "not decided yet", "too few seeds",
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
    """A variant's part in a comparison: `coefficient` x loss. `tuning_slack` is the bound, in
    nats, of what a better point of the tuned keys could lower the loss."""

    coefficient: float
    outcomes: Outcomes
    tuning_slack: float = 0.0


Sides = Sequence[Side]  # their coefficients sum to zero


def pair(variant: Outcomes, baseline: Outcomes, gains: tuple[float, float] = (0, 0)) -> Sides:
    """The sides of variant - baseline, and the gain of each."""
    return Side(1.0, variant, gains[0]), Side(-1.0, baseline, gains[1])


@dataclass(frozen=True)
class Rules:
    """The rules that all comparisons of a study share.

    `effect`: the smallest difference that is named, in nats per token. `prior`: of the variances of
    differences of two variants. `looks`: how often the results were looked at, each time with more
    seeds; from the second look on, intervals and tests are those that hold at every look.
    `order` are seeds in the order in which they were added; seeds that it lacks come last.
    `to_come`: the comparisons that will be made beside these, of variants that have no results yet.
    """

    effect: float = EFFECT
    prior: Prior | None = None
    looks: int = 1
    order: Sequence[int] = ()
    to_come: int = 0


@dataclass(frozen=True)
class Comparison:
    """A variant against its baseline, or another sum of coefficient x loss, over the seeds that all
    its variants have.

    A number that these seeds cannot give is None. Fewer than FEWEST seeds give only differences. So
    do seeds whose differences are all equal: they are no repetitions, and nothing measures the
    noise. A comparison in which a run failed gives no difference: it is the failures of a pair that
    are compared. A comparison that `waits` for planned pairs is not tested, and its interval is the
    one that holds at every look.
    """

    seeds: tuple[int, ...]  # in which all trained
    planned: int = 0  # the seeds that were planned for all
    waits: bool = False  # for seeds of a fixed plan that have not ended
    squares: float = 2.0  # the sum of the squared coefficients: the variance, if losses had 1 each
    difference: float | None = None  # mean of variant - baseline: below zero the variant is better
    differences: tuple[float, ...] = ()  # by seed
    gains: tuple[float, float] = (0.0, 0.0)  # of tuning: what the difference may be below, above
    low: float | None = None  # of the 95 % interval of the difference of the variants at their best
    high: float | None = None
    sd: float | None = None  # of the differences
    spread: Spread | None = None  # their variance, moderated
    correlation: float | None = None  # of the pairs, from 3 seeds: how much pairing helps
    p: float | None = None  # that no difference is beyond the gains, two-sided
    p_holm: float | None = None  # over all comparisons made together
    sign_flip: float | None = None  # exact, two-sided, of 6 to 30 seeds of a plan that has ended
    p_equivalent: float | None = None  # two one-sided tests against +-effect, Holm over all
    detectable: float | None = None  # the smallest true difference detected with 90 % power
    fisher: float | None = None  # exact p of the failures, Holm over all pairs with failures
    verdict: Verdict = "too few seeds"
    effect: float = EFFECT  # the smallest difference that is named


def compare(asked: Mapping[str, Sides], rules: Rules) -> dict[str, Comparison]:
    """Compares the sides of each comparison, by its name. All are tested together.

    Holm's family are the comparisons that have a p and, as if their p were 1, those in which a run
    failed, that wait for pairs, or that are to come. That holds whatever makes runs fail. Leaving
    those out would hold only if a failure told nothing of the differences. A run fails because its
    loss is high, so the pairs that are left would be a choice of those that agree, and too much
    would be claimed. What is named while others wait stays named: Holm's p only fall when theirs
    are known.
    """
    comparisons = {name: _numbers(sides, rules) for name, sides in asked.items()}
    different, near = {}, {}
    for name, c in comparisons.items():
        if c.p is not None and c.p_equivalent is not None:
            different[name], near[name] = c.p, c.p_equivalent
    others = rules.to_come + sum(
        _failed(asked[name]) or is_awaited(c, rules) for name, c in comparisons.items()
    )
    p, p_equivalent = holm(different, others), holm(near, others)
    fisher = holm(
        {
            name: 1.0 if c.fisher is None else c.fisher
            for name, c in comparisons.items()
            if is_awaited(c, rules) or c.fisher is not None  # runs that are to come may fail yet
        },
        rules.to_come,
    )
    for name, c in comparisons.items():
        if c.p is not None:
            detectable = _detectable(c, rules, len(p) + others)
            c = replace(c, p_holm=p[name], p_equivalent=p_equivalent[name], detectable=detectable)
        c = replace(c, fisher=None if c.fisher is None else fisher[name])
        verdict = _verdict(c, asked[name])
        if not is_pair(side.coefficient for side in asked[name]):
            verdict = _OF_A_SUM.get(verdict, verdict)
        comparisons[name] = replace(c, verdict=verdict)
    return comparisons


def is_awaited(c: Comparison, rules: Rules) -> bool:
    """Whether a comparison has no p yet and will get one."""
    return c.waits or (rules.looks > 1 and len(c.seeds) < FEWEST)


def _failed(sides: Sides) -> bool:
    return any(side.outcomes.failed for side in sides)


def usual_variance(asked: Iterable[Sides], origin: str, fewest: int) -> Prior | None:
    """The prior of the variances of these comparisons, for a difference of two variants. Variants
    that are one run count once. None below `fewest` comparisons with FEWEST seeds each."""
    spreads = set()
    for sides in asked:
        seeds, differences = _differences(sides, ())
        if len(seeds) >= FEWEST and not _failed(sides):
            unit = _squares(sides) / 2
            spreads.add(Spread(deviation(differences) ** 2 / unit, len(seeds) - 1))
    if len(spreads) < fewest:
        return None
    return fit_prior(sorted(spreads, key=lambda spread: spread.variance), origin)


def _squares(sides: Sides) -> float:
    return math.fsum(side.coefficient**2 for side in sides)


def _differences(sides: Sides, order: Sequence[int]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The seeds that all sides have, and the sum of coefficient x loss at each. A sequence of looks
    is one only in the `order` in which seeds were added."""
    common = set.intersection(*(set(side.outcomes.losses) for side in sides))
    first = [seed for seed in order if seed in common]
    seeds = (*first, *sorted(common - set(first)))
    return seeds, tuple(
        math.fsum(side.coefficient * side.outcomes.losses[seed] for side in sides) for seed in seeds
    )


def _numbers(sides: Sides, rules: Rules) -> Comparison:
    """One comparison, before Holm's correction and the verdict."""
    seeds, differences = _differences(sides, rules.order)
    planned = set.intersection(*(side.outcomes.seeds for side in sides))
    missing = planned & set().union(*(side.outcomes.missing for side in sides))
    waits = rules.looks < 2 and len(planned) >= FEWEST and bool(missing)
    c = Comparison(seeds, len(planned), waits, _squares(sides), gains=_gains(sides))
    c = replace(c, effect=rules.effect)
    if _failed(sides):
        return c if waits else replace(c, fisher=_failure_p(sides))
    if not seeds:
        return c
    c = replace(c, difference=math.fsum(differences) / len(seeds), differences=differences)
    if len(seeds) < FEWEST:
        return c
    c = replace(c, sd=deviation(differences))
    # A spread that the losses' own rounding can make is none.
    largest = max(abs(s.coefficient * s.outcomes.losses[seed]) for s in sides for seed in seeds)
    if max(differences) - min(differences) <= 1e-12 * largest:
        return c
    together = _pair_correlation(sides, seeds)
    c = replace(c, correlation=together)
    prior = _prior_of(c, rules)
    if waits:
        return replace(_test_in_sequence(c, prior), p=None, p_equivalent=None)
    return _test_once(c, prior) if rules.looks < 2 else _test_in_sequence(c, prior)


def _gains(sides: Sides) -> tuple[float, float]:
    """Returns by how much the difference of the variants at their best may lie below that of the
    measured runs, and above it: better points lower the losses on either side."""
    below = math.fsum(
        side.coefficient * side.tuning_slack for side in sides if side.coefficient > 0
    )
    above = math.fsum(
        -side.coefficient * side.tuning_slack for side in sides if side.coefficient < 0
    )
    return below, above


def _prior_of(c: Comparison, rules: Rules) -> Prior | None:
    """The prior of a comparison whose coefficients are not those of a pair: its variance is in
    proportion to the sum of the squared coefficients."""
    prior = rules.prior
    return prior and replace(prior, variance=prior.variance * c.squares / 2)


def _test_once(c: Comparison, prior: Prior | None) -> Comparison:
    """Interval and tests of a number of seeds that was planned: the moderated t."""
    assert c.difference is not None
    assert c.sd is not None
    spread = moderate(Spread(c.sd**2, len(c.seeds) - 1), prior)
    mean, (below, above) = c.difference, c.gains
    error, freedom = spread.sd / math.sqrt(len(c.seeds)), spread.freedom
    half = half_width(error, freedom)
    low, high = _ends(mean - half - below, mean + half + above)
    return replace(
        c,
        spread=spread,
        low=low,
        high=high,
        sign_flip=sign_flip(c.differences),
        p=difference_p(max(mean - below, -mean - above, 0.0), error, freedom),
        p_equivalent=upper_p(c.effect - max(mean + above, below - mean), error, freedom),
    )


def _ends(low: float, high: float) -> tuple[float | None, float | None]:
    """The ends of an interval, None where there is no bound: in a sequence of few seeds, and where
    nothing bounds the tuning error of a variant."""
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None


def _test_in_sequence(c: Comparison, prior: Prior | None) -> Comparison:
    """Interval and tests that hold however often more seeds were added."""
    assert c.sd is not None
    below, above = c.gains
    low, high = confidence_sequence(c.differences, LEVEL, prior)
    ends = _ends(low - below, high + above)
    too_high = always_valid_p(c.differences, (c.effect - above, math.inf), prior)
    too_low = always_valid_p(c.differences, (-math.inf, below - c.effect), prior)
    return replace(
        c,
        spread=moderate(Spread(c.sd**2, len(c.seeds) - 1), prior),
        low=ends[0],
        high=ends[1],
        p=always_valid_p(c.differences, (-above, below), prior),
        p_equivalent=max(too_high, too_low),
    )


def _detectable(c: Comparison, rules: Rules, compared: int) -> float | None:
    """The smallest true difference that as many seeds detect with 90 % power, on the side of the
    larger tuning error. None if nothing can be detected."""
    assert c.spread is not None
    gain = max(c.gains)
    if math.isinf(gain):
        return None
    if rules.looks < 2:
        return detectable_difference(c.spread, len(c.seeds), compared, c.effect, gain)
    level, prior = LEVEL / compared, _prior_of(c, rules)
    found = detectable_in_sequence(c.differences, level, prior, c.effect, gain)
    return found if math.isfinite(found) else None


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
    """A run that failed, on any side, outranks all numbers, and so do pairs that are missing of a
    fixed plan. Better or worse: p after Holm
    below 0.05, and a mean difference of `effect` or more. Equivalent: the p of the two one-sided
    tests below 0.05, and the 95 % interval within +-effect. Below the effect: p below 0.05, and
    neither."""
    if _failed(sides):
        return "failed"
    if c.waits:
        return "not decided yet"
    if c.p_holm is None or c.p_equivalent is None:
        return "identical" if c.difference == c.sd == 0 else "too few seeds"
    assert c.difference is not None
    if c.p_holm < LEVEL and abs(c.difference) >= c.effect:
        return "better" if c.difference < 0 else "worse"
    bounded = c.low is not None and c.high is not None and max(-c.low, c.high) < c.effect
    if bounded and c.p_equivalent < LEVEL:
        return "equivalent"
    return "below the effect" if c.p_holm < LEVEL else "not distinguishable"
