"""Which goals are met, by which tests, with which measured values: tests/TRUST.md.

    make nightly AREA=trust        every test of the goals R to X, whole, into tests/trust.json
    pytest --record                writes down the goals of any other run of tests as well
    python tests/trust.py          tests/TRUST.md, from the tests' marks and tests/trust.json

A test has a mark, `@pytest.mark.goal("R1", "P2")`, and may say what it measured:
`measured("100 of 100 kill points")`. The rest of this file is a plugin of pytest: it looks at the
marks, adds up what became of each test, and merges that into the record.
"""

import ast
import json
import os
import platform
import sys
from collections import Counter, defaultdict
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
RECORD, TABLE = HERE / "trust.json", HERE / "TRUST.md"
AREA = "trust"
TIERS = "quick", "nightly"
SHOWN = 4  # measured values of one test in the table
_seen: dict[str, dict[str, dict]] = {}  # test, tier: what became of it


@cache
def sections() -> dict[str, dict[str, str]]:
    return yaml.safe_load((HERE / "goals.yaml").read_text())


def goals() -> dict[str, str]:
    return {name: said for goals in sections().values() for name, said in goals.items()}


def has_own_area(goal: str) -> bool:
    """Science and architecture are shown by the tests of their own areas."""
    return goal[0] in "QA"


def marked(item) -> set[str]:
    """The goals of a collected test."""
    return {goal for mark in item.iter_markers("goal") for goal in mark.args}


def tier_of(item) -> str:
    return TIERS[item.get_closest_marker("nightly") is not None]


def test_of(item) -> str:
    """Its file and function, whatever its folder and its parameters are."""
    return f"{item.path.name}::{item.originalname}"


# The plugin


def pytest_addoption(parser):
    parser.addoption("--record", action="store_true", help=f"merge goals into {RECORD.name}")


def pytest_configure(config):
    config.addinivalue_line("markers", "goal(id, ...): the goals of goals.yaml that it shows")


@pytest.hookimpl(tryfirst=True)  # before the tests of other tiers and areas are left out
def pytest_collection_modifyitems(config, items):
    wrong = [f"{item.nodeid}: {goal}" for item in items for goal in marked(item) - {*goals()}]
    if wrong:
        raise pytest.UsageError(f"there is no such goal in goals.yaml: {', '.join(wrong)}")
    count = Counter((test_of(item), tier_of(item)) for item in items)
    for item in items:
        item.stash[COLLECTED] = {tier: count[test_of(item), tier] for tier in TIERS}
    if config.getoption("--nightly") == AREA:
        items[:] = [item for item in items if any(not has_own_area(goal) for goal in marked(item))]


COLLECTED = pytest.StashKey[dict[str, int]]()


@pytest.fixture
def measured(record_property):
    """Notes what a test has measured, in a few words that can be read alone."""
    return lambda text: record_property("measured", text)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if marked(item):
        report.goal = {
            "test": test_of(item),
            "goals": sorted(marked(item)),
            "tier": tier_of(item),
            "of": item.stash[COLLECTED],
        }


def pytest_runtest_logreport(report):
    if (about := getattr(report, "goal", None)) is None:
        return
    tiers = _seen.setdefault(about["test"], {})
    for tier, count in about["of"].items():
        if count:
            tiers.setdefault(tier, {"passed": 0, "of": count, "seconds": 0, "goals": set()})
    known = tiers[about["tier"]]
    known["seconds"] += report.duration
    known["goals"] |= set(about["goals"])
    if report.failed:
        known.setdefault("failed", []).append(report.nodeid.rpartition("/")[2])
    elif hasattr(report, "wasxfail"):
        known.setdefault("unmet", []).append(report.wasxfail)
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        known.setdefault("skipped", []).append(str(reason).removeprefix("Skipped: "))
    elif report.when == "call":
        known["passed"] += 1
    if report.when == "teardown":
        said = known.setdefault("measured", [])
        said += [text for name, text in report.user_properties if name == "measured"]


def pytest_terminal_summary(terminalreporter, config):
    if hasattr(config, "workerinput") or not _seen:
        return
    if config.getoption("--record") or config.getoption("--nightly") == AREA:
        merge_record()
        spent = defaultdict(float)
        for tiers in _seen.values():
            for known in tiers.values():
                for goal in known["goals"]:
                    spent[goal] += known["seconds"]
        lines = (f"{goal} {spent[goal]:.0f} s" for goal in goals() if goal in spent)
        terminalreporter.write_line(f"seconds of the tests of each goal: {', '.join(lines)}")


# The record


def merge_record() -> None:
    """Replaces the records of the tests and tiers that have run now."""
    old = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    where = {"date": f"{date.today()}", "machine": machine()}
    for test, tiers in _seen.items():
        known = {tier: row for tier, row in old.get(test, {}).items() if tier in tiers}
        for tier, row in tiers.items():
            if any(row.get(key) for key in ("passed", "failed", "unmet", "skipped")):
                row = {key: value for key, value in row.items() if key != "goals"}
                known[tier] = {**row, "seconds": round(row["seconds"], 1), **where}
            else:  # only the other tier was asked for
                known.setdefault(tier, {"passed": 0, "of": row["of"]})
                known[tier]["of"] = row["of"]
        old[test] = known
    old = {test: old[test] for test in sorted(old) if test in marks()}
    RECORD.write_text(json.dumps(old, indent=1, ensure_ascii=False) + "\n")


def machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = "a GPU" if Path("/proc/driver/nvidia/gpus").exists() else "no GPU"
    python, torch = platform.python_version(), version("torch")
    return f"{platform.system()}, {cores} cores, {gpu}, Python {python}, torch {torch}"


@cache
def marks() -> dict[str, list[str]]:
    """The goals of each test, read from its source: of its own marks, its parameters' and those of
    its whole file."""
    found = {}
    for file in sorted(HERE.rglob("test_*.py"), key=lambda file: file.name):
        tree = ast.parse(file.read_text())
        whole = [node for node in tree.body if isinstance(node, ast.Assign)
                 and ast.unparse(node.targets[0]) == "pytestmark"]  # fmt: skip
        for function in tree.body:
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                nodes = [*whole, *function.decorator_list]
                if named := {goal for node in nodes for goal in _goals_in(node)}:
                    order = list(goals())
                    found[f"{file.name}::{function.name}"] = sorted(named, key=order.index)
    return found


def _goals_in(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.goal":
            yield from map(ast.literal_eval, node.args)


# The table


def table_text() -> str:
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    tests = defaultdict(list)
    for test, named in marks().items():
        for goal in named:
            tests[goal].append(test)
    rows = {goal: row(goal, tests[goal], record) for goal in goals()}
    met = sum(met for met, _ in rows.values())
    machines = sorted({run["machine"] for runs in record.values() for run in runs.values()
                       if "machine" in run})  # fmt: skip
    lines = [
        f"# Trust: {met} of {len(rows)} goals are met",
        "",
        "`python tests/trust.py` writes this table from the marks of the tests and from",
        "`tests/trust.json`, which `make nightly AREA=trust` and `pytest --record` write.",
        "",
        *(f"Measured on: {text}" for text in machines),
    ]
    for section, named in sections().items():
        lines += ["", f"## {section}", "", "| | goal | tests | measured | last full run |"]
        lines += ["|---|---|---|---|---|", *(rows[goal][1] for goal in named)]
    return "\n".join(lines) + "\n"


def row(goal: str, tests: list[str], record: dict) -> tuple[bool, str]:
    """Whether the goal is met, and its row."""
    states = [state(record.get(test, {})) for test in tests]
    found = [f"`{test.removeprefix('test_')}`" for test in tests]
    faults = [
        f"{fault}: {name}" for (fault, _, _), name in zip(states, found, strict=True) if fault
    ]
    if not tests:
        faults = ["not met: no test"]
    values = [text for _, text, _ in states if text]
    dates = [day for _, _, day in states if day]
    cells = (
        goal,
        goals()[goal].strip(),
        "<br>".join(found),
        "<br>".join([*(f"**{fault}**" for fault in faults), *values]),
        "" if faults else min(dates),
    )
    return not faults, "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def state(tiers: dict) -> tuple[str, str, str]:
    """(what is missing, what was measured, the day) of one test."""
    if not tiers:
        return "not met: not run", "", ""
    if failed := [name for tier in tiers.values() for name in tier.get("failed", [])]:
        return f"not met: {len(failed)} failed", "", ""
    if unmet := {why for tier in tiers.values() for why in tier.get("unmet", [])}:
        return f"not met: {'; '.join(sorted(unmet))}", "", ""
    if skipped := {why for tier in tiers.values() for why in tier.get("skipped", [])}:
        return f"not measured: {'; '.join(sorted(skipped))}", "", ""
    passed, of = (sum(tier[key] for tier in tiers.values()) for key in ("passed", "of"))
    if passed < of:
        return f"not run in full, {passed} of {of}", "", ""
    fullest = tiers.get("nightly", {}).get("measured") or tiers.get("quick", {}).get("measured")
    texts = list(dict.fromkeys(fullest or [f"{passed} of {of} passed"]))
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    text = "; ".join([*texts[:SHOWN], *more])
    return "", text, min(tier["date"] for tier in tiers.values())


if __name__ == "__main__":
    TABLE.write_text(table_text())
    print(table_text().splitlines()[0], file=sys.stderr)
