"""Whether the tests would notice: of each bug that is planted, one of them falls."""

import planted_bugs
import pytest


@pytest.mark.parametrize("name", planted_bugs.LISTS)
def test_every_planted_bug_has_its_place(name):
    """Its text stands there once, in code that has been changed since, too."""
    for _, wrong, _, _, hints in planted_bugs.bugs(name):
        for hint in hints:
            file, colons, test = planted_bugs.test_file(hint).partition("::")
            wanted = f"def {test.partition('[')[0]}(" if colons else "def test_"
            assert wanted in (planted_bugs.ROOT / file).read_text(), f"{wrong}: {hint}"


@pytest.mark.nightly
@pytest.mark.goal("A6")
def test_every_planted_bug_of_the_architecture_is_killed(measured):
    measured(planted_bugs.killed_of("architecture"))
