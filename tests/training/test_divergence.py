"""One rule for divergence: planted curves are told right, healthy ones are left alone."""

import math
import random

import pytest

from transformer_norms.training.divergence import Divergence


def verdict(losses, *, warmup=20, gradients=None, final=None):
    rule = Divergence(warmup)
    for step, loss in enumerate(losses, 1):
        if rule.step(step, loss, 1.0 if gradients is None else gradients[step - 1]) is not None:
            return step
    return "end" if final is not None and rule.end(final, min(losses)) else None


def healthy(seed, steps=400):
    noise = random.Random(seed)
    return [2 + 4 * math.exp(-step / 60) + noise.gauss(0, 0.15) for step in range(steps)]


@pytest.mark.goal("N3")
def test_forty_planted_divergences_are_all_found_where_they_are(measured):
    for seed in range(10):
        at, curve = 30 + 30 * seed, healthy(seed)
        for bad in (math.nan, math.inf):
            assert verdict([*curve[:at], bad, *curve[at:]]) == at + 1
        assert verdict(curve, gradients=[1.0] * at + [math.nan] * 400) == at + 1
        assert verdict([*curve[:at], *[curve[0] + 0.5] * 370]) == at + 100
        assert verdict(curve, final=min(curve) + 1.01) == "end"
    measured("50 of 50 planted divergences found at their step")


@pytest.mark.goal("N3")
def test_two_hundred_healthy_curves_are_left_alone(measured):
    flagged = 0
    for seed in range(200):
        curve, spikes = healthy(seed), random.Random(seed)
        for _ in range(3):  # single spikes are no divergence
            curve[spikes.randrange(50, 400)] = 12.0
        flagged += verdict(curve, final=curve[-1]) is not None
    assert flagged <= 2
    measured(f"{flagged} of 200 healthy curves flagged")


def test_a_rise_during_the_warmup_or_shorter_than_a_hundred_steps_is_no_divergence():
    assert verdict([6.0, *[7.0] * 118, 5.0], warmup=20) is None
    assert verdict([6.0, *[7.0] * 119, 5.0], warmup=20) is not None


@pytest.mark.goal("N3")
def test_spikes_are_counted_by_six_deviations_of_the_last_128():
    rule = Divergence(0)
    for step in range(1, 300):
        rule.step(step, 9.0 if step in (50, 200, 250) else 3.0 + 0.1 * (-1) ** step, 1.0)
    assert rule.spikes == 2  # at step 50 there are no 128 values yet


def test_the_rule_goes_on_from_its_saved_state():
    whole, parts = Divergence(0), Divergence(0)
    for step in range(1, 102):
        if step == 61:
            state, parts = parts.state(), Divergence(0)
            parts.restore(state)
        reasons = [rule.step(step, 7.0 if step > 1 else 6.0, 1.0) for rule in (whole, parts)]
        assert reasons == [reasons[0]] * 2
        assert whole.state() == parts.state()
    assert "stood above its initial 6.000" in reasons[0]
