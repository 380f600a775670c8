"""Which goals are met, by which tests, with which measured values: the table tests/TRUST.md.

    make nightly AREA=trust        every test of the goals R to X, whole, and then their rows
    make nightly AREA=science      the same of the goals Q and A

A row is a goal: its name and its promise, which are written by hand; the tests that show it, what
they measured, and the day. A test has a mark, `@pytest.mark.goal("R1", "P2")`, and may say what it
measured: `measured("100 of 100 kill points")`. This file is a plugin of pytest. It fills the rows
whose tests have all run.
"""

import os
import platform
import re
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest

TABLE = Path(__file__).parent / "TRUST.md"
AREAS = {"trust": "RPCDNTSKX", "science": "QA"}  # the letters of their goals
SHOWN = 4  # measured values of one test in the table
_seen: dict[str, dict] = {}  # what became of each test: a function with all its parameters


def rows() -> dict[str, list[str]]:
    """The cells of each goal's row."""
    lines = TABLE.read_text().splitlines()
    cells = [line[2:-2].split(" | ") for line in lines if is_goal(line)]
    return {row[0]: row for row in cells}


def is_goal(line: str) -> bool:
    return re.match(r"\| [A-Z]\d+ \|", line) is not None


def marked(item) -> set[str]:
    """The goals of a collected test."""
    return {goal for mark in item.iter_markers("goal") for goal in mark.args}


# The plugin


def pytest_configure(config):
    config.addinivalue_line("markers", "goal(id, ...): the goals of TRUST.md that it shows")


@pytest.hookimpl(tryfirst=True)  # before the tests of other tiers and areas are left out
def pytest_collection_modifyitems(config, items):
    wrong = [f"{item.nodeid}: {goal}" for item in items for goal in marked(item) - {*rows()}]
    if wrong:
        raise pytest.UsageError(f"there is no such goal in TRUST.md: {', '.join(wrong)}")
    if letters := AREAS.get(config.getoption("--nightly")):
        items[:] = [item for item in items if any(goal[0] in letters for goal in marked(item))]


@pytest.fixture
def measured(record_property):
    """Notes what a test has measured, in a few words that can be read alone."""
    return lambda text: record_property("measured", text)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    report.goals = sorted(marked(item))
    report.function = f"{item.path.stem.removeprefix('test_')}.py::{item.originalname}"


def pytest_runtest_logreport(report):
    if not getattr(report, "goals", None):
        return
    about = _seen.setdefault(report.function, {"passed": 0, "goals": set(), "measured": []})
    about["goals"] |= set(report.goals)
    if report.failed or hasattr(report, "wasxfail"):
        about["fault"] = f"not met: {getattr(report, 'wasxfail', 'it failed')}"
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        about.setdefault("fault", f"not measured: {str(reason).removeprefix('Skipped: ')}")
    elif report.when == "call":
        about["passed"] += 1
    if report.when == "teardown":
        about["measured"] += [text for name, text in report.user_properties if name == "measured"]


def pytest_terminal_summary(exitstatus, config):
    option = config.option
    chosen = option.keyword or option.markexpr or option.maxfail or exitstatus not in (0, 1)
    if option.nightly in AREAS and not chosen and not hasattr(config, "workerinput"):
        write_table(_seen, config.args_source is config.ArgsSource.TESTPATHS)


# The table


def write_table(seen: dict[str, dict], all_ran: bool) -> None:
    """Fills the rows whose tests are among those seen; all rows of a seen goal if `all_ran`."""
    lines = TABLE.read_text().splitlines()
    for goal, (_, promise, tests, _, _) in rows().items():
        ran = {test: about for test, about in sorted(seen.items()) if goal in about["goals"]}
        named = {f"`{test}`" for test in ran}
        if ran and (all_ran or named >= {*filter(None, tests.split("<br>"))}):
            at = next(n for n, line in enumerate(lines) if line.startswith(f"| {goal} | "))
            lines[at] = row(goal, promise, ran)
    goals = list(filter(is_goal, lines))
    met = sum(not line.endswith(" |  |") for line in goals)
    lines[0] = f"# Trust: {met} of {len(goals)} goals are met"
    TABLE.write_text("\n".join(lines) + "\n")


def row(goal: str, promise: str, ran: dict[str, dict]) -> str:
    """The row of a goal. It has a day if every test of it has passed."""
    faults = [f"**{about['fault']}: `{test}`**" for test, about in ran.items() if "fault" in about]
    good = [about for about in ran.values() if "fault" not in about]
    values = [shown(about["measured"]) or f"{about['passed']} passed" for about in good]
    day = "" if faults else f"{date.today()}, {machine()}"
    cells = ["<br>".join(f"`{test}`" for test in ran), "<br>".join(faults + values), day]
    return f"| {' | '.join([goal, promise, *(cell.replace('|', '/') for cell in cells)])} |"


def shown(texts: list[str]) -> str:
    texts = list(dict.fromkeys(texts))
    texts[SHOWN:] = [f"and {len(texts) - SHOWN} more"] * (len(texts) > SHOWN)
    return "; ".join(texts)


def machine() -> str:
    gpu = "a GPU" if Path("/proc/driver/nvidia/gpus").exists() else "no GPU"
    return f"{platform.system()}, {os.cpu_count()} cores, {gpu}, torch {version('torch')}"
