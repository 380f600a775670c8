"""The tokens that a placement needs beside another are those of planted laws."""

import math

import pytest
from tokens_needed import log_ratios

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.price import LossCurve
from transformer_norms.comparison.verdict import Side

HORIZONS = (300, 1200, 4800)


def curve_of(slower):
    """1.4 + 7 (tokens / slower)^-0.3, and for each seed another floor."""
    losses = {
        tokens: {seed: 1.4 + seed / 100 + 7 * (tokens / slower) ** -0.3 for seed in (1, 2, 3)}
        for tokens in HORIZONS
    }
    return LossCurve({tokens: Side(1.0, Outcomes(own)) for tokens, own in losses.items()})


@pytest.mark.parametrize("slower", [1.3, 0.8])
def test_what_needs_a_third_more_or_a_fifth_less_is_found_at_each_horizon_but_the_longest(slower):
    one, other = curve_of(slower), curve_of(1.0)
    for horizon in HORIZONS[:-1]:
        found = log_ratios(one, other, horizon)
        assert found == pytest.approx(dict.fromkeys((1, 2, 3), math.log(slower)), abs=1e-3)
    assert log_ratios(one, other, HORIZONS[-1]) == {}  # it is not reached


def test_a_seed_that_does_not_reach_the_loss_is_left_out():
    one, other = curve_of(5.0), curve_of(1.0)
    one.sides[4800].outcomes.losses[2] += 1
    assert [*log_ratios(one, other, 300)] == [1, 3]
