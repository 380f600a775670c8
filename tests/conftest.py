"""Shapes are checked on every call, home and caches are the test's own, areas have budgets."""

import os
from collections import defaultdict
from pathlib import Path

import pytest
from browser import MISSING, browser, opened  # noqa: F401
from jaxtyping import install_import_hook

os.environ["WANDB_MODE"] = "offline"
for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ.setdefault(name, "1")

# beartype checks every annotation of the package, jaxtyping's shapes among them.
install_import_hook("transformer_norms", "shape_checker.check")

BUDGETS = {"main": 40, "catalogue": 100, "trust": 70, "sweeps": 50, "scale": 30, "speed": 10}
WORKERS = 2
_seconds: dict[str, float] = defaultdict(float)


def pytest_addoption(parser):
    parser.addoption("--nightly", metavar="AREA", help="run the long tests of one area instead")


def pytest_configure(config):
    config.addinivalue_line("markers", "area(name): whose budget a test is on (default: main)")


def pytest_collection_modifyitems(config, items):
    wanted = config.getoption("--nightly")
    if wanted and wanted not in BUDGETS:
        raise pytest.UsageError(f"--nightly {wanted}: there is no such area; {', '.join(BUDGETS)}")
    kept = []
    for item in items:
        mark = item.get_closest_marker("area")
        area = mark.args[0] if mark else "main"
        item.user_properties.append(("area", area))
        nightly = item.get_closest_marker("nightly") is not None
        if nightly == bool(wanted) and wanted in (None, area):
            kept.append(item)
    items[:] = kept


def pytest_runtest_logreport(report):
    _seconds[dict(report.user_properties).get("area", "main")] += report.duration


def pytest_terminal_summary(terminalreporter, config):
    if os.environ.get("PYTEST_XDIST_WORKER") or not _seconds:
        return
    terminalreporter.write_line("")
    skipped = terminalreporter.stats.get("skipped", [])
    if unseen := sum(MISSING in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"{unseen} tests of pages skipped: {MISSING}")
    for area, seconds in sorted(_seconds.items()):
        budget = "" if config.getoption("--nightly") else f" of {BUDGETS[area]}"
        share = seconds / WORKERS
        terminalreporter.write_line(f"{area}: {share:.0f} s{budget} with {WORKERS} workers")


@pytest.fixture(autouse=True)
def _one_thread():
    """Two workers with two threads each would spin for one another; a run sets its own count."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory) -> Path:
    """One token cache for the session, apart from the user's."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["TRANSFORMER_NORMS_CACHE"] = os.environ["MPLCONFIGDIR"] = str(folder)
    return folder
