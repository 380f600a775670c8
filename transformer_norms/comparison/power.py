"""Computes what a number of seeds can find before a run has started. The noise is known: it is the
variance of the difference of two runs of one seed. Its weight counts as degrees of freedom."""

from bisect import bisect_left
from collections.abc import Callable

from transformer_norms.comparison.sequence import sequence_quantile
from transformer_norms.comparison.shrinkage import Spread
from transformer_norms.comparison.statistics import (
    FEWEST,
    LEVEL,
    detectable_difference,
    smallest_margin,
    student_quantile,
)

MOST_SEEDS = 10_000  # looked at for a margin that is far below the noise


def smallest_difference(noise: Spread, seeds: int, compared: int, in_sequence: bool) -> float:
    """The smallest true difference that a plan of `seeds` detects with 90 % power, in nats: if they
    are planned at once, or at the latest at the last look of those that are added `in_sequence`."""
    return detectable_difference(*_plan(noise, seeds, compared, in_sequence), seeds)


def smallest_bound(noise: Spread, seeds: int, compared: int, in_sequence: bool) -> float:
    """The smallest margin within which two variants that are truly equal are found equivalent with
    90 % power, in nats."""
    return smallest_margin(*_plan(noise, seeds, compared, in_sequence), seeds)


def fewest_seeds(reached: Callable[[int], float], goal: float) -> int | None:
    """The smallest number of seeds at which `reached`, which falls with their number, is at most
    `goal`; None beyond MOST_SEEDS."""
    counts = range(FEWEST, MOST_SEEDS + 1)
    place = bisect_left(counts, True, key=lambda seeds: reached(seeds) <= goal)
    return counts[place] if place < len(counts) else None


def _plan(noise: Spread, seeds: int, compared: int, in_sequence: bool) -> tuple[float, Spread]:
    """Half the width of the bounds in standard errors, and the spread that it goes with."""
    spread, level = Spread(noise.variance, noise.freedom + seeds - 1), LEVEL / compared
    if in_sequence:
        return sequence_quantile(spread.freedom, seeds, level), spread
    return student_quantile(spread.freedom, level), spread
