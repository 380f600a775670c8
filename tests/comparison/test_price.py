"""The price of a variant against curves whose price is known in closed form, and scipy's t test."""

import math

import numpy as np
import pytest
from price_coverage import Curves, priced
from scipy import stats
from simulations import TODAY, UNTUNED

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.price import CURVE_ERROR, LossCurve, Price, price
from transformer_norms.comparison.sentences import price_clause, price_text
from transformer_norms.comparison.verdict import Rules, Side, compare, pair

TOKENS = (300.0, 1200.0, 4800.0)
NOISE = np.array([0.004, -0.001, -0.003])  # by seed; they sum to zero


def law(exponent, saved=0.0):
    """E + A tokens^-exponent of a variant that needs the share `saved` fewer tokens."""
    return lambda tokens: 1.2 + 3.0 * (tokens / (1 - saved)) ** -exponent


def curve(loss, noise=NOISE, tokens=TOKENS, slack=0.0, failed=None):
    """The losses of three seeds around a curve, with a tuning slack at the middle horizon. A fourth
    seed diverged at the horizon `failed`."""

    lost = {failed: {3: "diverged"}}
    runs = {t: Outcomes(dict(enumerate(loss(t) + noise)), lost.get(t, {})) for t in tokens}
    return LossCurve({t: Side(1.0, one, slack * (t == TOKENS[1])) for t, one in runs.items()})


@pytest.mark.parametrize("exponent", [0.1, 0.5])
@pytest.mark.parametrize("horizon", TOKENS[1:])
@pytest.mark.parametrize("saved", [0.0, 0.05, 0.3])
def test_the_price_of_power_laws_is_the_true_one_and_turns_its_sign_with_the_sides(
    exponent, horizon, saved
):
    sides = curve(law(exponent, saved)), curve(law(exponent), -NOISE)
    found, turned = (price(*pair, horizon, Rules()) for pair in (sides, sides[::-1]))
    assert found.saved == pytest.approx(saved, abs=1e-5)
    mirrored = -found.saved, -found.high, -found.low
    assert (turned.saved, turned.low, turned.high) == pytest.approx(mirrored, abs=1e-5)


def test_at_each_end_of_the_interval_the_t_test_of_the_losses_read_there_just_fails():
    tuning = 0.003
    variant, baseline = curve(law(0.4, 0.1), slack=tuning), curve(law(0.4), -NOISE, slack=tuning)
    found = price(variant, baseline, TOKENS[-1], Rules())
    assert found.low < 0 < found.saved < found.high

    def read(one, tokens):
        """Each seed's loss on the chord in tokens^-0.4, and the slack of both sources."""
        losses = [np.array([*one.sides[t].outcomes.losses.values()]) for t in TOKENS[1:]]
        u = [t**-0.4 for t in (*TOKENS[1:], tokens)]
        share = (u[0] - u[2]) / (u[0] - u[1])
        fall = (losses[0] - losses[1]).mean()
        slack = CURVE_ERROR * fall * min(share, 1 - share) + (1 - share) * tuning
        return (1 - share) * losses[0] + share * losses[1], slack

    above, slack = read(variant, TOKENS[-1] * (1 - found.high))
    end = stats.ttest_rel(above, read(baseline, TOKENS[-1])[0]).confidence_interval().low
    assert end - slack == pytest.approx(0, abs=1e-6)
    below, slack = read(baseline, TOKENS[-1] * (1 + found.low))
    end = stats.ttest_rel(read(variant, TOKENS[-1])[0], below).confidence_interval().high
    assert end + slack == pytest.approx(0, abs=1e-6)


def test_the_interval_leaves_out_zero_exactly_where_the_bounds_of_the_difference_do():
    draw = np.random.default_rng(0)
    words = set()
    for _ in range(60):
        noise = draw.normal(0, 0.004, (2, 3))
        curves = [curve(law(0.3, draw.uniform(-0.3, 0.3)), noise[0]), curve(law(0.3), noise[1])]
        slack = Side(1.0, curves[0].sides[TOKENS[-1]].outcomes, tuning_slack=0.002)
        curves[0] = LossCurve({**curves[0].sides, TOKENS[-1]: slack})
        sides = pair(*(one.sides[TOKENS[-1]].outcomes for one in curves), slack=(0.002, 0))
        low, high = compare({"": sides}, Rules(to_come=2))[""].bounds
        found = price(*curves, TOKENS[-1], Rules(), together=3)
        below, above = (-math.inf if found.low is None else found.low), found.high
        assert (below > 0, above is not None and above < 0) == (high < 0, low > 0)
        words.add((below > 0) - (above is not None and above < 0))
    assert words == {-1, 0, 1}


def test_outside_of_the_horizons_there_is_a_bound_and_without_enough_of_them_no_price():
    variant, baseline = curve(law(0.3, 0.99)), curve(law(0.3), -NOISE)
    found = price(variant, baseline, TOKENS[-1], Rules())
    assert (found.saved, found.low, found.high) == (None, 1 - 300 / 4800, None)
    fewer = "a reaches the loss of b with at least 94 % fewer tokens"
    turned = price(baseline, variant, TOKENS[-1], Rules())
    assert (turned.saved, turned.low, turned.high) == (None, None, 300 / 4800 - 1)
    assert price_clause(turned, "b", "a") == price_clause(found, "a", "b") == fewer
    assert price_text(turned) == "no estimate (no bound to -94)"
    unknown = price_clause(Price(1e6, None, -0.1, 0.2), "a", "b")
    assert unknown == "the horizons do not bound the tokens saved"
    wide = price(curve(law(0.3), 40 * NOISE), curve(law(0.3)), TOKENS[-1], Rules())
    assert (wide.low, wide.high) == (None, None)
    assert price_text(wide) == "0 % (no bound to no bound)"

    few = {"tokens": TOKENS[1:]}
    risen = [curve(lambda tokens: 1.0 + tokens / 1e5, noise) for noise in (NOISE, -NOISE)]
    for sides in (
        (curve(law(0.3), failed=TOKENS[1]), baseline),
        (variant, curve(law(0.3), -NOISE, failed=TOKENS[2])),
        (variant, curve(law(0.3), NOISE[:2])),
        (curve(law(0.3), **few), curve(law(0.2), -NOISE, **few)),
        risen,
    ):
        assert price(*sides, TOKENS[-1], Rules()) is None
    assert price(variant, baseline, TOKENS[0], Rules()) is None


@pytest.mark.parametrize(("plan", "studies"), [(UNTUNED, 200), (TODAY, 40)])
def test_the_interval_covers_the_truth_of_simulated_studies(plan, studies):
    curves = Curves(0.5, 0.3, saved=0.15)
    assert curves.variant(3.4) == pytest.approx(curves.baseline(4.0))
    for at in zip(*(priced(curves, plan, 0.7, n) for n in range(studies)), strict=True):
        low, high = np.array([(one.low, one.high) for one in at], float).T  # NaN: no bound
        missed = ((low > 0.15) | (high < 0.15)).sum()
        assert missed <= stats.binom.ppf(0.99, studies, 0.06)
