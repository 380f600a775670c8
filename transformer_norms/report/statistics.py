"""What a handful of seeds allows to be said of a variant and its baseline.

Seeds make pairs: with one seed both see the same batches and start from the same weights, so that
their difference varies less than either loss. Losses are in nats per token.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

from scipy import special

from transformer_norms.report.paired_tests import (
    LEVEL,
    correlation,
    detectable,
    deviation,
    half_width,
    holm,
    sign_flip,
    two_sided,
    within,
)
from transformer_norms.run.sweep_record import EFFECT

Verdict = Literal[
    "better", "worse", "equivalent", "not distinguishable", "identical", "diverged", "too few seeds"
]


@dataclass(frozen=True)
class Share:
    """`count` of `total`, and bounds on the probability behind it: Clopper & Pearson 1934, 95 %.

    They are two-sided; but of none in n, where there is no lower bound to pay for, `high` is the
    one-sided 1 - 0.05^(1/n).
    """

    count: int
    total: int

    @property
    def low(self) -> float:
        if self.count == 0:
            return 0.0
        return float(special.betaincinv(self.count, self.total - self.count + 1, LEVEL / 2))

    @property
    def high(self) -> float:
        if self.count == self.total:
            return 1.0
        level = LEVEL / 2 if self.count else LEVEL
        return float(special.betaincinv(self.count + 1, self.total - self.count, 1 - level))


@dataclass(frozen=True)
class Outcomes:
    """What became of one variant, by seed. ValueError where the three do not fit together.

    `losses` has each seed's final loss and, of a run that diverged, the initial one: infinity where
    it has none. `missing` are seeds that were planned and have no finished run.
    """

    losses: Mapping[int, float]
    diverged: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for seed in self.diverged - self.losses.keys():
            raise ValueError(f"diverged: seed {seed} has no loss")
        for seed in self.missing & self.losses.keys():
            raise ValueError(f"missing: seed {seed} has a loss")
        for seed, loss in self.losses.items():
            if not (math.isfinite(loss) or (loss == math.inf and seed in self.diverged)):
                raise ValueError(f"losses: seed {seed} has {loss}, which is no result")

    @property
    def planned(self) -> int:
        return len(self.losses) + len(self.missing)

    @property
    def mean(self) -> float | None:
        return fmean(self.losses.values()) if self.losses else None

    @property
    def sd(self) -> float | None:
        """None below two seeds, and where a loss is infinite."""
        values = list(self.losses.values())
        return deviation(values) if len(values) > 1 and math.inf not in values else None

    @property
    def median(self) -> float | None:
        """In which a run that diverged is infinity."""
        values = [math.inf if s in self.diverged else loss for s, loss in self.losses.items()]
        return median(values) if values else None

    @property
    def divergence(self) -> Share:
        """Of the runs that are there. Without any, its bounds are 0 and 1."""
        return Share(len(self.diverged), len(self.losses))


@dataclass(frozen=True)
class Comparison:
    """A variant against its baseline over the seeds that both have. None: they cannot tell.

    One seed has a difference and no more. So has a pair in which a run diverged, whose initial loss
    stands for the one it has not. So have seeds whose differences are all equal: they are no
    repetitions, and nothing measures the noise; "identical" where that difference is zero.
    """

    seeds: tuple[int, ...]
    difference: float | None = None  # mean of variant - baseline: below zero the variant is better
    low: float | None = None  # Student's 95 % interval of it
    high: float | None = None
    sd: float | None = None  # of the differences
    correlation: float | None = None  # of the pairs, from 3 seeds: how much pairing helps
    p: float | None = None  # paired t, two-sided
    p_holm: float | None = None  # over all comparisons made together
    sign_flip: float | None = None  # exact, two-sided, from 6 to 30 seeds
    p_equivalent: float | None = None  # two one-sided tests against +-effect, Holm over all
    detectable: float | None = None  # the smallest true difference found nine times in ten
    verdict: Verdict = "too few seeds"
    effect: float = EFFECT  # the smallest difference that is named


def compare(pairs: Mapping[str, tuple[Outcomes, Outcomes]], effect: float) -> dict[str, Comparison]:
    """Name of a variant -> (its outcomes, its baseline's); all are tested together.

    Better or worse: p after Holm below 0.05, and a mean difference of `effect` or more. Equivalent:
    the same of the two one-sided tests, and the 95 % interval within +-effect. A run that diverged,
    on either side, makes it "diverged", whatever the numbers.

    Holm's family are the pairs that have a p, and those that diverged, which claim nothing, as if
    theirs were 1. That holds whatever makes runs diverge. Not counting them would hold only if
    finishing told nothing of the differences; where a run is lost because its loss is high, the
    pairs that are left would be a choice of those that agree, and claims too many.
    """
    alone = {name: _alone(*sides, effect) for name, sides in pairs.items()}
    lost = {name: 1.0 for name, sides in pairs.items() if any(side.diverged for side in sides)}
    p = holm(lost | {name: c.p for name, c in alone.items() if c.p is not None})
    near = holm(
        lost | {name: c.p_equivalent for name, c in alone.items() if c.p_equivalent is not None}
    )
    together = {}
    for name, comparison in alone.items():
        if comparison.sd and comparison.p is not None:
            comparison = replace(
                comparison,
                p_holm=p[name],
                p_equivalent=near[name],
                detectable=detectable(comparison.sd, len(comparison.seeds), len(p), effect),
            )
        together[name] = replace(comparison, verdict=_verdict(comparison, *pairs[name]))
    return together


def _alone(variant: Outcomes, baseline: Outcomes, effect: float) -> Comparison:
    """What one pair tells, before Holm and the verdict."""
    seeds = tuple(sorted(variant.losses.keys() & baseline.losses.keys()))
    nothing = Comparison(seeds, effect=effect)
    ours, theirs = [variant.losses[s] for s in seeds], [baseline.losses[s] for s in seeds]
    if not seeds or math.inf in ours or math.inf in theirs:
        return nothing
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = math.fsum(differences) / len(seeds)
    if len(seeds) == 1 or variant.diverged or baseline.diverged:
        return replace(nothing, difference=mean)
    sd, freedom = deviation(differences), len(seeds) - 1
    # A spread that the losses' own rounding can make is none.
    if max(differences) - min(differences) <= 1e-12 * max(map(abs, ours + theirs)):
        return replace(nothing, difference=mean, sd=sd)
    error = sd / len(seeds) ** 0.5
    half = half_width(error, freedom)
    return replace(
        nothing,
        difference=mean,
        low=mean - half,
        high=mean + half,
        sd=sd,
        correlation=correlation(ours, theirs),
        p=two_sided(mean, error, freedom),
        sign_flip=sign_flip(differences),
        p_equivalent=within(mean, error, freedom, effect),
    )


def _verdict(c: Comparison, variant: Outcomes, baseline: Outcomes) -> Verdict:
    if variant.diverged or baseline.diverged:
        return "diverged"
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
