"""A verdict in words: what its numbers carry, and no more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import (
    BASE,
    EFFECT,
    NOISE,
    compare_pairs,
    comparison_of,
    outcomes,
    sentence_of,
)  # fmt: skip

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sentences import comparison_sentence
from transformer_norms.comparison.verdict import Comparison, Rules, compare, pair


def test_the_words_are_those_of_their_numbers():
    base = outcomes([3.00, 3.02, 2.99, 3.01, 3.03])
    shifts = (-0.010, -0.014, -0.011, -0.016, -0.009)
    # mean -0.0120, sd sqrt(34e-6/4) = 0.002915, se 0.001304, t(4) 2.776: half-width 0.00362
    ours = outcomes([b + s for b, s in zip(base.losses.values(), shifts, strict=True)])
    numbers = "by 0.0120 nats (95 % interval 0.0084 to 0.0156, p below 0.001 after Holm, 5 seeds)"
    assert sentence_of(ours, base) == f"sandwich is better than pre {numbers}"
    assert sentence_of(base, ours) == f"sandwich is worse than pre {numbers}"
    wide = outcomes([3.02, 3.00, 3.02])
    assert sentence_of(wide, outcomes([3.00, 3.02, 2.99])) == (
        "sandwich is not distinguishable from pre with 3 seeds "
        "(90 % power to detect a true difference of 0.1): difference 0.010 nats, "
        "95 % interval -0.056 to 0.076, p 0.58 after Holm"
    )


def test_the_tuning_error_is_said_where_it_is_most_of_the_interval():
    base = outcomes([3.00, 3.02, 2.99, 3.01])
    ours = outcomes([loss + 0.02 + n for loss, n in zip(base.losses.values(), NOISE, strict=False)])

    def said(*gains):
        c = compare({"it": pair(ours, base, gains)}, Rules())["it"]
        return comparison_sentence("sandwich", "pre", c, ours, base)

    assert said(0.03, 0.012).endswith("; tuning error up to 0.03 nats of sandwich and 0.012 of pre")
    assert said(0.0002, 0.0).startswith("sandwich is worse than pre by 0.020")


def test_a_sequence_of_few_seeds_has_no_interval_yet():
    base, ours = outcomes([3.00, 3.02, 2.99]), outcomes([3.03, 3.04, 3.02])
    c = compare({"it": pair(ours, base)}, Rules(looks=2))["it"]
    assert (c.low, c.high, c.detectable) == (None, None, None)
    assert comparison_sentence("sandwich", "pre", c, ours, base) == (
        "sandwich is not distinguishable from pre with 3 seeds: difference 0.0267 nats, "
        f"no interval yet, p {c.p_holm:.2f} after Holm"
    )


def test_equals_near_equals_and_what_is_too_small_to_name_have_their_words():
    base = outcomes(BASE)
    near = outcomes([b + 0.001 + n for b, n in zip(BASE, NOISE, strict=True)])
    assert sentence_of(near, base) == (
        "sandwich is equivalent to pre within 0.005 nats "
        "(difference 0.00100, 95 % interval 0.00002 to 0.00198, p below 0.001 after Holm, 5 seeds)"
    )
    small = outcomes([b - 0.0045 + n for b, n in zip(BASE, NOISE, strict=True)])
    assert sentence_of(small, base) == (
        "sandwich differs from pre by -0.00450 nats (95 % interval -0.00548 to -0.00352, "
        "p below 0.001 after Holm, 5 seeds), less than the 0.005 worth naming"
    )
    assert sentence_of(base, base) == "sandwich has exactly the losses of pre with 5 seeds"


def comparison(**numbers):
    known = {"difference": -0.012, "low": -0.02, "high": -0.004, "p_holm": 0.02}
    return Comparison((0, 1, 2), **{**known, "verdict": "better", **numbers})


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"p_holm": 0.0004}, "p below 0.001 after"),
        ({"p_holm": 0.0496}, "p just below 0.05 after"),
        ({"p_holm": 0.0123}, "p 0.012 after"),
        ({"low": -0.01332, "high": -0.01068}, "by 0.0120 nats (95 % interval 0.0107 to 0.0133,"),
        ({"low": -0.0244, "high": -0.0002}, "by 0.012 nats (95 % interval 0.000 to 0.024,"),
        (
            {"difference": -1.2, "low": -1.9, "high": -0.5},
            "by 1.20 nats (95 % interval 0.50 to 1.90",
        ),
        ({"difference": 12.3, "low": 8.1, "high": 16.5, "verdict": "worse"}, "by 12.3 nats (95 %"),
    ],
)
def test_numbers_have_the_digits_that_their_interval_carries(numbers, words):
    some = outcomes([3.0, 3.1, 3.2])
    assert words in comparison_sentence("sandwich", "pre", comparison(**numbers), some, some)


def test_zero_has_no_sign():
    numbers = {"difference": -0.0001, "low": -0.0123, "high": 0.0121, "p_holm": 0.9}
    c = comparison(**numbers, detectable=0.0203, verdict="not distinguishable")
    assert comparison_sentence("sandwich", "pre", c, outcomes([3.0]), outcomes([3.0])) == (
        "sandwich is not distinguishable from pre with 3 seeds "
        "(90 % power to detect a true difference of 0.02): difference 0.000 nats, "
        "95 % interval -0.012 to 0.012, p 0.90 after Holm"
    )


def test_the_sign_flip_stands_beside_students_p_where_it_is_known():
    base = [3.0] * 6
    ours = [2.98, 2.97, 2.985, 2.975, 2.98, 2.99]
    assert "p below 0.001 after Holm, sign-flip p 0.031, 6 seeds" in sentence_of(
        outcomes(ours), outcomes(base)
    )


def test_runs_that_failed_or_are_missing_are_said():
    base = outcomes([3.0, 3.01, 3.02])
    reasons = {1: "diverged", 2: "no better than the bigram (2.482)"}
    lost = Outcomes({0: 3.0}, reasons, missing=frozenset({3}))
    failed = "2 of 3 runs (9 to 99 %; 1 diverged, 1 no better than the bigram)"
    none, missing = "in 0 of 3 (at most 63 %); Fisher's p 0.40 after Holm", "1 of 4 runs is missing"
    assert sentence_of(lost, base) == (
        f"sandwich failed to train in {failed}, pre {none}; sandwich: {missing}"
    )
    assert sentence_of(base, lost) == (
        f"pre failed to train in {failed}, sandwich {none}; pre: {missing}"
    )
    one = Outcomes({}, {0: "diverged"})
    assert sentence_of(one, lost).startswith(
        "sandwich failed to train in 1 of 1 run (2 to 100 %; 1 diverged), pre in 2 of 3 "
        "(9 to 99 %; 1 diverged, 1 no better than the bigram); Fisher's p 1.00 after Holm"
    )
    alone = Outcomes({0: 3.0}, missing=frozenset({1, 2}))
    assert sentence_of(base, alone) == (
        "sandwich against pre is not decided yet: 1 of 3 pairs has ended (0 nats so far); "
        "pre: 2 of 3 runs are missing"
    )
    none = Outcomes({}, missing=frozenset({0}))
    assert sentence_of(base, none) == (
        "sandwich cannot be compared with pre: no pair has ended yet; pre: 1 of 1 run is missing"
    )


def test_an_early_look_at_a_fixed_plan_names_nothing_but_a_failure():
    """Five pairs are planned. Three that differ by any amount name nothing; all five do."""
    base = outcomes(BASE)
    far = [loss - 1 + noise for loss, noise in zip(BASE, NOISE, strict=True)]
    early = outcomes(far[:3], missing=frozenset({3, 4}))
    small = outcomes([loss - 0.01 for loss in far[:3]])  # three planned, three ended
    compared = compare_pairs({"early": (early, base), "small": (small, base)}, EFFECT)
    waiting = compared["early"]
    assert (waiting.verdict, waiting.p, waiting.p_holm, waiting.fisher) == (
        "not decided yet", None, None, None,
    )  # fmt: skip
    sequence = compare({"early": pair(early, base)}, Rules(EFFECT, None, 2))["early"]
    assert (waiting.low, waiting.high) == (sequence.low, sequence.high)
    assert sequence.p is not None  # where the plan is to look at any time, there is a test
    alone = comparison_of(far[:3], BASE)
    assert compared["small"].verdict == "better"
    assert compared["small"].p_holm == pytest.approx(2 * compared["small"].p)  # the early one is 1
    assert alone.verdict == comparison_of(far, BASE).verdict == "better"
    assert "not decided yet: 3 of 5 pairs have ended (-1 nats so far" in sentence_of(early, base)
    lost = outcomes(far[:3], failed=(1,), missing=frozenset({3, 4}))
    assert compare_pairs({"lost": (lost, base)}, EFFECT)["lost"].fisher is None
    assert sentence_of(lost, base).startswith("sandwich failed to train in 1 of 3 runs")


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ([3.5, 3.25, 3.75], [3.0, 2.75, 3.25], ": the difference is the same 0.5 nats with each "
         "of 3 seeds, which therefore count as one"),
        ([3.5, 3.25], [3.0, 2.65], " with 2 seeds, 3 are the fewest (mean difference 0.55 nats, "
         "by seed 0.5 and 0.6)"),
    ],
)  # fmt: skip
def test_too_few_seeds_and_one_difference_repeated_are_said(ours, theirs, why):
    said = sentence_of(outcomes(ours), outcomes(theirs))
    assert said == f"sandwich cannot be compared with pre{why}"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 12), st.floats(1, 12)), max_size=8), st.floats(0, 0.1))
def test_any_losses_make_one_sentence_that_never_says_significant(pairs, effect):
    ours, theirs = (outcomes([p[side] for p in pairs]) for side in (0, 1))
    sentence = sentence_of(ours, theirs, effect)
    assert sentence.startswith("sandwich ")
    for word in ("significant", "None", "nan", "inf", "-0.0 ", "1 seeds", "\n"):
        assert word not in sentence
