"""Variances of few seeds, shrunk: against scipy.stats and against simulation."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from transformer_norms.comparison.moderation import (
    MOST_WEIGHT,
    UNUSUAL,
    Prior,
    Spread,
    fit_prior,
    moderate,
)


def log_moments(variances, freedom):
    """The weight of Smyth 2004, section 6.2, written out with scipy's root finder; None if it is
    above MOST_WEIGHT."""
    e = np.log(variances) - special.digamma(freedom / 2) + np.log(freedom / 2)
    excess = e.var(ddof=1) - special.polygamma(1, freedom / 2)
    if excess < special.polygamma(1, MOST_WEIGHT / 2):
        return None
    return optimize.brentq(lambda d: special.polygamma(1, d / 2) - excess, 1e-6, 1e6)


def test_the_prior_is_the_mean_variance_with_the_weight_of_the_log_variances():
    draw, checked = np.random.default_rng(0), 0
    for _ in range(20):
        variances = 0.01 * 1 / draw.chisquare(1, 12) * draw.chisquare(4, 12) / 4
        prior = fit_prior([Spread(v, 4) for v in variances], "here")
        weight = log_moments(variances, 4)
        checked += weight is not None
        assert prior.weight == pytest.approx(weight or MOST_WEIGHT, rel=1e-6)
        assert prior.variance == pytest.approx(variances.mean())
    assert 3 < checked < 20


def test_many_variances_give_back_how_much_they_differ():
    """s^2 = s0^2 d0 / chi2(d0) x chi2(d) / d, the model of Smyth 2004, with d0 = 1.2."""
    draw = np.random.default_rng(1)
    true = 0.0001 * 1.2 / draw.chisquare(1.2, 20_000)
    seen = true * draw.chisquare(4, 20_000) / 4
    assert fit_prior([Spread(v, 4) for v in seen], "here").weight == pytest.approx(1.2, rel=0.1)


def test_equal_variances_get_the_largest_weight():
    prior = fit_prior([Spread(0.01, 4)] * 5, "here")
    assert prior.weight == MOST_WEIGHT


def test_two_variances_are_pooled_and_none_is_no_prior():
    prior = fit_prior([Spread(1.0, 2), Spread(4.0, 4)], "noise")
    assert (prior.variance, prior.weight, prior.origin) == (3.0, MOST_WEIGHT, "noise")
    assert fit_prior([], "here") is None
    assert fit_prior([Spread(0.0, 2)], "here") is None


def test_a_moderated_variance_is_the_weighted_mean():
    prior = Prior(0.04, 4.0, "here")
    own = Spread(0.01, 2)
    assert moderate(own, prior) == Spread((4 * 0.04 + 2 * 0.01) / 6, 6)
    assert moderate(own, None) == own


def test_a_variance_that_the_prior_does_not_expect_keeps_its_own_value():
    prior = Prior(0.01, 4.0, "here")
    edge = 0.01 * stats.f.isf(UNUSUAL, 2, 4)
    assert moderate(Spread(edge * 1.01, 2), prior).freedom == 2
    assert moderate(Spread(edge * 0.99, 2), prior).freedom == 6


def test_moderated_t_is_students_where_the_variances_follow_the_prior():
    """p values are uniform: 5 % below 0.05, over variances that differ as the prior says."""
    draw = np.random.default_rng(2)
    prior = Prior(1.0, 4.0, "here")
    below = 0
    for _ in range(4000):
        x = draw.normal(size=3) * math.sqrt(4 / draw.chisquare(4))
        spread = moderate(Spread(x.var(ddof=1), 2), prior)
        t = x.mean() / math.sqrt(spread.variance / 3)
        below += 2 * stats.t.sf(abs(t), spread.freedom) < 0.05
    assert 0.035 < below / 4000 < 0.06
