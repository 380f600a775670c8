"""The statistics of a variant and its baseline with a handful of seeds.

Seeds make pairs: with one seed both see the same batches and start from the same weights, so that
their difference varies less than either loss. Losses are in nats per token.

Sums are math.fsum's, which rounds once: sides swapped or seeds in another order, the numbers are
the same to the last digit. Distributions are scipy.special's, without the layers of scipy.stats
above them, which cost a hundred times as much.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median
from typing import Literal

import numpy as np
from numpy import ndarray
from scipy import optimize, special

from transformer_norms.run.sweep_record import EFFECT

LEVEL = 0.05  # of every test, two-sided; intervals cover the rest
POWER = 0.9
SIGN_FLIP = range(6, 31)  # seeds: below, no result reaches 5 %; above, the count is slow
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

    def __str__(self) -> str:
        """`2 of 3 (9 to 99 %)`, `0 of 3 (at most 63 %)`, `0 of 0`."""
        counted = f"{self.count} of {self.total}"
        if self.total == 0:
            return counted
        low = f"{100 * self.low:.0f} to" if self.count else "at most"
        return f"{counted} ({low} {100 * self.high:.0f} %)"


@dataclass(frozen=True)
class Outcomes:
    """The ends of one variant's runs, by seed. Raises ValueError if the three do not fit together.

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
        """The median loss, in which a run that diverged is infinity."""
        values = [math.inf if s in self.diverged else loss for s, loss in self.losses.items()]
        return median(values) if values else None

    @property
    def divergence(self) -> Share:
        """The share of the ended runs that diverged. Without any run its bounds are 0 and 1."""
        return Share(len(self.diverged), len(self.losses))


@dataclass(frozen=True)
class Comparison:
    """A variant against its baseline over the seeds that both have. None: these cannot tell.

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
    """Compares each variant, by name, with its baseline: (outcomes, the baseline's outcomes). All
    are tested together.

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
    """The comparison of one pair, before Holm's correction and the verdict."""
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


# ------------------------------------------------------------------ the tests of paired differences


def deviation(values: Sequence[float]) -> float:
    """The standard deviation, of n - 1 degrees."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def correlation(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Pearson's correlation. None below three pairs (any two lie on a line) or without a spread."""
    spread = deviation(ours) * deviation(theirs) if len(ours) > 2 else 0.0
    if spread == 0:
        return None
    middle, other = math.fsum(ours) / len(ours), math.fsum(theirs) / len(theirs)
    products = ((a - middle) * (b - other) for a, b in zip(ours, theirs, strict=True))
    return max(-1.0, min(1.0, math.fsum(products) / (len(ours) - 1) / spread))


def half_width(error: float, freedom: int) -> float:
    """Half the width of Student's interval of a mean with the standard error `error`."""
    return float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error


def half_interval(values: Sequence[float]) -> float | None:
    """Half the width of Student's interval of the mean of `values`; None for a single value."""
    count = len(values)
    return half_width(deviation(values) / math.sqrt(count), count - 1) if count > 1 else None


def two_sided(mean: float, error: float, freedom: int) -> float:
    """Student's p of a mean as far from zero as this, either way."""
    return 2 * float(special.stdtr(freedom, -abs(mean) / error))


def within(mean: float, error: float, freedom: int, effect: float) -> float:
    """p of "it is less than `effect` away from zero": the larger of two one-sided t tests, against
    +effect and -effect     Schuirmann 1987"""
    return float(special.stdtr(freedom, (abs(mean) - effect) / error))


def sign_flip(differences: Sequence[float]) -> float | None:
    """Fisher's randomization test, exact: of all 2^n choices of signs, the share whose sum is as
    far from zero as the one observed. None outside SIGN_FLIP.

    The sums of either half of the differences are listed, those of their combinations counted.
    """
    if len(differences) not in SIGN_FLIP:
        return None
    rounding = 1e-12 * math.fsum(map(abs, differences))  # sums in another order are as far
    reached = abs(math.fsum(differences)) - rounding
    if reached <= 0:
        return 1.0
    middle = len(differences) // 2
    first, second = _signed_sums(differences[:middle]), _signed_sums(differences[middle:])
    below = np.searchsorted(np.sort(second), reached - first)
    above = len(first) * len(second) - int(below.sum())
    return 2 * above / 2 ** len(differences)


def _signed_sums(values: Sequence[float]) -> ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums - value, sums + value))
    return sums


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p: of m, the k-th smallest times m - k + 1, none below one before it. Holm 1979"""
    adjusted: dict[str, float] = {}
    least = 0.0
    for rank, name in enumerate(sorted(p, key=p.__getitem__)):
        least = max(least, min(1.0, p[name] * (len(p) - rank)))
        adjusted[name] = least
    return adjusted


def detectable(sd: float, seeds: int, compared: int, effect: float) -> float:
    """The smallest true difference, in nats per token, that is found with probability POWER.

    Found is: mean >= max(effect, t s / sqrt(n)), of n = `seeds` paired differences, normal with the
    standard deviation `sd`. s is the measured one, t Student's two-sided quantile of n - 1 degrees
    at LEVEL / `compared`, Holm's first step.
    """
    unit, quantile = sd / seeds**0.5, _quantile(seeds, compared)
    freedom, floor = seeds - 1, effect / unit
    # Enough: mean and s each fall on their bad side once in twenty.
    spread = (special.chdtri(freedom, (1 - POWER) / 2) / freedom) ** 0.5
    enough = max(floor, quantile * spread) - special.ndtri((1 - POWER) / 2)
    found = optimize.brentq(
        lambda difference: _found(difference, freedom, quantile, floor) - POWER, floor, enough,
        xtol=1e-6, rtol=1e-6,
    )  # fmt: skip
    return unit * float(found)


def smallest_found(
    sd: float, effect: float, compared: int = 1, seeds: Iterable[int] = (3, 5, 8, 10)
) -> dict[int, float]:
    """The smallest difference that is found in POWER of all studies, by number of seeds, if paired
    differences have the standard deviation `sd`."""
    return {count: detectable(sd, count, compared, effect) for count in seeds}


def _found(difference: float, freedom: int, quantile: float, floor: float) -> float:
    """The probability of finding a difference, in units of the mean's standard error.

    Mean and s are independent, so it is the integral over the mean of its density times
    P(s <= mean / t). At floor 0 it is a tail of the noncentral t.
    """
    nodes, weights = _rule()
    low, high = max(floor, difference - 9), max(floor, difference) + 9  # beyond: below 1e-18
    half = (high - low) / 2
    mean = low + half * (1 + nodes)
    density = np.exp(-((mean - difference) ** 2) / 2)
    small_enough = special.gammainc(freedom / 2, freedom / 2 * (mean / quantile) ** 2)
    return half / (2 * np.pi) ** 0.5 * float(weights @ (density * small_enough))


@cache
def _rule() -> tuple[ndarray, ndarray]:
    """Gauss and Legendre's rule on -1 .. 1: right to nine digits up to 50 seeds."""
    return np.polynomial.legendre.leggauss(64)


@cache
def _quantile(seeds: int, compared: int) -> float:
    return float(special.stdtrit(seeds - 1, 1 - LEVEL / compared / 2))
