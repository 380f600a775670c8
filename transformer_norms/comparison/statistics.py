"""The statistics of a handful of seeds: spreads, intervals, and tests of paired differences.

Losses are in nats per token. Sums are math.fsum's, which rounds once: with sides swapped or seeds
in another order, the numbers are the same to the last digit. Distributions are scipy.special's,
without the layers of scipy.stats above them, which cost a hundred times as much.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy import ndarray
from scipy import optimize, special

from transformer_norms.comparison.moderation import Spread

LEVEL = 0.05  # of every test, two-sided; intervals cover the rest
FEWEST = 3  # seeds: with fewer, no verdict is given
POWER = 0.9
SIGN_FLIP = range(6, 31)  # seeds: below, no result reaches 5 %; above, the count is slow
# Gauss and Legendre's rule on -1 .. 1: right to nine digits up to 50 seeds.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation with n - 1 degrees of freedom."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def correlation(losses: Sequence[float], baseline_losses: Sequence[float]) -> float | None:
    """Pearson's correlation. None below three pairs (any two lie on a line) or without a spread."""
    spread = deviation(losses) * deviation(baseline_losses) if len(losses) > 2 else 0.0
    if spread == 0:
        return None
    count = len(losses)
    mean, baseline_mean = math.fsum(losses) / count, math.fsum(baseline_losses) / count
    pairs = zip(losses, baseline_losses, strict=True)
    covariance = math.fsum((a - mean) * (b - baseline_mean) for a, b in pairs) / (count - 1)
    return max(-1.0, min(1.0, covariance / spread))


def half_interval(values: Sequence[float]) -> float | None:
    """Half the width of Student's interval of the mean of `values`; None for a single value."""
    count = len(values)
    return half_width(deviation(values) / math.sqrt(count), count - 1) if count > 1 else None


def half_width(error: float, freedom: float) -> float:
    """Half the width of Student's interval of a mean with the standard error `error`."""
    return float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error


# ------------------------------------------------------------------ the tests of paired differences


def difference_p(mean: float, error: float, freedom: float) -> float:
    """Student's p of a mean as far from zero as this, in either direction."""
    return 2 * float(special.stdtr(freedom, -abs(mean) / error))


def upper_p(distance: float, error: float, freedom: float) -> float:
    """Student's one-sided p of a mean that lies `distance` below a bound: the p of the claim that
    the true mean is below the bound, too. The larger p of two bounds is that of the claim that the
    mean lies between them (two one-sided tests, Schuirmann 1987)."""
    return float(special.stdtr(freedom, -distance / error))


def sign_flip(differences: Sequence[float]) -> float | None:
    """Fisher's randomization test, exact: of all 2^n choices of signs, the share whose sum is as
    far from zero as the observed sum. None outside SIGN_FLIP.

    The sums of either half of the differences are listed; their combinations are only counted.
    """
    if len(differences) not in SIGN_FLIP:
        return None
    rounding = 1e-12 * math.fsum(map(abs, differences))  # sums in another order are as far
    observed = abs(math.fsum(differences)) - rounding
    if observed <= 0:
        return 1.0
    middle = len(differences) // 2
    first, second = _signed_sums(differences[:middle]), _signed_sums(differences[middle:])
    below = np.searchsorted(np.sort(second), observed - first)
    above = len(first) * len(second) - int(below.sum())
    return 2 * above / 2 ** len(differences)


def _signed_sums(values: Sequence[float]) -> ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums - value, sums + value))
    return sums


def holm(p: Mapping[str, float], others: int = 0) -> dict[str, float]:
    """Adjusted p: of m, the k-th smallest times m - k + 1, none below one before it. Holm 1979
    `others` belong to the family and have no p, as if it were 1."""
    adjusted: dict[str, float] = {}
    least = 0.0
    for rank, name in enumerate(sorted(p, key=p.__getitem__)):
        least = max(least, min(1.0, p[name] * (len(p) + others - rank)))
        adjusted[name] = least
    return adjusted


def detectable_difference(
    spread: Spread, seeds: int, compared: int, effect: float, gain: float = 0.0
) -> float:
    """The smallest true difference, in nats per token, that is found with probability POWER.

    A difference is found if mean >= max(effect, gain + t s / sqrt(n)), over n = `seeds` paired
    differences. t is Student's two-sided quantile with the degrees of freedom of `spread` at LEVEL
    / `compared`, Holm's first step, and `gain` the bound of the tuning error.
    """
    quantile = float(special.stdtrit(spread.freedom, 1 - LEVEL / compared / 2))
    return difference_beyond(quantile, spread, seeds, effect, gain)


def difference_beyond(
    quantile: float, spread: Spread, seeds: int, effect: float, gain: float
) -> float:
    """The smallest true difference for which mean >= max(effect, gain + `quantile` s / sqrt(n)) has
    probability POWER, over n = `seeds` paired differences, normal with the variance of `spread`.
    s^2 is the measured variance, chi-squared with the degrees of freedom of `spread`."""
    unit, freedom = spread.sd / seeds**0.5, spread.freedom
    floor = max(0.0, effect - gain) / unit  # what has to be above the gain
    # Large enough: mean and s each fall on their bad side once in twenty.
    ratio = (special.chdtri(freedom, (1 - POWER) / 2) / freedom) ** 0.5
    enough = max(floor, quantile * ratio) - special.ndtri((1 - POWER) / 2)
    smallest = optimize.brentq(
        lambda difference: _power(difference, freedom, quantile, floor) - POWER, floor, enough,
        xtol=1e-6, rtol=1e-6,
    )  # fmt: skip
    return gain + unit * float(smallest)


def _power(difference: float, freedom: float, quantile: float, floor: float) -> float:
    """The probability of finding a true difference, in units of the mean's standard error.

    Mean and s are independent, so it is the integral over the mean of its density times
    P(s <= mean / t). At floor 0 it is a tail of the noncentral t.
    """
    low, high = max(floor, difference - 9), max(floor, difference) + 9  # beyond: below 1e-18
    half = (high - low) / 2
    mean = low + half * (1 + _NODES)
    density = np.exp(-((mean - difference) ** 2) / 2)
    small_enough = special.gammainc(freedom / 2, freedom / 2 * (mean / quantile) ** 2)
    return half / (2 * np.pi) ** 0.5 * float(_WEIGHTS @ (density * small_enough))
