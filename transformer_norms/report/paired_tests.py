"""The tests of paired differences: spread and interval, p, several tests together, and power.

Sums are math.fsum's, which rounds once: sides swapped or seeds in another order, the numbers are
the same to the last digit. Distributions are scipy.special's, without the layers of scipy.stats
above them, which cost a hundred times as much.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy import ndarray
from scipy import optimize, special

LEVEL = 0.05  # of every test, two-sided; intervals cover the rest
POWER = 0.9
SIGN_FLIP = range(6, 31)  # seeds: below, no result reaches 5 %; above, the count is slow


def deviation(values: Sequence[float]) -> float:
    """The standard deviation, of n - 1 degrees."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def correlation(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Pearson's. None below three pairs, of which any two lie on a line, or without a spread."""
    spread = deviation(ours) * deviation(theirs) if len(ours) > 2 else 0.0
    if spread == 0:
        return None
    middle, other = math.fsum(ours) / len(ours), math.fsum(theirs) / len(theirs)
    products = ((a - middle) * (b - other) for a, b in zip(ours, theirs, strict=True))
    return max(-1.0, min(1.0, math.fsum(products) / (len(ours) - 1) / spread))


def half_width(error: float, freedom: int) -> float:
    """Of Student's interval of a mean with the standard error `error`."""
    return float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error


def half_interval(values: Sequence[float]) -> float | None:
    """Of Student's interval of the mean of `values`; None of a single one."""
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
    """Adjusted: of m, the k-th smallest times m - k + 1, and none below one before it. Holm 1979"""
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
    """Number of seeds -> the smallest difference that so many find in POWER of all studies, where
    paired differences have the standard deviation `sd`."""
    return {count: detectable(sd, count, compared, effect) for count in seeds}


def _found(difference: float, freedom: int, quantile: float, floor: float) -> float:
    """P(found), in units of the mean's standard error. Mean and s are independent: the integral
    over the mean of its density times P(s <= mean / t). Of floor 0, a tail of the noncentral t."""
    nodes, weights = _rule()
    low, high = max(floor, difference - 9), max(floor, difference) + 9  # beyond: below 1e-18
    half = (high - low) / 2
    mean = low + half * (1 + nodes)
    density = np.exp(-((mean - difference) ** 2) / 2)
    small_enough = special.gammainc(freedom / 2, freedom / 2 * (mean / quantile) ** 2)
    return half / (2 * np.pi) ** 0.5 * float(weights @ (density * small_enough))


@cache
def _rule() -> tuple[ndarray, ndarray]:
    """Gauss and Legendre's, on -1 .. 1: right to nine digits up to 50 seeds."""
    return np.polynomial.legendre.leggauss(64)


@cache
def _quantile(seeds: int, compared: int) -> float:
    return float(special.stdtrit(seeds - 1, 1 - LEVEL / compared / 2))
