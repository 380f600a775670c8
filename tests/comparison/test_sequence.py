"""Anytime-valid tests: against the integral that they are, and against simulation."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from transformer_norms.comparison.sequence import EFFECT_VARIANCE as G
from transformer_norms.comparison.sequence import always_valid_p, confidence_sequence
from transformer_norms.comparison.shrinkage import Spread


def likelihood_ratio(x, mu, usual):
    """The ratio of marginal likelihoods, by numerical integration over the deviation: a mean that
    is normal around mu with variance g sigma^2, against mu; the prior of sigma is 1 / sigma (right
    Haar), or that of an inverse chi-squared variance around the usual one."""
    one, level = np.eye(len(x)), np.full(len(x), mu)
    prior = usual and stats.invgamma(usual.freedom / 2, scale=usual.freedom * usual.variance / 2)

    def density(sigma, matrix):
        weight = prior.pdf(sigma**2) * (2 * sigma) if usual else 1 / sigma
        return weight * stats.multivariate_normal.pdf(x, level, sigma**2 * matrix)

    above, below = (
        integrate.quad(density, 1e-3, np.inf, args=(matrix,), limit=400)[0]
        for matrix in (one + G, one)
    )
    return above / below


@pytest.mark.parametrize("usual", [None, Spread(1.0, 4)])
def test_evidence_is_the_ratio_of_marginal_likelihoods(usual):
    """A variance above the usual one only weakens it, so its level holds."""
    for x, weaker in (([0.9, 1.6, 1.1], False), ([3.9, 6.6, 4.1], usual is not None)):
        ratios = [likelihood_ratio(x[:n], 0.0, usual) for n in (2, 3)]
        p, bayes = always_valid_p(x, (0.0, 0.0), usual), min(1, 1 / max(ratios))
        assert p > 1.01 * bayes if weaker else p == pytest.approx(bayes, rel=1e-4)


@pytest.mark.parametrize("usual", [None, Spread(0.5, 3)])
def test_the_sequence_leaves_out_what_the_p_value_rejects(usual):
    draw = np.random.default_rng(0)
    for _ in range(50):
        x = draw.normal(0.8, 1.0, size=8).tolist()
        for end in filter(math.isfinite, confidence_sequence(x, 0.05, usual)):
            assert always_valid_p(x, (end, end), usual) == pytest.approx(0.05, rel=1e-6)


def test_a_null_that_is_an_interval_is_rejected_when_all_of_it_is():
    x = [1.0, 1.1, 0.9, 1.05, 1.0, 0.98]
    wide, nearest = (always_valid_p(x, null, None) for null in ((-0.5, 0.5), (0.5, 0.5)))
    assert wide == pytest.approx(nearest)
    assert always_valid_p(x, (-0.5, 2.0), None) == 1.0


def test_where_bounds_cross_those_of_all_seeds_stand():
    """Noise that is no normal one: equal differences first, and others later."""
    x = [1.0, 1.0001, 0.9999, 1.0, *[0.2, 0.21, 0.19] * 20]
    low, high = confidence_sequence(x, 0.05, None)
    assert low < np.mean(x) < high


def test_equal_differences_never_reject_at_their_own_mean():
    assert always_valid_p([0.5, 0.5, 0.5], (0.5, 0.5), None) == 1.0
    assert confidence_sequence([0.5], 0.05, None) == (-math.inf, math.inf)


@pytest.mark.parametrize("looks", [10, 60])
def test_looking_after_every_seed_rejects_a_true_mean_in_at_most_5_percent(looks):
    """Student's test with the same looks rejects several times as often: the check can fail."""
    draw = np.random.default_rng(3)
    rejected = students = 0
    for _ in range(1000):
        x = draw.normal(size=looks)
        rejected += always_valid_p(x.tolist(), (0.0, 0.0), None) < 0.05
        counts = np.arange(3, looks + 1)
        means = np.array([x[:n].mean() for n in counts])
        errors = np.array([x[:n].std(ddof=1) for n in counts]) / np.sqrt(counts)
        students += bool((np.abs(means / errors) > stats.t.isf(0.025, counts - 1)).any())
    assert rejected <= 60
    assert students > 100
