"""Shapes are checked on every call, home and caches are the test's own, areas have CPU budgets."""

import gc
import os
import shutil
import signal
from collections import defaultdict
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

import pytest
import shape_checker
import trust
from areas import BUDGETS, area_of
from browser import MISSING, browser, opened  # noqa: F401

pytest_plugins = ["trust"]

os.environ["WANDB_MODE"] = "offline"
for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ.setdefault(name, "1")

shape_checker.install("transformer_norms", "analyses")

SHAPELESS = ("sweep", "report", "tracking")  # their models are checked in the other areas
SHARED_MEMORY, ROOM = "/dev/shm", 4 << 30  # bytes that must be free in it
_FORKED = "forked"
_DEFAULT_HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
_seconds: dict[str, float] = defaultdict(float)
_read = (0.0, 0.0)  # the CPU seconds when they were read last


def pytest_addoption(parser):
    parser.addoption("--nightly", metavar="AREA", help="run the long tests of one area instead")


def pytest_configure(config):
    wanted, areas = config.getoption("--nightly"), [*BUDGETS, *trust.AREAS]
    if wanted and wanted not in areas:  # said before there are workers, which would hide it
        raise pytest.UsageError(f"--nightly {wanted}: there is no such area; {', '.join(areas)}")
    # nohup and a shell's & have told us, and would tell what the tests start, to ignore these two.
    for number, default in _DEFAULT_HANDLERS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)
    if not wanted and has_room(SHARED_MEMORY):  # where the disk is not waited for at each sync
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", SHARED_MEMORY)
    gc.disable()  # until all modules are imported, of which nothing becomes garbage
    config.addinivalue_line("markers", "draws: its runs draw their curve.svg, which takes long")


def has_room(folder) -> bool:
    with suppress(OSError):
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > ROOM
    return False


def pytest_collection_modifyitems(config, items):
    wanted = config.getoption("--nightly")
    if wanted in trust.AREAS:  # trust.py chooses, among the short and the long ones
        return
    items[:] = [
        item
        for item in items
        if (item.get_closest_marker("nightly") is not None) == bool(wanted)
        and wanted in (None, area_of(item.path))
    ]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Writes into each report the CPU seconds since the report before it: those of the test and of
    the fixtures that it was the first to use. Imports and collection come before the first."""
    global _read
    report = (yield).get_result()
    before, _read = _read, cpu_seconds()
    report.cpu, report.forked = (now - then for now, then in zip(_read, before, strict=True))
    report.area = area_of(item.path)


def cpu_seconds() -> tuple[float, float]:
    """Those of this process and its children, and those of the server that forks processes and of
    what it has forked: nobody waits for that one, so its seconds are no child's."""
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)
    forked = 0
    with suppress(OSError):  # there is none
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        forked = sum(map(int, fields[11:15]))
    return sum(os.times()[:4]), forked / os.sysconf("SC_CLK_TCK")


def pytest_collection_finish():
    global _read
    gc.freeze()
    gc.enable()
    _read = cpu_seconds()


def pytest_runtest_logreport(report):
    _seconds[report.area] += report.cpu + report.forked
    _seconds[_FORKED] += report.forked


def pytest_terminal_summary(terminalreporter, config):
    if os.environ.get("PYTEST_XDIST_WORKER") or not _seconds:
        return
    terminalreporter.write_line("")
    skipped = terminalreporter.stats.get("skipped", [])
    if unseen := sum(MISSING in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"{unseen} tests of pages skipped: {MISSING}")
    whole = sum(os.times()[:4]) + _seconds.pop(_FORKED)  # the workers have ended
    _seconds["imports and collection"] = whole - sum(_seconds.values())
    for area, seconds in sorted(_seconds.items()):
        budget = "" if config.getoption("--nightly") or area not in BUDGETS else BUDGETS[area][0]
        terminalreporter.write_line(f"{area}: {seconds:.0f} s{budget and f' of {budget}'}")
    terminalreporter.write_line(f"CPU in all: {whole:.0f} s")


@pytest.fixture(autouse=True)
def _one_thread():
    """Two workers with two threads each would spin for one another; a run sets its own count."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _shapes(request, monkeypatch):
    checked = area_of(request.path) not in SHAPELESS
    monkeypatch.setattr(shape_checker, "shapes_are_checked", checked)


@pytest.fixture(autouse=True)
def _no_curve(request, monkeypatch):
    """Drawing curve.svg takes longer than a test's run."""
    if request.node.get_closest_marker("draws") is None:
        monkeypatch.setattr("transformer_norms.run.run.draw_curve", lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory) -> Path:
    """One token cache for the session, apart from the user's."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["TRANSFORMER_NORMS_CACHE"] = os.environ["MPLCONFIGDIR"] = str(folder)
    return folder
