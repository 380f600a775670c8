"""Variances of few seeds, shrunk toward the study's: against arithmetic and simulation."""

import math

import numpy as np
import pytest
from losses import outcomes, simulate
from scipy import stats

from transformer_norms.comparison.shrinkage import Spread, shrink, usual_spread
from transformer_norms.comparison.verdict import Side, pair, usual_variance


def test_the_usual_variance_is_the_mean_and_weighs_up_to_four_seeds():
    for count in range(2, 9):
        variances = [0.1 * k for k in range(1, count + 1)]
        expected = pytest.approx(sum(variances) / count), min(4, count - 1)
        assert usual_spread([*variances, 0.0]) == expected
    assert usual_spread([]) is usual_spread([0.04]) is usual_spread([0.04, 0.0]) is None


def test_a_variance_is_the_weighted_mean_unless_its_own_is_larger():
    usual = Spread(0.04, 4)
    assert shrink(Spread(0.01, 2), usual) == Spread(pytest.approx((4 * 0.04 + 2 * 0.01) / 6), 6)
    assert shrink(Spread(0.05, 2), usual) == Spread(0.05, 6)
    assert shrink(Spread(0.01, 2), None) == Spread(0.01, 2)


def test_only_pairs_that_trained_tell_the_usual_variance_and_equal_ones_count_once():
    rows = {"a": [2.1, 2.3, 2.2], "b": [2.3, 2.2, 2.0], "two": [2.9, 2.0], "c": [2.1, 2.1, 2.9]}
    base = outcomes([2.0, 2.1, 2.1])
    asked = {name: pair(outcomes(row), base) for name, row in rows.items()}
    asked["again"] = asked["a"]
    asked["failed"] = pair(outcomes([2.0, 2.4, 2.9], failed={1}), base)
    asked["sum"] = [Side(c, outcomes(rows[name])) for name, c in (("a", 2), ("b", -1), ("c", -1))]
    variances = [np.var(np.subtract(rows[x], [2.0, 2.1, 2.1]), ddof=1) for x in "abc"]
    assert usual_variance(asked) == (pytest.approx(np.mean(variances)), 2)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_at_most_5_percent_of_studies_name_a_difference_where_there_is_none(seeds, count):
    """With a variant that scatters three times as far, too. One that scatters ten times as far is
    hardly shrunk, and three seeds of it claim a little more."""
    chance = 3 * math.sqrt(0.05 * 0.95 / 20_000)
    for scatter, most in ((1, 0.05), (3, 0.05), (10, 0.065)):
        mean, error, freedom = simulate([1.0] * count + [scatter], seeds, 20_000)
        named = abs(mean) / error > stats.t.isf(0.025 / count, freedom)
        assert named.any(1).mean() <= most + chance
