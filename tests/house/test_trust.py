"""Every goal has its row in tests/TRUST.md, which is what marks and record say."""

import json
import os
import subprocess
import sys

import pytest
import trust

PASSED = {"passed": 2, "of": 2, "seconds": 1.5, "date": "2026-01-02", "machine": "a machine"}


def test_the_table_is_the_one_that_the_marks_and_the_record_give():
    assert trust.table_text() == trust.TABLE.read_text(), "python tests/trust.py"


def test_every_goal_has_a_row_and_the_same_sentence():
    table = trust.TABLE.read_text()
    for goal, said in trust.goals().items():
        assert table.count(f"\n| {goal} | {said.strip()} |") == 1, goal


def test_the_marks_that_pytest_sees_are_those_of_the_table(request):
    known = trust.marks()
    for item in request.session.items:
        assert trust.marked(item) <= set(known.get(trust.test_of(item), [])), item.nodeid


@pytest.mark.parametrize(
    ("record", "met", "said"),
    [
        ({}, False, "**not met: not run: `"),
        ({"quick": PASSED | {"failed": ["one"], "passed": 1}}, False, "**not met: 1 failed: "),
        ({"quick": PASSED | {"unmet": ["7 %, not 5"]}}, False, "**not met: 7 %, not 5: "),
        ({"quick": PASSED | {"skipped": ["needs a GPU"]}}, False, "**not measured: needs a GPU: "),
        ({"quick": PASSED, "nightly": {"passed": 0, "of": 3}}, False, "run in full, 2 of 5"),
        ({"quick": PASSED}, True, " | 2 of 2 passed | 2026-01-02 |"),
        (
            {
                "quick": PASSED | {"measured": ["3 of 3 kills"], "date": "2026-01-01"},
                "nightly": PASSED | {"measured": ["100 of 100 kills"]},
            },
            True,
            " | 100 of 100 kills | 2026-01-01 |",
        ),
    ],
)  # fmt: skip
def test_a_goal_is_met_only_by_tests_that_ran_in_full(record, met, said):
    is_met, row = trust.row("R1", ["test_a.py::test_b"], {"test_a.py::test_b": record})
    assert is_met is met
    assert said in row


def test_a_goal_without_a_test_is_not_met():
    assert trust.row("R1", [], {})[0] is False
    assert "**not met: no test**" in trust.row("R1", [], {})[1]


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
    for name in ("trust.py", "goals.yaml"):
        (folder / name).write_bytes((trust.HERE / name).read_bytes())
    (folder / "test_inner.py").write_text(tests)
    (folder / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, *"-m pytest -p xdist -p no:cacheprovider".split(), *options]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take long to import
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_what_became_of_each_test_is_merged_into_the_record(tmp_path):
    printed = run_inner(tmp_path, INNER, "--record", "-n", "1", "-m", "not nightly")
    assert "seconds of the tests of each goal: R1 0 s, R4 0 s, R7 0 s, C2 0 s, A1 0 s" in printed
    record = json.loads((tmp_path / "trust.json").read_text())
    kills, leaks, gpu, share = (record[f"test_inner.py::test_{name}"] for name in
                                ("kills", "leaks", "on_a_gpu", "the_share"))  # fmt: skip
    assert kills["quick"]["passed"] == kills["quick"]["of"] == 2
    assert kills["quick"]["measured"] == ["1 kills", "2 kills"]
    assert kills["nightly"] == {"passed": 0, "of": 1}
    assert leaks["quick"]["failed"] == ["test_inner.py::test_leaks"]
    assert gpu["quick"]["skipped"] == ["needs a GPU"]
    assert share["quick"]["unmet"] == ["7 %, not 5"]

    run_inner(tmp_path, INNER, "--record", "-n", "0", "-m", "nightly")
    record = json.loads((tmp_path / "trust.json").read_text())
    assert record["test_inner.py::test_kills"]["nightly"]["measured"] == ["9 kills"]
    assert record["test_inner.py::test_kills"]["quick"] == kills["quick"]
    assert record["test_inner.py::test_leaks"] == leaks

    run_inner(tmp_path, INNER.replace("test_leaks", "test_others"), "--record", "-n", "0")
    assert "test_inner.py::test_leaks" not in json.loads((tmp_path / "trust.json").read_text())


def test_a_goal_that_is_none_is_an_error_before_any_test_runs(tmp_path):
    printed = run_inner(tmp_path, INNER.replace("R7", "R77"), "-n", "0")
    assert "test_inner.py::test_leaks: R77" in printed
    assert "passed" not in printed
