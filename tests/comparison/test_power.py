"""The power of seeds before they run, against simulation and scipy's integrals."""

import math

import numpy as np
import pytest
from losses import outcomes
from scipy import integrate, stats

from transformer_norms.comparison.moderation import Prior
from transformer_norms.comparison.power import (
    MOST_SEEDS,
    bound_in_sequence,
    difference_in_sequence,
    fewest_seeds,
    noise_of,
    smallest_bound,
    smallest_difference,
)
from transformer_norms.comparison.verdict import Rules, compare, pair

SD = 0.01
NOISE = Prior(SD**2, 0.0, "here")


def share(verdict, *, seeds, rules, difference=0.0, studies=400):
    """The share of studies of one variant that come to the verdict."""
    draws = np.random.default_rng([seeds, studies]).normal(difference, SD, (studies, seeds))
    baseline = outcomes([3.0] * seeds)
    made = (
        compare({"v": pair(outcomes((3 + row).tolist()), baseline)}, rules)["v"] for row in draws
    )
    return sum(c.verdict == verdict for c in made) / studies


def near(power):
    """Four standard errors of a share of 400."""
    return pytest.approx(power, abs=4 * (0.9 * 0.1 / 400) ** 0.5)


@pytest.mark.parametrize("seeds", [3, 8])
def test_nine_of_ten_studies_find_the_smallest_difference_and_show_the_smallest_bound(seeds):
    smallest = smallest_difference(NOISE, seeds, 1, 0.0)
    assert share("worse", seeds=seeds, rules=Rules(0.0), difference=smallest) == near(0.9)
    bound = smallest_bound(NOISE, seeds, 1)
    assert share("equivalent", seeds=seeds, rules=Rules(bound)) == near(0.9)


@pytest.mark.parametrize(("seeds", "compared", "weight"), [(3, 1, 0.0), (5, 7, 4.0), (20, 2, 4.0)])
def test_the_smallest_bound_has_the_power_that_scipy_integrates(seeds, compared, weight):
    freedom = seeds - 1 + weight
    quantile = stats.t.isf(min(0.05 / compared, 0.025), freedom)
    bound = smallest_bound(Prior(1.0, weight, "here"), seeds, compared) * seeds**0.5
    deviation = stats.chi(freedom, scale=freedom**-0.5)
    power, _ = integrate.quad(
        lambda s: deviation.pdf(s) * (2 * stats.norm.cdf(bound - quantile * s) - 1),
        0, bound / quantile, epsabs=1e-10,
    )  # fmt: skip
    assert power == pytest.approx(0.9, abs=1e-5)


def test_a_sequence_finds_its_smallest_difference_at_least_nine_times_in_ten():
    """The running evidence finds a little more than its last look, which the formula counts."""
    smallest = difference_in_sequence(NOISE, 12, 1, 0.0)
    found = share("worse", seeds=12, rules=Rules(0.0, None, 2), difference=smallest)
    assert 0.86 <= found <= 0.98
    for seeds in (4, 5):  # whose own deviation says little
        smallest = difference_in_sequence(NOISE, seeds, 1, 0.0)
        found = share("worse", seeds=seeds, rules=Rules(0.0, None, 2), difference=smallest)
        assert 0.86 <= found <= 0.98
    bound = bound_in_sequence(NOISE, 12, 1)
    assert share("equivalent", seeds=12, rules=Rules(bound, None, 2)) >= 0.84
    # An effect that is large beside the noise: the mean has to reach it nine times in ten.
    large = difference_in_sequence(NOISE, 12, 1, 50 * SD)
    assert large == pytest.approx(50 * SD + 1.2815516 * SD / 12**0.5)
    assert 0.87 <= share("worse", seeds=12, rules=Rules(50 * SD, None, 2), difference=large) <= 0.93


def test_the_fewest_seeds_reach_the_goal_and_one_less_does_not():
    for goal in (5 * SD, SD, 0.3 * SD):
        seeds = fewest_seeds(lambda n: smallest_bound(NOISE, n, 3), goal)
        assert smallest_bound(NOISE, seeds, 3) <= goal
        assert seeds == 3 or smallest_bound(NOISE, seeds - 1, 3) > goal
    assert fewest_seeds(lambda n: 1 / n, 1 / MOST_SEEDS) == MOST_SEEDS
    assert fewest_seeds(lambda n: 1 / n, 0.5 / MOST_SEEDS) is None
    assert fewest_seeds(lambda n: math.inf if n < 9 else 0, 1) == 9


def test_the_noise_of_comparisons_is_their_prior_or_their_mean_variance():
    prior = Prior(2.0, 3.0, "there")
    assert noise_of([], Rules(0.0, prior)) is prior
    assert noise_of([], Rules(0.0)) is None
    sides = {name: pair(outcomes(x), outcomes([3.0] * 3)) for name, x in
             {"a": [3.1, 3.2, 3.3], "b": [3.1, 3.3, 3.5]}.items()}  # fmt: skip
    made = compare(sides, Rules(0.0))
    assert noise_of(made.values(), Rules(0.0)).variance == pytest.approx((0.01 + 0.04) / 2)
