"""Variances of few seeds, shrunk toward the variance that is usual in the study.     Smyth 2004

Three differences measure their own variance badly. The variances of all comparisons of a study say
together which variance is usual, and how much comparisons differ in it. The moderated variance is

    (d0 s0^2 + d s^2) / (d0 + d)      with d0 + d degrees of freedom,

s^2 the variance of one comparison with d degrees of freedom, s0^2 the usual one, and d0 the weight
of the usual one in degrees of freedom (Smyth 2004, doi:10.2202/1544-6115.1027, section 6).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

# The studies of experiments/ differ in their variances as d0 = 3 does. A larger d0, which few
# variances often seem to show, would name too many differences of a variant that scatters more.
MOST_WEIGHT = 4.0
# A variance that the usual one makes less probable than this keeps its own value: it is not usual.
UNUSUAL = 0.2
ENOUGH = 3  # variances that say how much variances differ


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
    """The prior of the variances of several comparisons, by the moments of their logarithms (Smyth
    2004, section 6.2). With fewer than ENOUGH variances it is their mean with MOST_WEIGHT. None if
    no variance is above zero."""
    spreads = [spread for spread in spreads if spread.variance > 0 and spread.freedom > 0]
    if not spreads:
        return None
    if len(spreads) < ENOUGH:
        freedom = sum(spread.freedom for spread in spreads)
        pooled = sum(spread.freedom * spread.variance for spread in spreads) / freedom
        return Prior(pooled, MOST_WEIGHT, origin)
    halves = [spread.freedom / 2 for spread in spreads]
    logs = [
        math.log(spread.variance) - float(special.digamma(half)) + math.log(half)
        for spread, half in zip(spreads, halves, strict=True)
    ]
    mean = math.fsum(logs) / len(logs)
    scatter = math.fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1)
    noise = math.fsum(float(special.polygamma(1, half)) for half in halves) / len(halves)
    weight = min(MOST_WEIGHT, _weight(scatter - noise))
    usual = mean + float(special.digamma(weight / 2)) - math.log(weight / 2)
    return Prior(math.exp(usual), weight, origin)


def _weight(excess: float) -> float:
    """d0, from trigamma(d0 / 2) = `excess`, the variance of log variances beyond their noise."""
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
