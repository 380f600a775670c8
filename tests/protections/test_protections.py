"""Whether the tests would notice that a protection is gone: an area of its own, for its length."""

import planted_bugs
import pytest


@pytest.mark.nightly
def test_every_protection_that_is_taken_away_is_missed():
    planted_bugs.killed_of("trust")
