"""Which differences a number of seeds can see: the power of the rule by which "better" is said."""

from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy import ndarray
from scipy import optimize, special

LEVEL = 0.05  # of every test, two-sided; intervals cover the rest
POWER = 0.9


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
