"""Whether the tests would notice: of each bug that is planted, one of them falls."""

import re
import subprocess
import sys
from pathlib import Path

import planted_bugs
import pytest

SCRIPT = Path(planted_bugs.__file__)


@pytest.mark.parametrize("name", planted_bugs.LISTS)
def test_every_planted_bug_has_its_place(name):
    """Its text stands there once, in code that has been changed since, too."""
    for _, wrong, _, _, hints in planted_bugs.bugs(name):
        for hint in hints:
            file, colons, test = planted_bugs.test_file(hint).partition("::")
            wanted = f"def {test.partition('[')[0]}(" if colons else "def test_"
            assert wanted in (planted_bugs.ROOT / file).read_text(), f"{wrong}: {hint}"


def killed(name):
    command = [sys.executable, str(SCRIPT), "--list", name, "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.search(r"\d+ of \d+ killed", done.stdout)[0]


@pytest.mark.nightly
@pytest.mark.goal("A6")
def test_every_planted_bug_of_the_architecture_is_killed(measured):
    measured(killed("architecture"))


@pytest.mark.nightly
def test_every_protection_that_is_taken_away_is_missed():
    killed("trust")
