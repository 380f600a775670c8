"""The statistics of a handful of seeds: spreads, intervals, and what they can find.

Losses are in nats per token. Sums are math.fsum's, which rounds once: with sides swapped or seeds
in another order, the numbers are the same to the last digit. Distributions are scipy.special's,
without the layers of scipy.stats above them, which cost a hundred times as much.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import TypeGuard

import numpy as np
from scipy import optimize, special

from transformer_norms.comparison.shrinkage import Spread

LEVEL = 0.05  # of every test, two-sided; intervals cover the rest
FEWEST = 3  # seeds: with fewer, no verdict is given
POWER = 0.9
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)  # Gauss and Legendre's rule on -1 .. 1
_FAR = 9.0  # standard deviations


def finite(value: object) -> TypeGuard[int | float]:
    """Whether a sum or a figure has room for the value: it has none for some integers."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return -1e300 < value < 1e300


def deviation(values: Sequence[float]) -> float:
    """The standard deviation with n - 1 degrees of freedom."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def half_interval(values: Sequence[float]) -> float | None:
    """Half the width of Student's interval of the mean of `values`; None for a single value."""
    count = len(values)
    if count < 2:
        return None
    return half_width(Spread(deviation(values) ** 2, count - 1), count, LEVEL)


def half_width(spread: Spread, seeds: int, level: float) -> float:
    """Half the width of Student's interval of a mean of `seeds` differences."""
    return student_quantile(spread.freedom, level) * spread.sd / math.sqrt(seeds)


def student_quantile(freedom: float, level: float) -> float:
    """The two-sided quantile of Student's t."""
    return float(special.stdtrit(freedom, 1 - level / 2))


def difference_p(mean: float, spread: Spread, seeds: int) -> float:
    """Student's p of a mean of `seeds` differences as far from zero as this, two-sided."""
    return 2 * float(special.stdtr(spread.freedom, -abs(mean) * math.sqrt(seeds) / spread.sd))


def detectable_difference(quantile: float, spread: Spread, seeds: int, slack: float = 0.0) -> float:
    """The smallest true difference, in nats per token, that is found with probability POWER: with
    it, mean - quantile s / sqrt(n) > slack."""
    found = _smallest(quantile, spread.freedom, seeds - 1, sides=1)
    return slack + spread.sd / math.sqrt(seeds) * found


def smallest_margin(quantile: float, spread: Spread, seeds: int) -> float:
    """The smallest margin within which two variants that are truly equal are found equivalent with
    probability POWER: |mean| + quantile s / sqrt(n) < margin."""
    margin = _smallest(quantile, spread.freedom, seeds - 1, sides=2)
    return spread.sd / math.sqrt(seeds) * margin


@cache
def _smallest(quantile: float, freedom: float, own: int, sides: int) -> float:
    """The smallest x for which z + quantile s < x has the probability POWER, in standard errors.

    z is a normal number, or with two `sides` its absolute value. s is the shrunk deviation where
    the usual variance is the true one: s^2 = max(c, (w + d c) / (w + d)), with c chi-squared / d
    for the d of its `own` degrees of freedom.
    """
    if math.isinf(quantile):
        return math.inf
    weight = freedom - own
    least = quantile * math.sqrt(weight / freedom)  # of quantile s
    first = 0.0 if sides == 2 else -_FAR

    def share(x: float) -> float:
        """The integral of P(quantile s < x - z) over z, in two parts, below and above s = 1."""
        ends = np.clip([first, x - quantile, x - least], first, _FAR)
        half = np.diff(ends)[:, None] / 2
        z = ends[:-1, None] + half * (1 + _NODES)
        squared = ((x - z) / quantile) ** 2
        c = np.minimum(squared, (squared * freedom - weight) / own)
        density = np.exp(-(z**2) / 2) * special.gammainc(own / 2, own / 2 * np.maximum(c, 0.0))
        return sides * float(half[:, 0] @ (density @ _WEIGHTS)) / math.sqrt(2 * math.pi)

    # Where s and z are bad once in twenty each, they are both good in 90 %.
    bad_s = math.sqrt(special.chdtri(own, (1 - POWER) / 2) / own)
    enough = quantile * bad_s - special.ndtri((1 - POWER) / 2 / sides)
    return float(optimize.brentq(lambda x: share(x) - POWER, 0, enough, rtol=1e-6))
