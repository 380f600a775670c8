"""The power of seeds before they run, against simulation and scipy's integrals."""

import math

import numpy as np
import pytest
from losses import compare_pairs, outcomes, simulate
from scipy import integrate, stats

from transformer_norms.comparison import power as plans
from transformer_norms.comparison.power import fewest_seeds, smallest_bound, smallest_difference
from transformer_norms.comparison.shrinkage import Spread

SD = 0.01
NOISE = Spread(SD**2, 0)
NINE_TENTHS = pytest.approx(0.9, abs=1e-5)


@pytest.mark.parametrize("variants", [1, 2, 3, 7])
@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_nine_of_ten_studies_find_the_smallest_difference_and_show_the_smallest_bound(
    seeds, variants
):
    """To one in a hundred: the study's variance is measured, and is the true one in the formula."""
    plan = Spread(SD**2, min(4, variants - 1)), seeds, variants, False
    mean, error, freedom = simulate([SD / 2**0.5] * (1 + variants), seeds, 20_000)
    mean, half = mean[:, 0], (error * stats.t.isf(0.025 / variants, freedom))[:, 0]
    shown = abs(mean) + half < smallest_bound(*plan)
    for found in (mean + smallest_difference(*plan) > half, shown):
        assert found.mean() == pytest.approx(0.9, abs=0.0125)


@pytest.mark.parametrize(
    ("seeds", "compared", "weight"), [(3, 1, 0), (3, 3, 2), (5, 7, 4), (20, 2, 1), (2000, 2, 0)]
)
def test_the_power_of_a_plan_is_what_scipy_integrates(seeds, compared, weight):
    """Over the variance of a comparison's own seeds, chi-squared, which is then shrunk."""
    own, freedom = seeds - 1, seeds - 1 + weight
    plan = Spread(1.0, weight), seeds, compared, False
    margin, difference = (f(*plan) * seeds**0.5 for f in (smallest_bound, smallest_difference))
    quantile, chi = stats.t.isf(0.025 / compared, freedom), stats.chi2(own, scale=1 / own)

    def power(share):
        def density(c):
            return chi.pdf(c) * share(quantile * max(c, (weight + own * c) / freedom) ** 0.5)

        places, limits = [1.0, (margin / quantile) ** 2], (chi.ppf(1e-12), chi.isf(1e-12))
        return integrate.quad(density, *limits, points=places, limit=400)[0]

    assert power(lambda w: max(0, 2 * stats.norm.cdf(margin - w) - 1)) == NINE_TENTHS
    assert power(lambda w: stats.norm.cdf(difference - w)) == NINE_TENTHS


def share(verdict, seeds, difference=0.0, margin=1e-9, studies=300):
    """The share of sequences of one variant that end with the verdict."""
    draws = np.random.default_rng(seeds).normal(3 + difference, SD, (studies, seeds))
    pairs = ({"v": (outcomes(row.tolist()), outcomes([3.0] * seeds))} for row in draws)
    made = (compare_pairs(one, margin=margin, looks=2)["v"] for one in pairs)
    return sum(c.verdict == verdict for c in made) / studies


@pytest.mark.parametrize("seeds", [4, 5, 12])
def test_a_sequence_finds_its_smallest_difference_at_least_nine_times_in_ten(seeds):
    """The running evidence finds a little more than its last look, which the formula counts."""
    difference, bound = (f(NOISE, seeds, 1, True) for f in (smallest_difference, smallest_bound))
    assert 0.86 <= share("worse", seeds, difference) <= 0.98
    assert share("equivalent", seeds, margin=bound) >= 0.86
    # What three seeds without a usual variance cannot decide.
    assert smallest_difference(NOISE, 3, 1, True) == smallest_bound(NOISE, 3, 1, True) == math.inf


def test_the_fewest_seeds_reach_the_goal_and_one_less_does_not():
    for goal in (5 * SD, SD, 0.3 * SD):
        seeds = fewest_seeds(lambda n: smallest_bound(NOISE, n, 3, False), goal)
        assert smallest_bound(NOISE, seeds, 3, False) <= goal
        assert seeds == 3 or smallest_bound(NOISE, seeds - 1, 3, False) > goal
    most = plans.MOST_SEEDS
    assert fewest_seeds(lambda n: 1 / n, 1 / most) == most
    assert fewest_seeds(lambda n: 1 / n, 0.5 / most) is None
    assert fewest_seeds(lambda n: math.inf if n < 9 else 0, 1) == 9
