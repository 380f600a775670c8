"""Intervals and tests that stay valid however often a person looks, and whenever that person stops.

The test of Student names too much where seeds are added until something is found. Here a statistic
M_n(mu) is computed after each seed n for each possible true difference mu. It is a martingale of
mean 1 under mu, so that it ever exceeds 1 / level with a probability of at most `level` (Ville
1939). The differences mu at which it never did are the confidence sequence.

    M_n(mu) = sqrt(1 / (1 + n g)) ((B + n u^2) / (B + n u^2 / (1 + n g)))^((w + n) / 2)
    u = mean - mu,      B = (w + n - 1) s^2,     s^2 the shrunk variance, w the usual one's weight

It is the ratio of two likelihoods with the variance integrated out: of a mean that is normal around
mu with g times the variance, and of mu itself (Wang & Ramdas 2024, arXiv:2310.03722, theorem 4.7;
Lai 1976). With a usual variance the level holds on average over comparisons.
"""

import math
from collections.abc import Iterator, Sequence

from transformer_norms.comparison.shrinkage import Spread, shrink
from transformer_norms.comparison.statistics import deviation

# g: a difference worth finding is about twice the deviation of a pair of runs.
EFFECT_VARIANCE = 4.0


def confidence_sequence(
    differences: Sequence[float], level: float, usual: Spread | None
) -> tuple[float, float]:
    """The bounds of the true mean after these differences, in the order of their seeds: those that
    no earlier number of seeds had left out. Infinite where nothing is left out yet."""
    low, high = -math.inf, math.inf
    mean, half = 0.0, math.inf
    for first, spread in _prefixes(differences, usual):
        half = half_width_at(spread, len(first), level)
        mean = math.fsum(first) / len(first)
        low, high = max(low, mean - half), min(high, mean + half)
    # Bounds of different numbers of seeds may cross, where the noise is not normal. Then those
    # of all seeds are returned.
    return (low, high) if low < high else (mean - half, mean + half)


def always_valid_p(
    differences: Sequence[float], null: tuple[float, float], usual: Spread | None
) -> float:
    """1 / the largest M_n of any n at the mean in `null`, low to high, that fits best. It is a p
    value at any time at which a person stops (Johari et al. 2022, arXiv:1512.04922)."""
    evidence = 0.0
    for first, spread in _prefixes(differences, usual):
        mean = math.fsum(first) / len(first)
        nearest = min(max(mean, null[0]), null[1])
        evidence = max(evidence, _log_martingale(spread, len(first), mean - nearest))
    return math.exp(-evidence)


def half_width_at(spread: Spread, count: int, level: float) -> float:
    """Half the width of the confidence sequence at `count` seeds: the distance u from the mean at
    which M_n reaches 1 / `level`."""
    growth = 1 + count * EFFECT_VARIANCE
    needed = (math.sqrt(growth) / level) ** (2 / (spread.freedom + 1))
    if needed >= growth:
        return math.inf
    base = spread.freedom * spread.variance
    return math.sqrt(base * (needed - 1) / (count * (1 - needed / growth)))


def sequence_quantile(freedom: float, count: int, level: float) -> float:
    """Half the width in units of s / sqrt(n), as a quantile of Student's t is."""
    return half_width_at(Spread(1.0, freedom), count, level) * math.sqrt(count)


def _prefixes(
    differences: Sequence[float], usual: Spread | None
) -> Iterator[tuple[Sequence[float], Spread]]:
    """The differences of the first two seeds, of the first three, and so on, with their spread."""
    for count in range(2, len(differences) + 1):
        first = differences[:count]
        yield first, shrink(Spread(deviation(first) ** 2, count - 1), usual)


def _log_martingale(spread: Spread, count: int, distance: float) -> float:
    """ln M_n at a `distance` u from the mean."""
    growth = 1 + count * EFFECT_VARIANCE
    base, squared = spread.freedom * spread.variance, count * distance**2
    if base == squared == 0:
        return 0.0
    if base == 0:
        return 0.5 * spread.freedom * math.log(growth)
    ratio = math.log(base + squared) - math.log(base + squared / growth)
    return 0.5 * ((spread.freedom + 1) * ratio - math.log(growth))
