"""Whether the tests would notice: of each bug that is planted, one of them falls."""

import subprocess
import sys
from pathlib import Path

import planted_bugs
import pytest


def test_every_planted_bug_has_its_place():
    """Its text stands there once, in code that has been changed since, too."""
    assert list(planted_bugs.bugs())


@pytest.mark.nightly
def test_every_planted_bug_is_killed():
    script = Path(__file__).with_name("planted_bugs.py")
    command = [sys.executable, str(script), "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
