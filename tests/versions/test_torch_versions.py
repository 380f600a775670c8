"""An older torch of the promised range passes the tests of models, training, resuming and ranks.

    make nightly AREA=versions                    torch 2.11.0
    TORCH_VERSION=2.8.0 make nightly AREA=versions

The version is installed once, into outputs/torch-VERSION; all other packages are those of the lock.
The wheel of the usual package index has several gigabytes, and needs no GPU.
"""

import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
VERSION = os.environ.get("TORCH_VERSION", "2.11.0")
TESTS = {
    "quick": "tests/model tests/training tests/scale",
    "resuming": "--nightly sweep tests/run/test_run_folder.py",
}


def run_there(python, *arguments):
    # The worker that runs this test is not one of the tests that it starts.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment = {**kept, "PYTHONPATH": str(ROOT)}
    command = [python, "-B", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def python():
    """An interpreter that imports this torch, and all else from where this one does."""
    home = ROOT / "outputs" / f"torch-{VERSION}"
    found, complete = home / "bin" / "python", home / "installed"
    home.parent.mkdir(exist_ok=True)
    with FileLock(home.with_suffix(f"{home.suffix}.lock")):  # each test has a process that asks
        if complete.exists():
            return found
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        (packages,) = home.glob("lib/*/site-packages")
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in site.getsitepackages()]
        (packages / "locked.pth").write_text("".join(lines))
        pip = [sys.executable, "-m", "pip", "--python", found, "install", "--quiet"]
        subprocess.run([*pip, "--no-warn-conflicts", f"torch=={VERSION}"], check=True)
        complete.touch()
    return found


def test_the_range_that_is_promised_has_the_version_and_that_of_the_lock():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [Requirement(line) for line in project["dependencies"]]
    (versions,) = (one.specifier for one in promised if one.name == "torch")
    (pinned,) = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert VERSION in versions
    assert pinned in versions


@pytest.mark.nightly
@pytest.mark.parametrize("tests", TESTS.values(), ids=TESTS)
def test_an_older_torch_passes_the_tests(tests, python):
    seen = run_there(python, "-c", "import torch; print(torch.__version__)").stdout
    assert seen.startswith(VERSION), seen
    done = run_there(python, "-m", "pytest", "--assert=plain", "-n", "2", *tests.split())
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE)
