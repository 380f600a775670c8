"""Every goal has its row in tests/TRUST.md, and a run of its tests fills it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trust


def test_every_goal_has_a_test_that_carries_its_mark():
    sources = (file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py"))
    calls = re.findall(r"mark\.goal\(([^)]*)\)", "".join(sources))
    assert set(re.findall(r'"(\w+)"', "".join(calls))) == set(trust.rows())


def test_every_test_that_a_row_names_exists():
    named = [re.findall(r"`(\w+\.py)::(\w+)`", cells[2]) for cells in trust.rows().values()]
    files = {file.name: file.read_text() for file in Path(trust.__file__).parent.rglob("test_*.py")}
    gone = [
        f"{file}::{test}"
        for row in named
        for file, test in row
        if not re.search(rf"^def {test}\(", files.get(f"test_{file}", ""), re.M)
    ]
    assert not gone


TABLE = """# Trust: 0 of 0 goals are met

| | goal | tests | measured | day |
|---|---|---|---|---|
| R1 | kills | `inner.py::test_kills` | old | 2026-01-01 |
| R4 | a GPU |  |  |  |
| R7 | calm |  |  |  |
| C2 | a share |  |  |  |
| A1 | no leak | `elsewhere.py::test_a` | old | 2026-01-01 |
"""
INNER = """
import pytest

@pytest.mark.goal("R1")
@pytest.mark.parametrize("kills", [1, 2, pytest.param(9, marks=pytest.mark.nightly)])
def test_kills(kills, measured):
    measured(f"{kills} kills")

@pytest.mark.goal("A1", "R7")
def test_leaks():
    assert 0, "there is a leak"

@pytest.mark.goal("R4")
def test_on_a_gpu():
    pytest.skip("needs a GPU")

@pytest.mark.goal("C2")
@pytest.mark.xfail(reason="7 %, not 5")
def test_the_share():
    assert 7 <= 5
"""
CONFTEST = """
pytest_plugins = ["trust"]

def pytest_addoption(parser):
    parser.addoption("--nightly")
"""


def run_inner(folder, tests, *options):
    (folder / "trust.py").write_bytes(Path(trust.__file__).read_bytes())
    for name, text in {"TRUST.md": TABLE, "test_inner.py": tests, "conftest.py": CONFTEST}.items():
        (folder / name).write_text(text)
    command = [sys.executable, *"-m pytest -p xdist -p no:cacheprovider".split(), *options]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take long to import
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    return (folder / "TRUST.md").read_text(), done.stdout + done.stderr


def test_a_row_is_filled_by_a_run_of_all_its_tests_and_has_a_day_if_they_passed(tmp_path):
    table, _ = run_inner(tmp_path, INNER, "--nightly", "trust", "-n", "1", "test_inner.py")
    first, *others = table.splitlines()
    assert first == "# Trust: 2 of 5 goals are met"
    assert re.search(
        r"^\| R1 \| kills .* \| 1 kills; 2 kills; 9 kills \| 20\d\d-.* torch \S+ \|$", table, re.M
    )
    for test, fault in (
        ("on_a_gpu", "not measured: needs a GPU"),
        ("leaks", "not met: it failed"),
        ("the_share", "not met: 7 %, not 5"),
    ):
        assert f" | `inner.py::test_{test}` | **{fault}: `inner.py::test_{test}`** |  |" in table
    assert others[-1] == TABLE.splitlines()[-1]  # a test that its row names has not run


@pytest.mark.parametrize(
    ("tests", "options", "said"),
    [
        (INNER, ["-k", "kills", "--nightly", "trust"], "3 passed"),
        (INNER, [], "1 skipped"),
        (INNER.replace("R7", "R77"), ["--nightly", "trust"], "test_inner.py::test_leaks: R77"),
    ],
    ids=["a part of them", "no area of goals", "no such goal"],
)
def test_other_runs_leave_the_table_as_it_is(tmp_path, tests, options, said):
    table, printed = run_inner(tmp_path, tests, *options)
    assert table == TABLE
    assert said in printed
