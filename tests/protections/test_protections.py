"""Whether the tests would notice that a protection is gone: an area of its own, for its length."""

import pytest
from planted_bugs import bugs, first_failure, killer


@pytest.mark.nightly
@pytest.mark.parametrize("bug", bugs("trust"), ids=lambda bug: bug.wrong)
def test_a_protection_that_is_taken_away_is_missed(bug):
    assert killer(bug)


@pytest.mark.nightly
def test_with_every_protection_the_tests_that_would_miss_one_pass():
    hints = {hint for bug in bugs("trust") for hint in bug.hints}
    assert first_failure(sorted(hints), longest=None) is None
