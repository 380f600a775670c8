"""A verdict in words: what its numbers carry, and no more."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import BASE, NOISE, PAIR, compare_pairs, comparison_of, outcomes, sentence_of

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sentences import comparison_sentence
from transformer_norms.comparison.verdict import Comparison, Rules, compare, pair


def test_the_words_are_those_of_their_numbers():
    base = outcomes([3.00, 3.02, 2.99, 3.01, 3.03])
    shifts = (-0.010, -0.014, -0.011, -0.016, -0.009)
    # mean -0.0120, sd sqrt(34e-6/4) = 0.002915, se 0.001304, t(4) 2.776: half-width 0.00362
    ours = outcomes([b + s for b, s in zip(base.losses.values(), shifts, strict=True)])
    numbers = "by 0.0120 nats (95 % interval 0.0084 to 0.0156, p below 0.001, 5 seeds)"
    assert sentence_of(ours, base) == f"sandwich is better than pre {numbers}"
    wide = outcomes([3.02, 3.00, 3.02])
    assert sentence_of(wide, outcomes([3.00, 3.02, 2.99])) == (
        "sandwich is not told apart from pre: difference 0.010 nats (95 % interval -0.056 to "
        "0.076, p 0.58, 3 seeds); a true difference of 0.1 is found nine times in ten"
    )
    near = outcomes([b + 0.001 + n for b, n in zip(BASE, NOISE, strict=True)])
    assert sentence_of(near, outcomes(BASE)) == (
        "sandwich is equivalent to pre within 0.005 nats "
        "(difference 0.00100, 95 % interval 0.00002 to 0.00198, p 0.047, 5 seeds)"
    )


@pytest.mark.parametrize(
    ("slack", "sign", "words"),
    [
        ((0.03, 0.012), 1, "; tuning error up to 0.03 nats of sandwich and 0.012 of pre"),
        ((math.inf, 0.001), 1, "4 seeds); nothing bounds the tuning error of sandwich"),
        ((0.0002, 0.0), 1, "sandwich is worse than pre by 0.0201 nats (95 % interval 0.0"),
        ((math.inf, 0.001), -1, "sandwich is better than pre by 0.0199 nats (95 % interval 0.0"),
    ],
)
def test_the_tuning_error_is_said_where_it_is_most_of_the_bounds(slack, sign, words):
    base = outcomes([3.00, 3.02, 2.99, 3.01])
    ours = [3.02, 3.041, 3.009, 3.0305] if sign > 0 else [2.98, 3.001, 2.969, 2.9905]
    c = compare({"it": pair(outcomes(ours), base, slack)}, Rules())["it"]
    said = comparison_sentence(PAIR, c, {})
    assert said.endswith(words) or said.startswith(words)


def test_a_sequence_of_few_seeds_has_no_interval_yet():
    said = sentence_of(outcomes([3.03, 3.04, 3.02]), outcomes([3.00, 3.02, 2.99]), looks=2)
    assert said.startswith(
        "sandwich is not told apart from pre: difference 0.0267 nats (no interval yet, p 0."
    )
    assert said.endswith(", 3 seeds); no difference is found yet, however large")


@pytest.mark.parametrize(
    ("verdict", "of_a_pair", "of_a_sum"),
    [
        ("described", "v - w is -0.0120 nats (95 % interval -0.0200 to -0.0040, not tested)",
         "v - w is -0.0120 nats (95 % interval -0.0200 to -0.0040, not tested)"),
        ("best rate not found",
         "v is not compared with w: the best value that v (lr=1) tried is the first or the last; "
         "more values are needed beyond it",
         "v - w has no value: the best value that v (lr=1) tried is the first or the last; more "
         "values are needed beyond it"),
        ("better", "v is better than w by 0.0120 nats (95 % interval 0.0040 to 0.0200, p 0.020, 3 "
         "seeds)",
         "v - w is below zero: -0.0120 nats (95 % interval -0.0200 to -0.0040, p 0.020, 3 seeds)"),
        ("worse", "v is worse than w by -0.0120 nats (95 % interval -0.0200 to -0.0040, p 0.020, 3 "
         "seeds)",
         "v - w is above zero: -0.0120 nats (95 % interval -0.0200 to -0.0040, p 0.020, 3 seeds)"),
        ("not decided yet",
         "v against w is not decided yet: 3 of 4 pairs ended (-0.0120 so far, 95 % interval "
         "-0.0200 to -0.0040 at any look)",
         "v - w is not decided yet: 3 of 4 seeds ended (-0.0120 so far, 95 % interval -0.0200 "
         "to -0.0040 at any look)"),
        ("equivalent", "v is equivalent to w within 0.02 nats (difference -0.0120, 95 % interval "
         "-0.0200 to -0.0040, p 0.020, 3 seeds)",
         "v - w is zero within 0.02 nats (-0.0120, 95 % interval -0.0200 to -0.0040, p 0.020, 3 "
         "seeds)"),
    ],
)  # fmt: skip
def test_each_verdict_has_its_line(verdict, of_a_pair, of_a_sum):
    c, edges = comparison(verdict=verdict, planned=4), ["v (lr=1)"]
    assert comparison_sentence(Contrast({"v": 1, "w": -1}, "v - w"), c, {}, edges) == of_a_pair
    assert comparison_sentence(Contrast({}, "v - w"), c, {}, edges) == of_a_sum
    slope = comparison_sentence(Contrast({}, "v - w", "model.depth"), c, {}, edges)
    assert slope == of_a_sum.replace("nats", "nats per doubling of model.depth")


def comparison(**numbers):
    known = {"difference": -0.012, "interval": (-0.02, -0.004), "p": 0.02, "verdict": "better"}
    return Comparison((0, 1, 2), **{**known, **numbers})


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"p": 0.0004}, "p below 0.001, 3"),
        ({"p": 0.0496}, "p just below 0.05, 3"),
        ({"p": 0.0123}, "p 0.012, 3"),
        ({"interval": (-0.01332, -0.01068)}, "by 0.0120 nats (95 % interval 0.0107 to 0.0133,"),
        ({"interval": (-0.0244, -0.0002)}, "by 0.012 nats (95 % interval 0.000 to 0.024,"),
        ({"difference": -1.2, "interval": (-1.9, -0.5)}, "by 1.20 nats (95 % interval 0.50 to 1.9"),
        ({"difference": 12.3, "interval": (8.1, 16.5), "verdict": "worse"}, "by 12.3 nats (95 %"),
        (
            {"difference": -1e-4, "interval": (-0.0123, 0.0121), "p": 0.9, "detectable": 0.0203,
             "verdict": "not told apart"},
            "from pre: difference 0.000 nats (95 % interval -0.012 to 0.012, p 0.90, 3 seeds); "
            "a true difference of 0.02 is found",
        ),
    ],
)  # fmt: skip
def test_numbers_have_the_digits_that_their_interval_carries_and_zero_has_no_sign(numbers, words):
    assert words in comparison_sentence(PAIR, comparison(**numbers), {})


def test_runs_that_failed_or_are_missing_are_said():
    base = outcomes([3.0, 3.01, 3.02])
    reasons = {1: "diverged", 2: "no better than the bigram (2.482)"}
    lost = Outcomes({0: 3.0}, reasons, missing=frozenset({3}))
    failed = "2 of 3 runs (9 to 99 %; 1 diverged, 1 no better than the bigram)"
    none, missing = "in 0 of 3 (at most 63 %); Fisher's p 0.40", "1 of 4 runs missing"
    for sides, one, two in (((lost, base), "sandwich", "pre"), ((base, lost), "pre", "sandwich")):
        said = sentence_of(*sides)
        assert said == f"{one} failed to train in {failed}, {two} {none}; {one}: {missing}"
    c = compare_pairs({"v": (lost, base)})["v"]
    assert comparison_sentence(Contrast({}, "a - b - c"), c, {"a": lost, "b": base}) == (
        "a - b - c has no value: runs failed to train, a in 2 of 3 (9 to 99 %; 1 diverged, 1 no "
        f"better than the bigram); a: {missing}"
    )
    one = Outcomes({}, {0: "diverged"})
    assert sentence_of(one, lost).startswith(
        "sandwich failed to train in 1 of 1 run (2 to 100 %; 1 diverged), pre in 2 of 3 "
        "(9 to 99 %; 1 diverged, 1 no better than the bigram); Fisher's p 1.00"
    )
    alone = Outcomes({0: 3.0}, missing=frozenset({1, 2}))
    assert sentence_of(base, alone) == (
        "sandwich against pre is not decided yet: 1 of 3 pairs ended (0 nats so far); "
        "pre: 2 of 3 runs missing"
    )
    waiting = "sandwich against pre is not decided yet: 0 of 1 pair ended; pre: 1 of 1 run missing"
    assert sentence_of(base, Outcomes({}, missing=frozenset({0}))) == waiting


def test_an_early_look_at_a_fixed_plan_names_nothing_but_a_failure():
    """Five pairs are planned. Three that differ by any amount name nothing; all five do."""
    base = outcomes(BASE)
    far = [loss - 1 + noise for loss, noise in zip(BASE, NOISE, strict=True)]
    early = outcomes(far[:3], missing=frozenset({3, 4}))
    small = outcomes([loss - 0.01 for loss in far[:3]])  # three planned, three ended
    compared = compare_pairs({"early": (early, base), "small": (small, base)})
    waiting, alone = compared["early"], comparison_of([*small.losses.values()], BASE)
    assert waiting.verdict == "not decided yet"
    assert waiting.p is waiting.bounds is waiting.fisher is None
    sequence = compare_pairs({"early": (early, base)}, looks=2)["early"]
    assert waiting.interval == sequence.interval
    assert sequence.p is not None  # where the plan is to look at any time, there is a test
    assert compared["small"].p == pytest.approx(2 * alone.p)
    for c in (compared["small"], comparison_of(far[:3], BASE), comparison_of(far, BASE)):
        assert c.verdict == "better"
    assert "not decided yet: 3 of 5 pairs ended (-1 nats so far" in sentence_of(early, base)
    lost = outcomes(far[:3], failed=(1,), missing=frozenset({3, 4}))
    assert compare_pairs({"lost": (lost, base)})["lost"].fisher is None
    assert sentence_of(lost, base).startswith("sandwich failed to train in 1 of 3 runs")


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        # Equal but for rounding.
        ([3.01, 2.51, 1.11], [3.0, 2.5, 1.1], "the difference is the same with each of 3 seeds, "
         "which therefore count as one (0.01 nats so far)"),
        ([3.5, 3.25], [3.0, 2.65], "it has 2 pairs, and 3 are the fewest (0.55 nats so far)"),
    ],
)  # fmt: skip
def test_too_few_seeds_and_one_difference_repeated_are_said(ours, theirs, why):
    said = sentence_of(outcomes(ours), outcomes(theirs))
    assert said == f"sandwich against pre is not decided yet: {why}"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 12), st.floats(1, 12)), max_size=8), st.floats(0, 0.1))
def test_any_losses_make_one_sentence_that_never_says_significant(pairs, margin):
    ours, theirs = (outcomes([p[side] for p in pairs]) for side in (0, 1))
    sentence = sentence_of(ours, theirs, margin=margin)
    assert sentence.startswith("sandwich ")
    for word in ("significant", "None", "nan", "inf", "-0.0 ", "1 seeds", "\n"):
        assert word not in sentence
