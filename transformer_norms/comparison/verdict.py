"""The verdict on a variant: what the paired losses of two variants allow to be said.

1. Seeds make pairs. With one seed a variant and its baseline have the same batches and the same
   random numbers. So their difference varies less than either loss. The variance of
   the differences is shrunk toward the study's (shrinkage.py).
2. One interval decides. It holds for all comparisons of the study at once (each has the level
   0.05 / k), and it is widened by what tuning may have missed (tuning_error.py). Where seeds are
   added after a look it is a confidence sequence (sequence.py).
3. The word follows from the interval: `equivalent` within the study's margin on both sides, else
   `better` below zero, `worse` above zero, or `not told apart`. Failed runs, a best rate at the
   edge of what was tried, and missing pairs come first: then no word on the loss is given.

A plan with a fixed number of seeds is tested once, when all of its pairs have ended. An earlier
test in addition would be a second chance to be wrong in 5 % of studies.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from transformer_norms.comparison.contrasts import is_pair
from transformer_norms.comparison.outcomes import Outcomes, fisher_p
from transformer_norms.comparison.sequence import (
    always_valid_p,
    confidence_sequence,
    sequence_quantile,
)
from transformer_norms.comparison.shrinkage import Spread, shrink, usual_spread
from transformer_norms.comparison.statistics import (
    FEWEST,
    LEVEL,
    detectable_difference,
    deviation,
    difference_p,
    half_width,
    student_quantile,
)

MARGIN = 0.02  # nats per token: a difference below it is negligible, unless a sweep says another
Verdict = Literal[
    "better", "worse", "equivalent", "not told apart", "failed", "not decided yet",
    "best rate not found", "described",
]  # fmt: skip
Interval = tuple[float, float]


class Side(NamedTuple):
    """A variant's part in a comparison: `coefficient` x loss. `tuning_slack` is an upper bound
    in nats: better tuning could lower the loss by this much. `at_edge`: the best value
    of a tuned key is the first or the last that was tried."""

    coefficient: float
    outcomes: Outcomes
    tuning_slack: float = 0.0
    at_edge: bool = False


Sides = Sequence[Side]  # their coefficients sum to zero


def pair(variant: Outcomes, baseline: Outcomes, slack: tuple[float, float] = (0, 0)) -> Sides:
    """The sides of variant - baseline, and the tuning slack of each."""
    return Side(1.0, variant, slack[0]), Side(-1.0, baseline, slack[1])


@dataclass(frozen=True)
class Rules:
    """The rules that all comparisons of a study share.

    `margin`: the bound of a negligible difference, in nats per token. `usual`: the variance of
    paired differences that is typical of the study. `looks`: how often the results were looked at,
    each time with more seeds; from the second look on, intervals and tests are those that hold at
    every look. `order` are seeds in the order in which they were added; seeds that it lacks come
    last. `to_come`: the comparisons of variants that have no results yet.
    """

    margin: float = MARGIN
    usual: Spread | None = None
    looks: int = 1
    order: Sequence[int] = ()
    to_come: int = 0


@dataclass(frozen=True)
class Comparison:
    """A variant against its baseline, or another sum of coefficient x loss, over the seeds that all
    its variants have.

    A number that these seeds cannot give is None. Fewer than FEWEST seeds give only differences. So
    do seeds whose differences are all equal: such runs are not independent. A comparison in
    which a run failed gives no difference: the failures of the pair are compared. A comparison that
    `waits` for planned pairs is not tested, and its interval is the one that holds at every look.
    """

    seeds: tuple[int, ...]  # in which all trained
    planned: int = 0  # the seeds that were planned for all
    waits: bool = False  # for seeds of a fixed plan that have not ended
    difference: float | None = None  # mean of variant - baseline: below zero the variant is better
    differences: tuple[float, ...] = ()  # by seed
    slack: Interval = (0.0, 0.0)  # of tuning: by how much the difference may be lower, higher
    sd: float | None = None  # of the differences
    spread: Spread | None = None  # their variance, shrunk
    interval: Interval | None = None  # 95 %, of this difference alone, without tuning
    bounds: Interval | None = None  # 95 %, of all comparisons at once, with tuning: they decide
    p: float | None = None  # p of a true difference within the slack, times the comparisons
    detectable: float | None = None  # the smallest true difference detected with 90 % power
    fisher: float | None = None  # exact p of the failures, times the pairs with failures
    verdict: Verdict = "not decided yet"
    margin: float = MARGIN


def compare(
    asked: Mapping[str, Sides], rules: Rules, described: Collection[str] = ()
) -> dict[str, Comparison]:
    """Compares the sides of each comparison, by its name.

    The comparisons form one family, but for those that are only `described`: these have an
    interval, and neither bounds nor p. Those in which a run failed, that wait for pairs, or that
    are to come belong to the family. Leaving them out would be valid only if failures were
    independent of the differences. A run fails because its loss is high, so the pairs that are left
    would be a choice of those that agree, and too much would be claimed.
    """
    comparisons = {name: _measure(sides, rules) for name, sides in asked.items()}
    family = {name: c for name, c in comparisons.items() if name not in described}
    count, failing = family_sizes(family.values(), rules)
    return {
        name: _judge(c, _usual(asked[name], rules), rules.looks, name in family and count, failing)
        for name, c in comparisons.items()
    }


def family_sizes(family: Iterable[Comparison], rules: Rules) -> tuple[int, int]:
    """How many comparisons share the error rate of a family, and how many pairs are tested for
    their failures. Both counts include comparisons that are not finished."""
    judged = failing = rules.to_come
    for c in family:
        awaited = c.waits or (rules.looks > 1 and len(c.seeds) < FEWEST)
        judged += awaited or c.interval is not None or c.verdict == "failed"
        failing += awaited or c.fisher is not None
    return judged, failing


def usual_variance(asked: Mapping[str, Sides]) -> Spread | None:
    """The usual variance of the pairs of a study. Variants that are one run count once."""
    pairs = [sides for sides in asked.values() if is_pair(side.coefficient for side in sides)]
    deviations = {c.sd for sides in pairs if (c := _measure(sides, Rules())).sd is not None}
    return usual_spread([sd**2 for sd in sorted(deviations)])


def _usual(sides: Sides, rules: Rules) -> Spread | None:
    """The usual variance of these sides: in proportion to the sum of the squared coefficients."""
    squares = math.fsum(side.coefficient**2 for side in sides)
    return rules.usual and rules.usual._replace(variance=rules.usual.variance * squares / 2)


def _measure(sides: Sides, rules: Rules) -> Comparison:
    """One comparison by itself, before it is judged as one of the study's."""
    common = set.intersection(*(set(side.outcomes.losses) for side in sides))
    # An interval that holds at every look reads seeds in the order in which they were added.
    first = [seed for seed in rules.order if seed in common]
    seeds = (*first, *sorted(common - set(first)))
    differences = tuple(
        math.fsum(side.coefficient * side.outcomes.losses[seed] for side in sides) for seed in seeds
    )
    planned = set.intersection(*(side.outcomes.seeds for side in sides))
    missing = planned & set().union(*(side.outcomes.missing for side in sides))
    waits = rules.looks < 2 and len(planned) >= FEWEST and bool(missing)
    # Better points of the tuned keys lower the losses on either side.
    below = math.fsum(s.coefficient * s.tuning_slack for s in sides if s.coefficient > 0)
    above = math.fsum(-s.coefficient * s.tuning_slack for s in sides if s.coefficient < 0)
    c = Comparison(seeds, len(planned), waits, slack=(below, above), margin=rules.margin)
    if any(side.outcomes.failed for side in sides):
        fisher = None if waits else fisher_p([side.outcomes for side in sides])
        return replace(c, fisher=fisher, verdict="failed")
    if any(side.at_edge for side in sides):
        c = replace(c, verdict="best rate not found")
    if not seeds:
        return c
    c = replace(c, difference=math.fsum(differences) / len(seeds), differences=differences)
    if len(seeds) < FEWEST:
        return c
    sd, usual = deviation(differences), _usual(sides, rules)
    c = replace(c, sd=sd)
    # Differences that are equal but for the losses' own rounding do not measure a spread.
    largest = max(abs(s.coefficient * s.outcomes.losses[seed]) for s in sides for seed in seeds)
    if max(differences) - min(differences) <= 1e-12 * largest:
        return c
    c = replace(c, spread=shrink(Spread(sd**2, len(seeds) - 1), usual))
    return replace(c, interval=_evidence(c, usual, rules.looks, LEVEL)[0])


def _evidence(
    c: Comparison, usual: Spread | None, looks: int, level: float
) -> tuple[Interval, float, float]:
    """The interval of the difference, the p of this comparison alone, and half the width of the
    interval in standard errors: Student's, or those that hold at every look."""
    assert c.difference is not None
    assert c.spread is not None
    (below, above), seeds = c.slack, len(c.seeds)
    if c.waits or looks > 1:
        interval = confidence_sequence(c.differences, level, usual)
        p = always_valid_p(c.differences, (-above, below), usual)
        return interval, p, sequence_quantile(c.spread.freedom, seeds, level)
    half = half_width(c.spread, seeds, level)
    beyond = max(c.difference - below, -c.difference - above, 0.0)
    p = difference_p(beyond, c.spread, seeds)
    return (c.difference - half, c.difference + half), p, student_quantile(c.spread.freedom, level)


def _judge(
    c: Comparison, usual: Spread | None, looks: int, count: int, failures: int
) -> Comparison:
    """The comparison with its bounds, p and verdict, as one of `count` that are judged together; 0
    if it is only described. `failures` pairs are tested for their failures."""
    if c.fisher is not None:
        return replace(c, fisher=min(1.0, c.fisher * failures) if count else None)
    if c.interval is None or c.spread is None or c.verdict == "best rate not found":
        return c
    if not count:
        return replace(c, verdict="described")
    if c.waits:
        return c
    (low, high), p, quantile = _evidence(c, usual, looks, LEVEL / count)
    bounds = low - c.slack[0], high + c.slack[1]
    found = detectable_difference(quantile, c.spread, len(c.seeds), max(c.slack))
    return replace(
        c,
        bounds=bounds,
        p=min(1.0, p * count),
        detectable=found if math.isfinite(found) else None,
        verdict=word_of(bounds, c.margin),
    )


def word_of(bounds: Interval, margin: float) -> Verdict:
    """The word that follows from the interval that decides."""
    low, high = bounds
    if -margin < low and high < margin:
        return "equivalent"
    return "better" if high < 0 else "worse" if low > 0 else "not told apart"
