"""Computes what a number of seeds can find, before a run has started, from the known noise.

The noise is that of the difference of two runs of one seed: a `Prior`, whose weight counts as
degrees of freedom beside those of the seeds.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable

import numpy as np
from scipy import optimize, special

from transformer_norms.comparison.moderation import Prior, Spread
from transformer_norms.comparison.sequence import difference_found_at, half_width_at
from transformer_norms.comparison.statistics import FEWEST, LEVEL, POWER, detectable_difference
from transformer_norms.comparison.verdict import Comparison, Rules

MOST_SEEDS = 10_000  # looked at for a bound that is far below the noise
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def noise_of(comparisons: Iterable[Comparison], rules: Rules) -> Prior | None:
    """The noise that comparisons were judged by: the prior, else the mean of their variances, each
    for a difference of two variants. None if nothing measured it."""
    if rules.prior:
        return rules.prior
    variances = [2 * c.spread.variance / c.squares for c in comparisons if c.spread]
    return Prior(math.fsum(variances) / len(variances), 0.0, "these runs") if variances else None


def smallest_difference(noise: Prior, seeds: int, compared: int, effect: float) -> float:
    """The smallest true difference that a plan of `seeds` detects with 90 % power, in nats."""
    return detectable_difference(_spread(noise, seeds), seeds, compared, effect)


def smallest_bound(noise: Prior, seeds: int, compared: int) -> float:
    """The smallest bound d such that two variants that are truly equal are found equivalent within
    +-d with 90 % power, in nats.

    They are found equivalent if |mean| + t s / sqrt(n) < d. t is the larger one of Student's
    quantiles for the two one-sided tests at LEVEL / `compared`, Holm's first step, and for the 95 %
    interval. Mean and s are independent: s^2 is chi-squared, the mean normal.
    """
    spread = _spread(noise, seeds)
    level = min(LEVEL / compared, LEVEL / 2)
    quantile = float(special.stdtrit(spread.freedom, 1 - level))
    ratio = (special.chdtri(spread.freedom, (1 - POWER) / 2) / spread.freedom) ** 0.5
    enough = quantile * ratio - special.ndtri((1 - POWER) / 4)  # each bad once in twenty
    bound = optimize.brentq(
        lambda bound: _share_within(bound, quantile, spread.freedom) - POWER, 0, enough, rtol=1e-6
    )
    return spread.sd / math.sqrt(seeds) * float(bound)


def _share_within(bound: float, quantile: float, freedom: float) -> float:
    """P(|Z| + quantile s < bound), in units of the mean's standard error."""
    half = min(bound, 9.0) / 2
    mean = half * (1 + _NODES)
    small = special.gammainc(freedom / 2, freedom / 2 * ((bound - mean) / quantile) ** 2)
    density = 2 * np.exp(-(mean**2) / 2) / math.sqrt(2 * math.pi)
    return half * float(_WEIGHTS @ (density * small))


def difference_in_sequence(noise: Prior, most: int, compared: int, effect: float) -> float:
    """The smallest true difference that seeds until it is decided, at most `most`, detect with 90 %
    power, at the latest when there are `most`."""
    return difference_found_at(_spread(noise, most), most, LEVEL / compared, effect)


def bound_in_sequence(noise: Prior, most: int, compared: int) -> float:
    """The smallest bound within which seeds until it is decided, at most `most`, find two equal
    variants equivalent with 90 % power."""
    spread = _spread(noise, most)
    bad_luck = -float(special.ndtri((1 - POWER) / 2)) * spread.sd / math.sqrt(most)
    return half_width_at(spread, most, LEVEL / compared) + bad_luck


def fewest_seeds(reached: Callable[[int], float], goal: float) -> int | None:
    """The smallest number of seeds at which `reached`, which falls with their number, is at most
    `goal`; None beyond MOST_SEEDS."""
    counts = range(FEWEST, MOST_SEEDS + 1)
    place = bisect_left(counts, True, key=lambda seeds: reached(seeds) <= goal)
    return counts[place] if place < len(counts) else None


def _spread(noise: Prior, seeds: int) -> Spread:
    return Spread(noise.variance, noise.weight + seeds - 1)
