"""Variances of few seeds, shrunk toward the variance that is usual in the study.     Smyth 2004

Three differences measure their own variance badly. The variances of all comparisons of a study say
together which variance is usual, and how much comparisons differ in it. The moderated variance is

    (d0 s0^2 + d s^2) / (d0 + d)      with d0 + d degrees of freedom,

s^2 the variance of one comparison with d degrees of freedom, s0^2 the usual one, and d0 its weight
in degrees of freedom (Smyth 2004, doi:10.2202/1544-6115.1027). Smyth fits both to thousands of
variances. A study has a handful, which share a baseline. So d0 is Smyth's but at most MOST_WEIGHT,
s0^2 is the mean of the variances, which hardly ever lies below his, and fewer than ENOUGH are not
fitted. With less caution studies of four variants and three seeds name false differences in 8 % of
cases; experiments/noise/error_rates.md has the shares as they are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

MOST_WEIGHT = 2.0
# A variance that the usual one makes less probable than this keeps its own value: it is not usual.
UNUSUAL = 0.2
ENOUGH = 4  # variances that say how much variances differ


@dataclass(frozen=True)
class Prior:
    """The usual `variance` of the difference of two runs of one seed, in nats^2, and its `weight`
    in degrees of freedom. `origin` says in words where it was measured."""

    variance: float
    weight: float
    origin: str


@dataclass(frozen=True)
class Spread:
    """A variance in nats^2 with its degrees of freedom."""

    variance: float
    freedom: float

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)


def fit_prior(spreads: Sequence[Spread], origin: str) -> Prior | None:
    """The prior of the variances of several comparisons: their mean, and its weight by the moments
    of their logarithms (Smyth 2004, section 6.2). Fewer than ENOUGH variances have MOST_WEIGHT.
    None if no variance is above zero."""
    spreads = [spread for spread in spreads if spread.variance > 0 and spread.freedom > 0]
    if not spreads:
        return None
    freedom = math.fsum(spread.freedom for spread in spreads)
    pooled = math.fsum(spread.freedom * spread.variance for spread in spreads) / freedom
    weight = MOST_WEIGHT if len(spreads) < ENOUGH else _weight(_excess(spreads))
    return Prior(pooled, weight, origin)


def _excess(spreads: Sequence[Spread]) -> float:
    """The variance of the logarithms of the variances, beyond what few seeds make of equal ones."""
    halves = [spread.freedom / 2 for spread in spreads]
    logs = [
        math.log(spread.variance) - float(special.digamma(half)) + math.log(half)
        for spread, half in zip(spreads, halves, strict=True)
    ]
    mean = math.fsum(logs) / len(logs)
    scatter = math.fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1)
    return scatter - math.fsum(float(special.polygamma(1, half)) for half in halves) / len(halves)


def _weight(excess: float) -> float:
    """d0, from trigamma(d0 / 2) = `excess`; at most MOST_WEIGHT."""
    if excess <= float(special.polygamma(1, MOST_WEIGHT / 2)):
        return MOST_WEIGHT
    low, high = 0.0, MOST_WEIGHT / 2  # trigamma falls from infinity
    for _ in range(60):
        middle = (low + high) / 2
        above = float(special.polygamma(1, middle)) > excess
        low, high = (middle, high) if above else (low, middle)
    return low + high


def moderate(own: Spread, prior: Prior | None) -> Spread:
    """The moderated variance. `own` without a prior, and where the prior makes a variance as large
    as its own improbable (an F test at UNUSUAL)."""
    if prior is None or is_unusual(own, prior):
        return own
    freedom = prior.weight + own.freedom
    return Spread((prior.weight * prior.variance + own.freedom * own.variance) / freedom, freedom)


def is_unusual(own: Spread, prior: Prior) -> bool:
    """Whether the variance is larger than the prior lets expect."""
    ratio = own.variance / prior.variance
    return float(special.fdtrc(own.freedom, prior.weight, ratio)) < UNUSUAL
