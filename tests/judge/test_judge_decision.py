"""The judge's decision on a proposal, against brute force and simulated series."""

import math

import numpy as np
import pytest
from judge_series import run_proposal, simulate_series, skewed, summarize
from scipy import integrate, stats

from transformer_norms.comparison.sequence import EFFECT_VARIANCE
from transformer_norms.judge import decision
from transformer_norms.judge.decision import MISSED, decide, interval

LEVEL, EFFECT, MOST = 0.05 / 40, 0.005, 20


def one_sided_martingale(x, mu, sign):
    """The ratio of the likelihoods of means on one side of mu and of mu itself, by integration:
    the mean is half-normal with variance g sigma^2, and sigma has the right Haar prior."""
    x = np.asarray(x)
    half, scale = stats.halfnorm(scale=math.sqrt(EFFECT_VARIANCE)), x.std(ddof=1)

    def density(sigma, at):
        return math.exp(-((x - at) ** 2).sum() / (2 * sigma**2)) * sigma ** (-len(x) - 1)

    def mixed(effect, sigma):
        return half.pdf(effect) * density(sigma, mu + sign * effect * sigma)

    above = integrate.dblquad(mixed, scale / 30, scale * 30, 0, 40, epsabs=0, epsrel=1e-6)[0]
    return above / integrate.quad(density, scale / 30, scale * 30, args=(mu,), limit=400)[0]


def test_where_the_upper_end_lies_the_evidence_of_lower_means_is_one_over_the_level():
    """A martingale of mean 1 exceeds 1 / level with a probability of at most `level`. The evidence
    of higher means is at most 1 there, and both together are what the end is solved for."""
    x = [-1.1, -0.7, -1.0, -0.9, -1.2, -0.8]
    level = 0.01
    _, _, high = interval(x, level)
    below, above = (one_sided_martingale(x, high, sign) for sign in (-1, 1))
    assert above <= 1
    assert below >= 1 / level
    assert below + above == pytest.approx(1 / level + 1, rel=1e-3)


def test_the_ends_of_the_interval_mirror_each_other():
    x = [0.3, -0.2, 0.4, 0.1, 0.25, 0.0]
    mean, low, high = interval(x, MISSED)
    assert interval([-value for value in x], MISSED) == pytest.approx((-mean, -high, -low))
    assert interval(x, MISSED / 10)[2] > high
    assert interval(x, MISSED / 10)[1] == low  # a gain that is missed is no false `better`


@pytest.mark.parametrize(("differences", "word", "over"), [
    ([], "undecided", False),
    ([-0.5, -0.5001], "undecided", False),
    ([-0.1 - 1e-4 * (k % 3) for k in range(9)], "better", True),
    ([-0.004 - 1e-5 * (k % 3) for k in range(12)], "not better", True),  # less than the effect
    ([0.1 + 1e-4 * (k % 3) for k in range(9)], "not better", True),
    ([0.0, 0.0, 0.0], "not better", True),  # the change changes nothing
    ([-0.1, -0.1, -0.1], "undecided", False),  # no noise is measured
    ([-0.02, -0.01, -0.03], "undecided", False),
    ([0.02, 0.03, 0.025], "undecided", True),  # hopeless
    ([-0.003, -0.0035, -0.0025], "undecided", True),  # a gain, but hardly one of 0.005
    ([0.02, -0.03, 0.01, -0.015] * 5, "undecided", True),  # the budget is spent
])  # fmt: skip
def test_what_differences_decide(differences, word, over):
    decided = decide(differences, LEVEL, EFFECT, MOST)
    assert (decided.word, decided.over) == (word, over)


def student_calls_better(differences, looks, level):
    """Whether Student's one-sided test finds a gain worth naming at any look: one row each."""
    means = np.stack([differences[:, :n].mean(1) for n in looks])
    errors = np.stack([differences[:, :n].std(1, ddof=1) / math.sqrt(n) for n in looks])
    quantiles = stats.t.ppf(level, np.asarray(looks) - 1)[:, None]
    return ((means / errors < quantiles) & (means <= -EFFECT)).any(0)


def test_a_candidate_that_is_no_better_is_called_better_no_more_often_than_the_level():
    """Looked at after every pair. Student's test with the same looks finds several times as many:
    the check can fail."""
    level, differences = 0.05, np.random.default_rng(0).normal(0, 0.02, (600, 12))
    words = [run_proposal(row, level, EFFECT)[0] for row in differences.tolist()]
    allowed = stats.binom.ppf(0.999, 600, level)
    assert words.count("better") <= allowed
    assert student_calls_better(differences, range(3, 13), level).sum() > allowed


def series_of(draw, count, *sizes, **truth):
    return summarize([simulate_series(draw, *sizes, **truth) for _ in range(count)])


def test_a_gain_is_found_in_half_the_pairs_and_a_hopeless_candidate_costs_less():
    draw = np.random.default_rng(1)
    found, null = (series_of(draw, 4, 20, gain=gain, fresh=True) for gain in (0.02, 0.0))
    assert found["better"] >= 0.95
    assert (found["pairs"] < 12, null["pairs"] < 9) == (True, True)
    assert found["saved"] == pytest.approx(1 - found["pairs"] / 20)


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [
    {"sd": 0.003},
    {"sd": 0.01},
    {"sd": 0.01, "effect": 0.0, "most": 40},
    {"sd": 0.02, "noise": skewed},
    {"sd": 0.02, "likeness": 0.9, "fresh": True},
], ids=str)  # fmt: skip
def test_of_series_of_100_null_proposals_at_most_5_percent_hold_a_false_better(settings):
    """Student's test of each proposal at 5 %, with the same looks, finds more: it can fail."""
    draw = np.random.default_rng(2)
    null = series_of(draw, 200, **settings)
    assert null["any better"] <= 0.05
    assert null["pairs"] < settings.get("most", 20) / 2
    differences = draw.normal(0, settings["sd"], (40, 100, 20))
    false = [student_calls_better(one, range(3, 21), 0.05).any() for one in differences]
    assert np.mean(false) > 0.05


@pytest.mark.nightly
def test_candidates_made_from_a_lucky_one_need_seeds_of_their_own():
    """With shared seeds the luck of one candidate is inherited: why they are not the default."""
    alike = series_of(np.random.default_rng(3), 200, sd=0.02, likeness=0.9)
    assert alike["any better"] > 0.05


@pytest.mark.nightly
@pytest.mark.parametrize("gain", [0.0075, 0.01, 0.015])
def test_giving_up_hopeless_candidates_costs_hardly_a_gain(gain, monkeypatch):
    def run_series():
        return series_of(np.random.default_rng(5), 20, 20, gain=gain, fresh=True)

    giving_up = run_series()
    monkeypatch.setattr(decision, "is_hopeless", lambda *_: False)
    going_on = run_series()
    assert giving_up["better"] > going_on["better"] - 0.02
    assert giving_up["pairs"] < going_on["pairs"]


@pytest.mark.nightly
def test_gains_are_found_with_half_the_runs():
    draw, saved = np.random.default_rng(4), []
    for gain, least in ((0.01, 0.15), (0.02, 0.97), (0.03, 0.99), (0.05, 0.99)):
        found = series_of(draw, 20, gain=gain)
        assert found["better"] > least
        saved.append(found["saved"])
    assert saved == sorted(saved)
    assert saved[1] > 0.3
