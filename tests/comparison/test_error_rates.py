"""False verdicts of whole simulated studies, from the choice of rates on: at most 5 %."""

import pytest
import simulations
from scipy import stats
from simulations import (
    FIRST,
    LOOKS,
    MOST,
    SEEDS,
    TODAY,
    TRUTHS,
    UNTUNED,
    UNTUNED_TRUTHS,
    Study,
    Truth,
    judge,
)

STUDIES = 800


def most(share, studies=STUDIES):
    """The count that `share` of so many studies exceeds once in a hundred times."""
    return stats.binom.ppf(0.99, studies, share)


def test_a_simulated_study_is_the_same_every_time_and_knows_its_truth():
    first, again = (judge(Study(Truth(gain=0.3), TODAY, 7), 3) for _ in range(2))
    assert first == again
    assert first["1"].verdict == "better"
    assert first["1"].difference == pytest.approx(-0.3, abs=0.05)
    assert all(c.gains[0] > 0 for c in first.values())


def test_without_looks_or_failures_nothing_is_left_out():
    study = Study(Truth(failing=1.0), TODAY, 3)
    assert judge(study, 3)["7"].verdict == "failed"


@pytest.mark.nightly
@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
def test_at_most_5_percent_of_studies_of_equal_variants_name_a_difference(truth):
    for seeds in SEEDS:
        assert simulations.false_studies(truth, TODAY, seeds, STUDIES).count <= most(0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("truth", UNTUNED_TRUTHS.values(), ids=UNTUNED_TRUTHS)
def test_at_most_5_percent_name_a_difference_where_nothing_is_tuned(truth):
    """No tuning error hides what the shrunk variances name. The worst case lies near the 5 %."""
    for seeds in SEEDS:
        share = simulations.false_studies(truth, UNTUNED, seeds, 2 * STUDIES)
        assert share.count <= most(0.05, 2 * STUDIES)


@pytest.mark.nightly
def test_at_most_5_percent_name_a_difference_at_any_of_their_looks():
    for truth in TRUTHS.values():
        share = simulations.false_studies(truth, TODAY, MOST, 100, LOOKS)
        assert share.count <= most(0.05, 100)


@pytest.mark.nightly
def test_the_first_way_names_false_differences_in_many_studies():
    """The check can fail: rates a factor of three apart, one tuning seed, Student's t test."""
    shares = [simulations.false_studies(Truth(), FIRST, seeds, STUDIES) for seeds in SEEDS]
    assert shares[1].low > 0.3
    assert shares[2].low > shares[1].high


@pytest.mark.nightly
def test_differences_are_found_as_often_as_the_table_says():
    """0.05 nats with 5 seeds nine times in ten; 0.03 with 3 seeds more often than at first."""
    found = simulations.found_studies(Truth(gain=0.05), TODAY, 5, 100)
    assert found.count >= 80
    before, today = (simulations.found_studies(Truth(gain=0.03), p, 3, 400) for p in (FIRST, TODAY))
    assert today.low > before.high
