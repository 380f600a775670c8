"""Pairs that are counted by hand show what each protocol sees of a pair."""

import math
from statistics import fmean

import pytest
import usual_protocol
from usual_protocol import Pair, Side


def side(best, results, **trials):
    """`trials` are losses of the tuning seed 100, by rate in thousandths."""
    return Side({int(r[1:]) / 1000: {100: x} for r, x in trials.items()}, best, results)


def pair(differences, truth=-0.1):
    """The baseline has 2.0 for every seed, and is best at 0.003; the variant is best at 0.001, and
    0.2 worse at 0.003: with one rate its sign turns."""
    variant = side(0.001, {seed: 2 + d for seed, d in enumerate(differences)}, r1=1.9, r3=2.1)
    baseline = side(0.003, dict.fromkeys(range(len(differences)), 2.0), r1=2.05, r3=2.0)
    return Pair("study", "post", truth, variant, baseline)


def test_one_rate_is_the_trials_there_and_more_seeds_are_moved_along_the_tuning_curve():
    differences = [-0.10, -0.12, -0.08, -0.11, -0.09]
    one = pair(differences)
    assert one.rates == [0.001, 0.003]
    for rate, expected in ((0.001, 1.9 - 2.05), (0.003, 2.1 - 2.0)):
        ((seen, truth),) = one.at_one_rate(rate, 1)
        assert (seen, truth) == (pytest.approx(expected), -0.1)
    # At 0.001 the baseline rises by 0.05 and at 0.003 the variant by 0.2.
    for rate, rise in ((0.001, -0.05), (0.003, 0.2)):
        seen = one.at_one_rate(rate, 3)
        assert len(seen) == math.comb(5, 3)
        assert seen[0] == pytest.approx((fmean(differences[:3]) + rise, fmean(differences[3:])))


def test_a_protocol_is_held_against_seeds_that_it_has_not_seen():
    seen = pair([-0.1, 0.1, -0.1, -0.1, -0.1]).at_own_rates(1)
    assert seen[0] == pytest.approx((-0.1, -0.05))
    assert seen[1] == pytest.approx((0.1, -0.1))
    found = usual_protocol.wrong([seen])
    assert (found.pairs, found.sign, found.far) == (1, 0.2, 1.0)  # each is 0.05 off at least


def test_each_pair_counts_once_and_the_table_has_each_protocol_with_its_runs():
    pairs = [pair([-0.1] * 5), pair([-0.1] * 8)]
    assert usual_protocol.at_own(pairs, 3) == usual_protocol.Wrong(2, 0.0, 0.0)
    assert usual_protocol.at_rate(pairs, 0.003, 3) == usual_protocol.Wrong(2, 1.0, 1.0)
    rows = usual_protocol.protocol_text(pairs).splitlines()
    assert "| one rate, 0.003 | 1 | 1 | 2 | 100 % | 100 % |" in rows
    assert "| the baseline's best rate | 3 | 3 | 2 | 100 % | 100 % |" in rows
    assert "| each its own best rate | 3 | 5 | 2 | 0 % | 0 % |" in rows  # two trials and three
    assert usual_protocol.draw(pairs).startswith(b"<?xml")
