"""The variance of a few seeds, shrunk toward the variance that is usual in the study.

Three seeds measure their own variance badly. The k comparisons of a study measure together which
variance is usual: s0^2, the mean of theirs. A comparison with its own d degrees of freedom has

    max(s^2, (w s0^2 + d s^2) / (w + d))    with w + d degrees of freedom,    w = min(4, k - 1).

The weighted mean is Smyth's (2004, doi:10.2202/1544-6115.1027). He fits s0 and w to thousands of
variances; a handful cannot tell w, so it is fixed. The maximum keeps what one variant scatters
more than the others. experiments/noise/error_rates.md has the shares of false verdicts.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

MOST_WEIGHT = 4


class Spread(NamedTuple):
    """A variance in nats^2 with its degrees of freedom."""

    variance: float
    freedom: float

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)


def usual_spread(variances: Sequence[float]) -> Spread | None:
    """The mean of the variances of a study's comparisons, each for a difference of two variants,
    with its weight as degrees of freedom. None below two, or if all are zero."""
    known = [variance for variance in variances if variance > 0]
    if len(known) < 2:
        return None
    return Spread(math.fsum(known) / len(known), weight_of(len(known)))


def weight_of(comparisons: int) -> int:
    """w, of a study of k comparisons."""
    return max(0, min(MOST_WEIGHT, comparisons - 1))


def shrink(own: Spread, usual: Spread | None) -> Spread:
    """The variance that a comparison is judged by."""
    if usual is None:
        return own
    freedom = usual.freedom + own.freedom
    mean = (usual.freedom * usual.variance + own.freedom * own.variance) / freedom
    return Spread(max(own.variance, mean), freedom)
