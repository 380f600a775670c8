"""Tests that stay valid however often a person looks, and whenever that person stops.

The test of Student names too much where seeds are added until something is found. Here a statistic
M_n(mu) is computed after each seed n for each possible true difference mu. It is a martingale of
mean 1 under mu, so that it ever exceeds 1 / level with a probability of at most `level` (Ville
1939). The differences mu at which it never did are the confidence sequence.

    M_n(mu) = sqrt(1 / (1 + n g)) ((B + n u^2) / (B + n u^2 / (1 + n g)))^((d0 + n) / 2)
    u = mean - mu,      B = d0 s0^2 + sum (x - mean)^2

It is the ratio of two likelihoods with the variance integrated out: of a mean that is normal around
mu with g times the variance, and of mu itself. The variance has the right Haar prior if d0 = 0
(Wang & Ramdas 2024, arXiv:2310.03722, theorem 4.7; Lai 1976 for a flat mean), else the moderated
variance's prior of moderation.py. With such a prior the level holds on average over comparisons.
"""

import math
from collections.abc import Iterator, Sequence

from transformer_norms.comparison.moderation import Prior, Spread, is_unusual, moderate
from transformer_norms.comparison.statistics import deviation, difference_beyond

# g: a difference worth finding is about twice the deviation of a pair of runs.
EFFECT_VARIANCE = 4.0


def confidence_sequence(
    differences: Sequence[float], level: float, prior: Prior | None
) -> tuple[float, float]:
    """The bounds of the true mean after these differences, in the order of their seeds: those that
    no earlier number of seeds had left out. Infinite where nothing is left out yet."""
    low, high = -math.inf, math.inf
    mean, half = 0.0, math.inf
    for first in _prefixes(differences):
        half = _half_width(first, level, prior)
        mean = math.fsum(first) / len(first)
        low, high = max(low, mean - half), min(high, mean + half)
    # Bounds of different numbers of seeds may cross, where the noise is no normal one. Then those
    # of all seeds stand.
    return (low, high) if low < high else (mean - half, mean + half)


def always_valid_p(
    differences: Sequence[float], null: tuple[float, float], prior: Prior | None
) -> float:
    """1 / the largest M_n of any n at the mean in `null`, low to high, that fits best. It is a p
    value at any time at which a person stops (Johari et al. 2022, arXiv:1512.04922)."""
    evidence = 0.0
    for first in _prefixes(differences):
        mean = math.fsum(first) / len(first)
        nearest = min(max(mean, null[0]), null[1])
        evidence = max(evidence, _log_martingale(first, nearest, prior))
    return math.exp(-evidence)


def detectable_in_sequence(
    differences: Sequence[float], level: float, prior: Prior | None, effect: float, gain: float
) -> float:
    """The smallest true difference that as many seeds of the same spread detect with 90 % power."""
    spread = moderate(Spread(deviation(differences) ** 2, len(differences) - 1), prior)
    return difference_found_at(spread, len(differences), level, effect, gain)


def difference_found_at(
    spread: Spread, count: int, level: float, effect: float, gain: float = 0.0
) -> float:
    """The smallest true difference that a look at `count` seeds detects with 90 % power: the mean
    has to reach `effect`, and half the width of the confidence sequence beyond `gain`. Earlier
    looks find some more. `spread` is what the seeds, and the prior, measure."""
    quantile = half_width_at(Spread(1.0, spread.freedom), count, level) * math.sqrt(count)
    if math.isinf(quantile):
        return math.inf
    return difference_beyond(quantile, spread, count, effect, gain)


def half_width_at(spread: Spread, count: int, level: float) -> float:
    """Half the width of the confidence sequence at `count` seeds: the distance u from the mean at
    which M_n reaches 1 / `level`. `spread` is the moderated variance B / (d0 + n - 1), with
    d0 + n - 1 degrees of freedom."""
    growth = 1 + count * EFFECT_VARIANCE
    needed = (math.sqrt(growth) / level) ** (2 / (spread.freedom + 1))
    if needed >= growth:
        return math.inf
    base = spread.freedom * spread.variance
    return math.sqrt(base * (needed - 1) / (count * (1 - needed / growth)))


def _prefixes(differences: Sequence[float]) -> Iterator[Sequence[float]]:
    """The differences of the first two seeds, of the first three, and so on."""
    return (differences[:count] for count in range(2, len(differences) + 1))


def _log_martingale(differences: Sequence[float], mu: float, prior: Prior | None) -> float:
    """ln M_n(mu)."""
    count, weight, base = _base(differences, prior)
    growth = 1 + count * EFFECT_VARIANCE
    squared = count * (math.fsum(differences) / count - mu) ** 2
    if base == squared == 0:
        return 0.0
    if base == 0:
        return 0.5 * (weight + count - 1) * math.log(growth)
    ratio = math.log(base + squared) - math.log(base + squared / growth)
    return 0.5 * ((weight + count) * ratio - math.log(growth))


def _half_width(differences: Sequence[float], level: float, prior: Prior | None) -> float:
    """Half the width of the confidence sequence after these differences."""
    count, weight, base = _base(differences, prior)
    freedom = weight + count - 1
    return half_width_at(Spread(base / freedom, freedom), count, level)


def _base(differences: Sequence[float], prior: Prior | None) -> tuple[int, float, float]:
    """n, d0 and B."""
    count = len(differences)
    mean = math.fsum(differences) / count
    squares = math.fsum((value - mean) ** 2 for value in differences)
    if prior is None or is_unusual(Spread(squares / (count - 1), count - 1), prior):
        return count, 0.0, squares
    return count, prior.weight, prior.weight * prior.variance + squares
