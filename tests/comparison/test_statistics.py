"""What is said of a few seeds: the right numbers, and no claim that they do not carry."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import BASE, EFFECT, NOISE, compare_pairs, comparison_of, outcomes
from scipy import optimize, stats

from transformer_norms.comparison.moderation import Prior, Spread
from transformer_norms.comparison.outcomes import Outcomes, Share, fisher_p
from transformer_norms.comparison.sentences import comparison_sentence
from transformer_norms.comparison.sequence import always_valid_p, confidence_sequence
from transformer_norms.comparison.statistics import (
    detectable_difference,
    holm,
    sign_flip,
)
from transformer_norms.comparison.verdict import Rules, compare, pair
from transformer_norms.report.tuning_audit import sensitivity

PUBLISHED = 0.00185  # sd of 1,261 runs of one 124M model, nats per token


# The numbers


def test_the_paired_numbers_are_those_of_scipy_and_of_the_textbook():
    draws = np.random.default_rng(1)
    for seeds in (3, 5, 10):
        ours, theirs = draws.normal(3, 0.01, (2, seeds)).tolist()
        c, expected = comparison_of(ours, theirs), stats.ttest_rel(ours, theirs)
        interval = expected.confidence_interval(0.95)
        differences = np.subtract(ours, theirs)
        assert c.seeds == tuple(range(seeds))
        assert c.p == pytest.approx(expected.pvalue, rel=1e-9)
        assert (c.low, c.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert (c.difference, c.sd) == pytest.approx((differences.mean(), differences.std(ddof=1)))
        one_sided = [
            stats.ttest_1samp(differences, -EFFECT, alternative="greater").pvalue,
            stats.ttest_1samp(differences, EFFECT, alternative="less").pvalue,
        ]
        assert c.p_equivalent == pytest.approx(max(one_sided), rel=1e-9)
        assert c.correlation == pytest.approx(np.corrcoef(ours, theirs)[0, 1])


def test_sums_do_not_depend_on_the_order_of_their_seeds():
    draws = random.Random(6)
    pairs = [(draws.gauss(3, 1), draws.gauss(3, 1)) for _ in range(6)]
    orders = (zip(*order, strict=True) for order in itertools.permutations(pairs))
    numbers = {
        (c.difference, c.low, c.high, c.sd, c.correlation, c.p, c.sign_flip, c.detectable)
        for c in (comparison_of(*sides) for sides in itertools.islice(orders, 0, 720, 7))
    }
    assert len(numbers) == 1


def test_holms_adjustment_is_the_one_done_by_hand():
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    # sorted .005 .01 .03 .04, times 4 3 2 1: .02 .03 .06 .04, and none below one before it
    assert adjusted == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
    # One more, as if its p were 1: times 5 4 3 2.
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}, others=1)
    assert adjusted == pytest.approx({"d": 0.025, "a": 0.04, "c": 0.09, "b": 0.09})


def test_holm_runs_over_every_comparison_that_has_a_p_or_a_failure():
    base = outcomes([3.00, 3.01, 3.02])
    alone = compare_pairs({"a": (outcomes([2.98, 2.985, 3.01]), base)}, EFFECT)["a"]
    pairs = {
        "a": (outcomes([2.98, 2.985, 3.01]), base),
        "failed": (outcomes([3.4, 3.3, 9.0], failed={2}), base),
        "same": (base, base),
        "single": (Outcomes({0: 3.3}), base),
        "two": (Outcomes({0: 3.3, 1: 3.2}), base),
    }
    together = compare_pairs(pairs, EFFECT)
    assert alone.p_holm == alone.p
    assert together["a"].p_holm == 2 * alone.p
    assert together["a"].detectable > alone.detectable
    assert together["failed"].p_holm is None
    assert together["same"].p_holm is None
    assert together["single"].p_holm is None
    assert together["two"].p_holm is None


def test_what_is_to_come_belongs_to_holms_family():
    """So that what is named stays named when the others have seeds enough, or results at all."""
    base, ours = outcomes([3.00, 3.01, 3.02, 3.01]), outcomes([2.98, 2.985, 3.01, 2.99])
    two = Outcomes({0: 3.3, 1: 3.2})
    for looks, family in ((1, 1), (2, 2)):
        alone = compare({"a": pair(ours, base)}, Rules(EFFECT, None, looks))["a"]
        asked = {"a": pair(ours, base), "two": pair(two, base)}
        c = compare(asked, Rules(EFFECT, None, looks))["a"]
        assert c.p_holm == pytest.approx(min(1, family * alone.p))
        later = compare(asked, Rules(EFFECT, None, looks, to_come=3))["a"]
        assert later.p_holm == pytest.approx(min(1, (family + 3) * alone.p))
        assert looks > 1 or later.detectable > c.detectable


@pytest.mark.parametrize("looks", [1, 2])
def test_failures_that_are_to_come_belong_to_holms_family(looks):
    base, lost = outcomes([3.0] * 6), outcomes([], failed=range(6))
    alone = compare({"a": pair(lost, base)}, Rules(EFFECT, None, looks))["a"]
    assert alone.fisher == pytest.approx(2 / math.comb(12, 6))
    later = compare({"a": pair(lost, base)}, Rules(EFFECT, None, looks, to_come=5))["a"]
    assert later.fisher == pytest.approx(6 * alone.fisher)


def test_a_pair_with_a_failure_has_no_number_and_lends_no_other_one_a_step_of_holms():
    base = outcomes([3.00, 3.01, 3.02])
    lost = outcomes([10.80, 10.81, 10.821], failed={0, 1, 2})
    partly = outcomes([10.80, 10.81, 10.821, 9.9], failed={3})  # the others as if with p 1e-8
    ours = outcomes([2.98, 2.985, 3.01])
    alone = compare_pairs({"a": (ours, base)}, EFFECT)["a"]
    for other in (lost, partly):
        together = compare_pairs({"a": (ours, base), "lost": (other, base)}, EFFECT)
        assert together["a"].p_holm == 2 * alone.p
        assert together["a"].p_equivalent == min(1, 2 * alone.p_equivalent)
    numbers = "difference low high sd correlation p p_holm sign_flip p_equivalent detectable"
    for sides in ((lost, base), (partly, base), (base, partly)):
        c = compare_pairs({"lost": sides}, EFFECT)["lost"]
        assert [getattr(c, name) for name in numbers.split()] == [None] * 10
        assert (c.verdict, c.differences) == ("failed", ())


def test_claims_are_made_by_the_adjusted_p():
    base = outcomes([3.0, 3.0, 3.0])
    near, far = outcomes([2.987, 2.990, 2.993]), outcomes([3.020, 2.990, 2.994])
    even = outcomes([3.0001, 2.9972, 3.0030])
    alone = compare_pairs({"near": (near, base)}, EFFECT)["near"]
    pair = compare_pairs({"near": (near, base), "far": (far, base)}, EFFECT)["near"]
    assert (alone.verdict, pair.verdict) == ("better", "not distinguishable")
    assert alone.p < 0.05 < pair.p_holm == 2 * alone.p
    alone = compare_pairs({"even": (even, base)}, EFFECT)["even"]
    pair = compare_pairs({"even": (even, base), "far": (far, base)}, EFFECT)["even"]
    assert pair.p_equivalent == 2 * alone.p_equivalent


def test_the_sign_flip_test_counts_every_choice_of_signs():
    draws = random.Random(2)
    for seeds in range(6, 11):
        differences = [draws.gauss(0.4, 1) for _ in range(seeds)]
        differences[1] = differences[0]  # ties
        observed = abs(sum(differences)) - 1e-9
        flips = itertools.product((-1, 1), repeat=seeds)
        far = sum(abs(np.dot(signs, differences)) >= observed for signs in flips)
        assert sign_flip(differences) == far / 2**seeds
    byhand = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert sign_flip(differences) == pytest.approx(byhand.pvalue)
    assert sign_flip([1.0] * 6) == 2 / 64
    assert sign_flip([1.0, -1.0] * 3) == 1
    assert sign_flip([1.0] * 30) == 2 / 2**30
    assert sign_flip([1.0] * 5) is sign_flip([1.0] * 31) is None


def test_bounds_on_a_share_are_clopper_and_pearsons():
    assert (Share(2, 3).low, Share(2, 3).high) == pytest.approx((0.0943, 0.9916), abs=1e-4)
    for count, total in ((1, 3), (3, 3), (2, 5), (7, 10)):
        interval = stats.binomtest(count, total).proportion_ci(method="exact")
        share = Share(count, total)
        assert (share.low, share.high) == pytest.approx((interval.low, interval.high))
    for total, bound in ((3, 0.63), (5, 0.45), (10, 0.26), (20, 0.14)):
        assert Share(0, total).low == 0
        assert Share(0, total).high == pytest.approx(bound, abs=0.005)
        assert (1 - Share(0, total).high) ** total == pytest.approx(0.05)
    assert (Share(0, 0).low, Share(0, 0).high) == (0, 1)
    assert str(Share(2, 3)) == "2 of 3 (9 to 99 %)"
    assert str(Share(0, 3)) == "0 of 3 (at most 63 %)"


def test_failures_are_compared_by_fishers_exact_test():
    for total, others in itertools.product((1, 3, 5, 8), repeat=2):
        for count, fewer in itertools.product(range(total + 1), range(others + 1)):
            table = [[count, total - count], [fewer, others - fewer]]
            p = fisher_p(Share(count, total), Share(fewer, others))
            assert p == pytest.approx(stats.fisher_exact(table).pvalue, rel=1e-9)
    assert fisher_p(Share(3, 5), Share(0, 5)) == pytest.approx(1 / 6)
    failing, base = outcomes(BASE, failed={0, 1, 4}), outcomes(BASE)
    for sides in ((failing, base), (base, failing)):
        assert compare_pairs({"v": sides}, EFFECT)["v"].fisher == pytest.approx(1 / 6)
    assert compare_pairs({"v": (failing, Outcomes({}))}, EFFECT)["v"].fisher is None
    assert comparison_of(BASE, BASE).fisher is None


def test_a_run_that_failed_is_infinity_in_the_median_and_in_no_mean():
    ran = Outcomes({0: 3.0, 1: 3.2}, {2: "diverged"}, missing=frozenset({3}))
    assert ran.median == 3.2
    assert ran.mean == pytest.approx(3.1)
    assert ran.failure == Share(1, 3)
    assert (ran.ended, ran.planned) == (3, 4)
    assert ran.sd == pytest.approx(np.std([3.0, 3.2], ddof=1))
    most = Outcomes({0: 3.0}, {1: "diverged", 2: "diverged"})
    assert (most.median, most.mean, most.sd) == (math.inf, 3.0, None)
    every = Outcomes({}, {0: "diverged"})
    assert (every.median, every.mean, every.sd) == (math.inf, None, None)
    none = Outcomes({}, missing=frozenset({0}))
    assert (none.median, none.mean, none.sd) == (None, None, None)
    assert Outcomes({7: 3.0}).sd is None


def test_sensitivity_is_the_mean_excess_over_the_best_rate_with_the_initial_loss_as_cap():
    losses = {1e-3: 3.5, 3e-3: 3.0, 1e-2: 3.2, 3e-2: 50.0}
    assert sensitivity(losses, initial=10.0) == pytest.approx((0.5 + 0 + 0.2 + 7.0) / 4)
    for lost in (math.inf, math.nan):
        assert sensitivity({**losses, 3e-2: lost}, 10.0) == sensitivity(losses, 10.0)
    assert sensitivity({1e-3: 3.0}, 10.0) == 0
    assert math.isnan(sensitivity({1e-3: 10.0, 1e-2: math.inf}, 10.0))


# The verdicts


@pytest.mark.parametrize(
    ("shift", "noise", "verdict"),
    [
        (-0.010, 1, "better"),
        (0.010, 1, "worse"),
        (0.001, 1, "equivalent"),
        (0.004, 0.5, "equivalent"),  # p is far below 5 %, but so is what is not worth naming
        (0.0045, 1, "below the effect"),  # and here it may be more
        (-0.006, 10, "not distinguishable"),
        (0, 0, "identical"),
        (-0.010, 0, "too few seeds"),  # the same with every seed: no noise to judge by
    ],
)
def test_each_verdict_is_reached_by_its_own_numbers(shift, noise, verdict):
    ours = [b + shift + noise * n for b, n in zip(BASE, NOISE, strict=True)]
    assert comparison_of(ours, BASE).verdict == verdict


def test_an_equivalent_variants_whole_interval_lies_within_the_effect():
    differences = [0.00258, 0.00342, 0.0, 0.00342, 0.00258, 0.0]
    ours = [3 + d for d in differences]
    c = comparison_of(ours, [3.0] * 6, effect=0.00359)
    assert c.p_equivalent < 0.05  # that is, the 90 % interval does
    assert c.high > 0.00359
    assert c.verdict == "below the effect"


def test_a_run_that_failed_outranks_every_other_verdict():
    good, bad = outcomes([2.5, 2.51, 2.52]), outcomes([3.0, 3.01, 9.0], failed={2})
    for ours, theirs in ((good, bad), (bad, good), (bad, bad)):
        assert compare_pairs({"v": (ours, theirs)}, EFFECT)["v"].verdict == "failed"
    c = compare_pairs({"v": (good, bad)}, EFFECT)["v"]
    assert (c.seeds, c.difference, c.p) == ((0, 1), None, None)


def test_two_seeds_have_differences_and_no_verdict():
    c = comparison_of([2.9, 2.8], [3.0, 3.0])
    assert (c.verdict, c.p, c.low) == ("too few seeds", None, None)
    assert c.differences == pytest.approx((-0.1, -0.2))
    assert c.difference == pytest.approx(-0.15)
    assert comparison_of([3.0, 3.1], [3.0, 3.1]).verdict == "too few seeds"
    assert comparison_of([2.9, 2.8, 2.85], [3.0, 3.0, 3.0]).verdict == "better"


def test_only_seeds_that_both_have_are_compared():
    ours = Outcomes({5: 2.9, 0: 3.0, 2: 3.1}, missing=frozenset({1}))
    theirs = Outcomes({2: 3.2, 1: 9.0, 0: 3.0})
    c = compare_pairs({"v": (ours, theirs)}, EFFECT)["v"]
    assert c.seeds == (0, 2)
    assert c.difference == pytest.approx(-0.05)
    assert c.correlation is None
    single = compare_pairs({"v": (Outcomes({0: 2.9}), theirs)}, EFFECT)["v"]
    assert (single.verdict, single.difference) == ("too few seeds", pytest.approx(-0.1))
    assert single.p is single.low is single.sd is single.detectable is None
    apart = compare_pairs({"v": (Outcomes({7: 2.9}), theirs)}, EFFECT)["v"]
    assert (apart.verdict, apart.difference, apart.seeds) == ("too few seeds", None, ())


def test_differences_equal_but_for_rounding_measure_no_noise():
    c = comparison_of([3.01, 2.51, 2.76], [3.0, 2.5, 2.75])
    assert 0 <= c.sd < 1e-15
    assert (c.verdict, c.p, c.low) == ("too few seeds", None, None)


# Losses on a dyadic grid, on which differences and shifts are exact
GRID = st.integers(2048, 4096).map(lambda k: k / 1024)
PAIRS = st.lists(st.tuples(GRID, GRID), min_size=2, max_size=8)
SWAPPED = {"better": "worse", "worse": "better"}


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.integers(0, 64), st.randoms(use_true_random=False))
def test_sides_swapped_mirror_it_and_neither_a_common_shift_nor_the_seeds_order_change_it(
    pairs, shift, order
):
    ours, theirs = zip(*pairs, strict=True)
    c, mirrored = comparison_of(ours, theirs, 0.1), comparison_of(theirs, ours, 0.1)
    assert mirrored.verdict == SWAPPED.get(c.verdict, c.verdict)
    same = "sd p p_holm sign_flip p_equivalent detectable".split()
    for name in [*same, "correlation"]:
        assert getattr(mirrored, name) == getattr(c, name)
    if c.low is not None:
        assert (mirrored.difference, mirrored.low, mirrored.high) == (
            -c.difference,
            -c.high,
            -c.low,
        )
    shifted = comparison_of([a + shift for a in ours], [b + shift for b in theirs], 0.1)
    shuffled = list(pairs)
    order.shuffle(shuffled)
    reordered = comparison_of(*zip(*shuffled, strict=True), 0.1)
    for other in (shifted, reordered):
        for name in [*same, "difference", "low", "high", "verdict"]:
            assert getattr(other, name) == getattr(c, name)


# Shrunk variances, the gain of tuning, and looks


def test_a_prior_changes_the_interval_and_the_p_to_those_of_the_moderated_t():
    draw = np.random.default_rng(5)
    a, b = 2 + 0.01 * draw.normal(size=(2, 4))
    prior = Prior(2e-4, 4.0, "here")
    sides = pair(outcomes(a.tolist()), outcomes(b.tolist()))
    c = compare({"v": sides}, Rules(EFFECT, prior))["v"]
    x = a - b
    variance, freedom = (4 * 2e-4 + 3 * x.var(ddof=1)) / 7, 7
    t = stats.t(freedom, x.mean(), math.sqrt(variance / 4))
    assert (c.low, c.high) == pytest.approx(t.interval(0.95))
    assert c.p == pytest.approx(2 * min(t.cdf(0), t.sf(0)))
    bounds = stats.t.sf((EFFECT - abs(x.mean())) / math.sqrt(variance / 4), freedom)
    assert c.p_equivalent == pytest.approx(bounds)


def test_the_gain_of_tuning_widens_the_interval_and_has_to_be_exceeded():
    """Shifting the null to the nearest difference that tuning explains: scipy's t test there."""
    draw = np.random.default_rng(6)
    x = 0.02 + 0.005 * draw.normal(size=6)
    sides = pair(outcomes((2 + x).tolist()), outcomes([2.0] * 6), gains=(0.004, 0.007))
    c = compare({"v": sides}, Rules(EFFECT))["v"]
    plain = compare({"v": sides[:1] + (sides[1]._replace(tuning_slack=0.0),)}, Rules(EFFECT))["v"]
    interval = stats.t.interval(0.95, 5, x.mean(), stats.sem(x))
    assert c.low == pytest.approx(interval[0] - 0.004)
    assert c.high == pytest.approx(interval[1] + 0.007)
    assert c.p == pytest.approx(stats.ttest_1samp(x, 0.004).pvalue)
    near = stats.ttest_1samp(x, EFFECT - 0.007, alternative="less").pvalue
    far = stats.ttest_1samp(x, 0.004 - EFFECT, alternative="greater").pvalue
    assert c.p_equivalent == pytest.approx(max(near, far))
    assert plain.high == pytest.approx(interval[1])
    swapped = compare({"v": pair(outcomes([2.0] * 6), outcomes((2 + x).tolist()), (0.007, 0.004))},
                      Rules(EFFECT))["v"]  # fmt: skip
    assert (swapped.low, swapped.high) == pytest.approx((-c.high, -c.low))


def test_a_difference_inside_what_tuning_may_have_missed_is_no_difference():
    x = [0.0201, 0.0199, 0.02, 0.0202]
    sides = pair(outcomes([2 + d for d in x]), outcomes([2.0] * 4), gains=(0.03, 0.0))
    c = compare({"v": sides}, Rules(EFFECT))["v"]
    assert c.p == 1.0
    assert c.verdict == "not distinguishable"
    assert c.detectable > 0.03


def test_a_gain_without_a_bound_says_nothing_on_its_side_and_leaves_the_other():
    """A variant of which tuning missed an unknown part may be better than it was, and no worse."""
    x = [0.0201, 0.0199, 0.02, 0.0202]
    worse, better = ([2 + sign * d for d in x] for sign in (1, -1))
    c = compare({"v": pair(outcomes(better), outcomes([2.0] * 4), (math.inf, 0.001))},
                Rules(EFFECT))["v"]  # fmt: skip
    assert (c.verdict, c.low) == ("better", None)
    assert c.high == pytest.approx(stats.t.interval(0.95, 3, -np.mean(x), stats.sem(x))[1] + 0.001)
    said = comparison_sentence("v", "pre", c, outcomes(better), outcomes([2.0] * 4))
    assert said.startswith("v is better than pre by 0.0201 nats (95 % interval 0.0188 to no bound")
    sides = pair(outcomes(worse), outcomes([2.0] * 4), gains=(math.inf, 0.001))
    for looks in (1, 2):
        c = compare({"v": sides}, Rules(EFFECT, None, looks))["v"]
        assert (c.low, c.p, c.p_equivalent) == (None, 1.0, 1.0)
        assert c.verdict == "not distinguishable"
        said = comparison_sentence("v", "pre", c, sides[0].outcomes, sides[1].outcomes)
        assert said.endswith("; nothing bounds the tuning error of v")


def test_a_sequence_has_the_order_in_which_seeds_were_added():
    x = [0.03, 0.001, -0.02, 0.05, 0.04]
    sides = pair(outcomes([2 + d for d in x]), outcomes([2.0] * 5))
    c = compare({"v": sides}, Rules(EFFECT, None, 2, order=[3, 4, 0]))["v"]
    assert c.seeds == (3, 4, 0, 1, 2)
    assert c.p == pytest.approx(always_valid_p([x[s] for s in c.seeds], (0.0, 0.0), None))


def test_fishers_ps_are_corrected_for_all_pairs_in_which_runs_failed():
    base = outcomes([2.0, 2.01, 2.02, 2.03, 2.04])
    lost = outcomes([2.0] * 5, failed=range(5))
    alone = stats.fisher_exact([[5, 0], [0, 5]]).pvalue
    c = compare_pairs(dict.fromkeys("abc", (lost, base)), EFFECT)
    assert all(one.fisher == pytest.approx(3 * alone) for one in c.values())
    waiting = outcomes([2.0] * 4, missing=frozenset({4}))  # its last run may fail yet
    c = compare_pairs({"lost": (lost, base), "waiting": (waiting, base)}, EFFECT)
    assert c["lost"].fisher == pytest.approx(2 * alone)
    assert c["waiting"].fisher is None


def test_after_a_second_look_the_interval_is_the_confidence_sequence():
    draw = np.random.default_rng(7)
    x = (0.03 + 0.005 * draw.normal(size=6)).tolist()
    sides = pair(outcomes([2 + d for d in x]), outcomes([2.0] * 6), gains=(0.001, 0.002))
    once, twice = (compare({"v": sides}, Rules(EFFECT, None, looks))["v"] for looks in (1, 2))
    differences = [2 + d - 2.0 for d in x]
    low, high = confidence_sequence(differences, 0.05, None)
    assert (twice.low, twice.high) == pytest.approx((low - 0.001, high + 0.002))
    assert twice.high - twice.low > once.high - once.low
    assert twice.p == pytest.approx(always_valid_p(differences, (-0.002, 0.001), None))
    assert twice.p > once.p


# The smallest difference that can be seen


def found_with(sd, seeds, compared, effect):
    return detectable_difference(Spread(sd**2, seeds - 1), seeds, compared, effect)


def test_without_an_effect_the_power_is_the_noncentral_t_of_the_textbook():
    for seeds, compared_ in itertools.product((2, 3, 5, 10, 44), (1, 5)):
        quantile = stats.t.ppf(1 - 0.025 / compared_, seeds - 1)

        def power(difference, seeds=seeds, quantile=quantile):
            return stats.nct.sf(quantile, seeds - 1, difference * seeds**0.5)

        found = found_with(1.0, seeds, compared_, 0)
        assert power(found) == pytest.approx(0.9, abs=1e-5)
        assert found == pytest.approx(optimize.brentq(lambda d: power(d) - 0.9, 0, 1e3), rel=1e-5)
    # Half a standard deviation takes 44 pairs: R's power.t.test(delta=.5, power=.9, type="paired")
    assert found_with(1.0, 44, 1, 0) < 0.5 < found_with(1.0, 43, 1, 0)


def test_the_effect_is_a_floor_under_what_can_be_seen():
    assert found_with(1e-9, 5, 1, EFFECT) == pytest.approx(EFFECT, rel=1e-5)
    # Noise small against the effect: only the mean must pass it
    sd = 0.001
    expected = EFFECT + stats.norm.ppf(0.9) * sd / 10**0.5
    assert found_with(sd, 10, 1, EFFECT) == pytest.approx(expected, rel=1e-4)
    assert found_with(10.0, 5, 1, EFFECT) == pytest.approx(found_with(10.0, 5, 1, 0), rel=1e-3)


def test_more_seeds_find_less():
    found = [found_with(PUBLISHED * 2**0.5, seeds, 1, EFFECT) for seeds in (3, 5, 8, 10)]
    assert sorted(found, reverse=True) == found
    assert len(set(found)) == 4
