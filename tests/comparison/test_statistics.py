"""What is said of a few seeds: the right numbers, and no claim that they do not carry."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import BASE, NOISE, compare_pairs, comparison_of, judge_by_scipy, outcomes
from scipy import stats

from transformer_norms.comparison.outcomes import Outcomes, Share
from transformer_norms.comparison.sequence import always_valid_p, confidence_sequence
from transformer_norms.comparison.shrinkage import Spread, shrink, usual_spread
from transformer_norms.comparison.statistics import detectable_difference
from transformer_norms.comparison.verdict import Rules, Side, compare, pair, usual_variance
from transformer_norms.report.tuning_audit import sensitivity

NUMBERS = "difference sd interval bounds p detectable".split()


@pytest.mark.parametrize("count", [1, 2, 4, 9])
@pytest.mark.parametrize("slack", [(0.0, 0.0), (0.004, 0.011)])
def test_a_study_is_judged_as_scipy_judges_it(count, slack):
    draw, words = np.random.default_rng(count), set()
    for seeds, _ in itertools.product((3, 5, 10), range(12)):
        base = draw.normal(2.0, 0.01, seeds)
        asked, differences = {}, {}
        for name in "abcdefghi"[:count]:
            sd = 0.01 * 10 ** draw.uniform(-1, 0.5)
            losses = base + draw.normal(draw.choice([-0.03, 0.0, 0.03]), sd, seeds)
            differences[name] = losses - base
            asked[name] = pair(outcomes(losses.tolist()), outcomes(base.tolist()), slack)
        judged = compare(asked, Rules(0.03, usual_variance(asked)))
        for name, (*numbers, word) in judge_by_scipy(differences, 0.03, slack).items():
            c, x = judged[name], differences[name]
            found = *c.interval, *c.bounds, c.p
            assert found == pytest.approx(np.hstack(numbers), rel=1e-6, abs=1e-12)
            assert (c.difference, c.sd) == pytest.approx((x.mean(), x.std(ddof=1)))
            assert (c.verdict, c.seeds, c.slack) == (word, tuple(range(seeds)), slack)
            words.add(word)
    assert words == {"better", "worse", "equivalent", "not told apart"}


def test_sums_do_not_depend_on_the_order_of_their_seeds():
    pairs = np.random.default_rng(7).normal(3, 1, (6, 2)).tolist()
    orders = itertools.islice(itertools.permutations(pairs), 0, 720, 7)
    made = [comparison_of(*zip(*order, strict=True)) for order in orders]
    assert len({tuple(getattr(c, name) for name in NUMBERS) for c in made}) == 1


OURS, THEIRS = [2.98, 2.985, 3.01], [3.00, 3.01, 3.02]
BESIDE = {
    "failed": (outcomes([3.4, 3.3, 9.0], failed={2}), 1),
    "all failed": (outcomes([10.80, 10.81, 10.821], failed={0, 1, 2}), 1),
    "waiting": (outcomes([2.9, 2.95], missing=frozenset({2})), 1),
    "as good": (outcomes([3.01, 3.00, 3.03]), 1),
    "the same": (outcomes(THEIRS), 0),
    "two seeds": (outcomes([3.3, 3.2]), 0),
}


@pytest.mark.parametrize("others", [*itertools.combinations(BESIDE, 2), tuple(BESIDE)])
@pytest.mark.parametrize("to_come", [0, 3])
def test_the_family_has_all_that_is_tested_failed_or_is_to_come(others, to_come):
    """So what is named stays named when the others end, and a failure gives none an easier test."""
    base, alone = outcomes(THEIRS), comparison_of(OURS, THEIRS)
    pairs = {name: (BESIDE[name][0], base) for name in others}
    c = compare_pairs({"it": (outcomes(OURS), base), **pairs}, to_come=to_come)["it"]
    count = 1 + to_come + sum(BESIDE[name][1] for name in others)
    assert c.p == pytest.approx(min(1, count * alone.p))
    t = stats.t(2, c.difference, c.sd / 3**0.5)
    assert c.bounds == pytest.approx(t.interval(1 - 0.05 / count))
    assert c.interval == alone.interval
    assert c.detectable > alone.detectable or count == 1


def test_what_has_few_seeds_is_of_the_family_where_seeds_are_added():
    it, two = ((one, outcomes(THEIRS)) for one in (outcomes(OURS), BESIDE["two seeds"][0]))
    alone, c = (compare_pairs(p, looks=2)["it"] for p in ({"it": it}, {"it": it, "two": two}))
    assert c.p == min(1, 2 * alone.p)


def test_a_described_comparison_has_an_interval_and_neither_bounds_nor_p():
    base, lost = outcomes(BASE), outcomes(BASE, failed={0, 1, 2})
    far = outcomes([loss - 0.2 + noise for loss, noise in zip(BASE, NOISE, strict=True)])
    sides = {"it": pair(far, base), "also": pair(far, base), "lost": pair(lost, base)}
    alone = compare({"it": sides["it"]}, Rules(0.005))["it"]
    found = compare(sides, Rules(0.005), described=["also", "lost"])
    assert found["it"] == alone
    only = {"verdict": "described", "bounds": None, "p": None, "detectable": None}
    assert found["also"] == replace(alone, **only)
    assert (found["lost"].verdict, found["lost"].fisher) == ("failed", None)
    assert compare(sides, Rules(0.005), described=sides)["lost"].fisher is None


@pytest.mark.parametrize("looks", [1, 2])
def test_fishers_ps_count_the_pairs_in_which_runs_failed_or_may_fail(looks):
    base, lost = outcomes([3.0] * 6), outcomes([], failed=range(6))
    alone = stats.fisher_exact([[6, 0], [0, 6]]).pvalue
    ran = {"ran": (outcomes([3.1, 3.2, 3.0, 3.1, 3.2, 3.0]), base)}
    waiting = outcomes([2.0] * 2, missing=frozenset(range(2, 6)))  # its last runs may fail yet
    for count, pairs, more in (
        (1, ran, {}), (3, {"a": (lost, base), "b": (lost, base)}, {}),
        (2, {"waiting": (waiting, base)}, {}), (6, {}, {"to_come": 5}),
    ):  # fmt: skip
        found = compare_pairs({"lost": (lost, base), **pairs}, looks=looks, **more)
        assert found["lost"].fisher == pytest.approx(count * alone)
    assert compare_pairs({"w": (waiting, base)})["w"].fisher is None


def test_a_pair_with_a_failure_has_no_number():
    base, partly = outcomes(THEIRS), outcomes([10.80, 10.81, 10.821, 9.9], failed={3})
    for sides in ((BESIDE["all failed"][0], base), (partly, base), (base, partly)):
        c = compare_pairs({"lost": sides})["lost"]
        assert [getattr(c, name) for name in NUMBERS] == [None] * 6
        assert (c.verdict, c.differences) == ("failed", ())


def test_bounds_on_a_share_are_clopper_and_pearsons():
    """The tables are those of 1934. A count of 0 has a one-sided limit: (1 - high)^n = 0.05."""
    assert Share(2, 3).bounds == pytest.approx((0.0943, 0.9916), abs=1e-4)
    for total in (3, 5, 10, 20):
        low, high = Share(0, total).bounds
        assert (low, (1 - high) ** total) == (0, pytest.approx(0.05))
    assert Share(3, 3).bounds == pytest.approx((0.025 ** (1 / 3), 1))
    assert str(Share(2, 3)) == "2 of 3 (9 to 99 %)"
    assert str(Share(0, 3)) == "0 of 3 (at most 63 %)"
    assert str(Share(0, 0)) == "0 of 0"


def test_failures_are_compared_by_fishers_exact_test():
    failing, base = outcomes(BASE, failed={0, 1, 4}), outcomes(BASE)
    for sides in ((failing, base), (base, failing)):
        assert compare_pairs({"v": sides})["v"].fisher == pytest.approx(1 / 6)
    assert compare_pairs({"v": (failing, Outcomes({}))})["v"].fisher is None
    assert comparison_of(BASE, BASE).fisher is None


def test_a_run_that_failed_is_infinity_in_the_median_and_in_no_mean():
    missing, sd = frozenset({3}), pytest.approx(0.2 / 2**0.5)
    ran = Outcomes({0: 3.0, 1: 3.2}, {2: "diverged"}, missing)
    assert (ran.failure, ran.ended, ran.planned) == (Share(1, 3), 3, 4)
    for one, *numbers in (
        (ran, 3.2, pytest.approx(3.1), sd),
        (Outcomes({}, missing=missing), None, None, None),
        (Outcomes({0: 3.0}, {1: "diverged", 2: "diverged"}), math.inf, 3.0, None),
        (Outcomes({}, {0: "diverged"}), math.inf, None, None),
        (Outcomes({7: 3.0}), 3.0, 3.0, None),
    ):
        assert [one.median, one.mean, one.sd] == numbers


def test_sensitivity_is_the_mean_excess_over_the_best_rate_with_the_initial_loss_as_cap():
    losses = {1e-3: 3.5, 3e-3: 3.0, 1e-2: 3.2, 3e-2: 50.0}
    assert sensitivity(losses, initial=10.0) == pytest.approx((0.5 + 0 + 0.2 + 7.0) / 4)
    for lost in (math.inf, math.nan):
        assert sensitivity({**losses, 3e-2: lost}, 10.0) == sensitivity(losses, 10.0)
    assert sensitivity({1e-3: 3.0}, 10.0) == 0
    assert math.isnan(sensitivity({1e-3: 10.0, 1e-2: math.inf}, 10.0))


def test_a_difference_within_the_margin_is_equivalent_although_its_bounds_leave_out_zero():
    c = comparison_of([b + 0.004 + 0.5 * n for b, n in zip(BASE, NOISE, strict=True)], BASE)
    assert 0 < c.bounds[0] < c.bounds[1] < 0.005
    assert c.verdict == "equivalent"


@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("edge", [0, 1])
def test_no_word_on_the_loss_is_given_while_a_best_value_is_at_an_edge(edge, looks):
    ours = outcomes([b - 0.1 + n for b, n in zip(BASE, NOISE, strict=True)])
    sides = list(pair(ours, outcomes(BASE)))
    sides[edge] = sides[edge]._replace(at_edge=True)
    asked = {"it": sides, "also": pair(ours, outcomes(BASE))}
    for described in ([], ["it"]):
        found = compare(asked, Rules(0.005, None, looks), described)
        assert (found["it"].verdict, found["also"].verdict) == ("best rate not found", "better")
        assert (found["it"].bounds, found["it"].p, found["it"].detectable) == (None, None, None)
    failed = sides[0]._replace(outcomes=outcomes(BASE, failed={1}))
    assert compare({"it": [failed, sides[1]]}, Rules(0.005))["it"].verdict == "failed"


def test_only_seeds_that_both_have_are_compared_and_fewer_than_three_have_no_verdict():
    theirs = Outcomes({2: 3.2, 1: 9.0, 0: 3.0})
    for ours, seeds, differences in (
        (Outcomes({5: 2.9, 0: 3.0, 2: 3.1}, missing=frozenset({1})), (0, 2), (0.0, -0.1)),
        (Outcomes({0: 2.9}), (0,), (-0.1,)),
        (Outcomes({7: 2.9}), (), ()),
    ):
        c = compare_pairs({"v": (ours, theirs)})["v"]
        assert (c.verdict, c.seeds) == ("not decided yet", seeds)
        assert c.differences == pytest.approx(differences)
        assert c.difference == (pytest.approx(np.mean(differences)) if seeds else None)
        assert c.p is c.interval is c.bounds is c.sd is c.detectable is None
    assert comparison_of([3.0, 3.1], [3.0, 3.1]).verdict == "not decided yet"
    assert comparison_of([2.9, 2.8, 2.85], [3.0, 3.0, 3.0]).verdict == "better"


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
    c, mirrored = (comparison_of(*sides, margin=0.1) for sides in ((ours, theirs), (theirs, ours)))
    assert mirrored.verdict == SWAPPED.get(c.verdict, c.verdict)
    assert (mirrored.sd, mirrored.p, mirrored.detectable) == (c.sd, c.p, c.detectable)
    for name in ("interval", "bounds") if c.interval else ():
        assert getattr(mirrored, name) == tuple(-end for end in getattr(c, name)[::-1])
    order.shuffle(pairs)
    shifted = comparison_of(*(np.array(pairs).T + shift).tolist(), margin=0.1)
    for name in [*NUMBERS, "verdict"]:
        assert getattr(shifted, name) == getattr(c, name)


def test_what_a_tuning_error_explains_is_neither_found_nor_detectable():
    x = [0.0201, 0.0199, 0.02, 0.0202, 0.0203, 0.0197]
    sides = pair(outcomes([2 + d for d in x]), outcomes([2.0] * 6), (0.05, 0.0))
    c = compare({"v": sides}, Rules(0.005))["v"]
    assert (c.p, c.verdict, c.detectable > 0.05) == (1.0, "not told apart", True)


def test_a_tuning_error_without_a_bound_says_nothing_on_its_side_and_leaves_the_other():
    """A variant of which tuning missed an unknown part may be better than it was, and no worse."""
    x, theirs = [0.0201, 0.0199, 0.02, 0.0202], outcomes([2.0] * 4)
    worse, better = (outcomes([2 + sign * d for d in x]) for sign in (1, -1))
    c = compare({"v": pair(better, theirs, (math.inf, 0.001))}, Rules(0.005))["v"]
    assert (c.verdict, c.bounds[0], c.detectable) == ("better", -math.inf, None)
    high = stats.t.interval(0.95, 3, -np.mean(x), stats.sem(x))[1]
    assert c.bounds[1] == pytest.approx(high + 0.001)
    for looks in (1, 2):
        c = compare({"v": pair(worse, theirs, (math.inf, 0.001))}, Rules(0.005, None, looks))["v"]
        assert (c.verdict, c.bounds[0], c.p) == ("not told apart", -math.inf, 1.0)


def test_after_a_second_look_the_interval_is_the_confidence_sequence_in_the_order_of_seeds():
    x = (0.03 + 0.005 * np.random.default_rng(7).normal(size=6)).tolist()
    usual, order = Spread(1e-5, 3), [3, 4, 0]
    sides = pair(outcomes([2 + d for d in x]), outcomes([2.0] * 6), (0.001, 0.002))
    once = compare({"v": sides}, Rules(0.005, usual))["v"]
    twice = compare({"v": sides, "w": sides}, Rules(0.005, usual, 2, order))["v"]
    assert twice.seeds == (3, 4, 0, 1, 2, 5)
    differences = [2 + x[seed] - 2.0 for seed in twice.seeds]
    low, high = confidence_sequence(differences, 0.025, usual)
    assert twice.interval == pytest.approx(confidence_sequence(differences, 0.05, usual))
    assert twice.bounds == pytest.approx((low - 0.001, high + 0.002))
    assert twice.p == pytest.approx(2 * always_valid_p(differences, (-0.002, 0.001), usual))
    assert twice.p > once.p
    few = compare({"v": pair(outcomes([2.0, 2.1, 2.3]), outcomes([2.0] * 3))}, Rules(looks=2))["v"]
    assert (few.interval, few.detectable) == ((-math.inf, math.inf), None)


def found_with(seeds, compared):
    quantile = stats.t.isf(0.025 / compared, seeds - 1)
    return detectable_difference(quantile, Spread(1.0, seeds - 1), seeds)


def test_the_power_is_the_noncentral_t_of_the_textbook():
    for seeds, compared in itertools.product((2, 3, 5, 10, 44), (1, 5)):
        quantile, found = stats.t.ppf(1 - 0.025 / compared, seeds - 1), found_with(seeds, compared)
        power = stats.nct.sf(quantile, seeds - 1, found * seeds**0.5)
        assert power == pytest.approx(0.9, abs=1e-5)
    # Half a standard deviation takes 44 pairs: R's power.t.test(delta=.5, power=.9, type="paired")
    assert found_with(44, 1) < 0.5 < found_with(43, 1)


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
