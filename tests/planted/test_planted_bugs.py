"""Whether the tests would notice: of each bug that is planted, one of them falls."""

import pytest
from planted_bugs import ROOT, bugs, file_of, first_failure, killer

# The quickest first.
OTHERS = "mlp optimizer initialization fingerprints norms parity theory block_equations position "
OTHERS += "overfit presets hf trainer config_compose catalogue connections"


@pytest.mark.parametrize("name", ["architecture", "trust"])
def test_every_planted_bug_has_its_place(name):
    """Its text stands there once, in code that has been changed since, too."""
    for bug in bugs(name):
        assert bug.whole
        for hint in bug.hints:
            file, colons, test = file_of(hint).partition("::")
            wanted = f"def {test.partition('[')[0]}(" if colons else "def test_"
            assert wanted in (ROOT / file).read_text(), f"{bug.wrong}: {hint}"


@pytest.mark.nightly
@pytest.mark.goal("A6")
@pytest.mark.parametrize("bug", bugs("architecture"), ids=lambda bug: bug.wrong)
def test_a_planted_bug_of_the_architecture_is_killed(bug):
    assert killer(bug, OTHERS.split())


@pytest.mark.nightly
def test_without_a_bug_the_tests_that_would_kill_one_pass():
    hints = {hint for bug in bugs("architecture") for hint in bug.hints}
    assert first_failure(sorted({*OTHERS.split(), *hints}), longest=None) is None
