"""Plants bugs, one at a time, and prints the test that kills each.

    pytest --nightly planted --record      all bugs of the architecture, into tests/planted
    pytest --nightly protections --record  all of the protections, into tests/planted
    python tests/helpers/planted_bugs.py --only "final norm"

tests/planted/architecture.txt has papers misread, tests/planted/trust.txt protections that are
gone. Each bug lives in a copy, never in this tree, and exchanges a text that must be there just
once. The tests of its hint run first, and for a bug of the architecture all others of the model
after them; it survives if they all pass. In the end the killers run without a bug, and must pass.
Exit code 1 if a bug survives.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
COPIED = "transformer_norms configs tests benchmarks docs examples train.py README.md"
COPIED += " pyproject.toml constraints.txt Makefile .ci experiments/analyses"
# The quickest first.
ARCHITECTURE = "mlp optimizer initialization fingerprints norms parity theory block_equations "
ARCHITECTURE += "position overfit presets hf trainer config_compose catalogue connections"
LISTS = {"architecture": ARCHITECTURE.split(), "trust": []}  # and what runs after the hints
LONGEST = 400  # seconds of the tests of one bug; a test that hangs has noticed it
HANGS = " (hangs)"


def bugs(name):
    """(number, what is wrong, file, its text with the bug, the tests that run first)"""
    listed = (ROOT / "tests" / "planted" / f"{name}.txt").read_text()
    for number, text in enumerate(re.split(r"^# ", listed, flags=re.MULTILINE)[1:], start=1):
        head, *lines = text.split("\n")
        wrong, place, hints = head.split(" | ")
        homes = (Path(home, place) for home in ("transformer_norms", "configs", ""))
        file = next((home for home in homes if (ROOT / home).exists()), Path(place))
        old, new = ("\n".join(line[2:] for line in lines if line[:1] == sign) for sign in "-+")
        whole = (ROOT / file).read_text() if (ROOT / file).exists() else ""
        if not old or whole.count(old) != 1:
            sys.exit(f"{number}. {wrong}: {whole.count(old)} times in {file}:\n{old}")
        yield number, wrong, file, whole.replace(old, new), hints.split()


def first_failure(tests, file=None, whole=None):
    """The first test that fails in a copy where `file` is `whole`, or None."""
    with TemporaryDirectory(prefix="planted-") as folder:
        for name in COPIED.split():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder, name))
        if file:
            Path(folder, file).write_text(whole)
        command = [sys.executable, "-B", *"-m pytest -x -v -n 0 -rfE --tb=no".split(), *tests]
        env = {**os.environ, "PYTHONPATH": folder, "COLUMNS": "1000"}
        log = Path(folder, "log")
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)
            try:
                code = process.wait(LONGEST)
            except subprocess.TimeoutExpired:
                code = None
            end_all_of(folder)
            process.wait()
        printed = log.read_text()
    if code is None:
        return re.findall(r"^tests/(\S+)", printed, re.MULTILINE)[-1] + HANGS
    failed = re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", printed, re.MULTILINE)
    if failed is None and code != 0:
        sys.exit(f"the tests did not run:\n{printed[-4000:]}")
    return failed and failed[1]


def end_all_of(folder):
    """Ends what runs with this copy: a test that failed may have left a process behind."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def hunt(bug, others):
    number, wrong, file, whole, hints = bug
    start = time.monotonic()
    killer = first_failure([test_file(hint) for hint in hints], file, whole)
    if killer is None and others:
        rest = [test_file(other) for other in others if other not in hints]
        killer = first_failure(rest, file, whole)
    by = f"`{killer}`" if killer else "**survives**"
    line = f"| {number} | {wrong} | {file} | {by} | {time.monotonic() - start:.0f} |"
    print(line, file=sys.stderr, flush=True)
    return killer, line


def test_file(hint):
    """tests/data/test_data_store.py of `data_store`, and one test of it of `data_store::name`."""
    name, colons, test = hint.partition("::")
    (file,) = (ROOT / "tests").glob(f"*/test_{name}.py")
    return f"{file.relative_to(ROOT)}" + (f"::test_{test}" if colons else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", choices=LISTS, default="architecture")
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="numbers, or parts of what is wrong"
    )
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1)
    given = parser.parse_args()
    chosen = [bug for bug in bugs(given.list) if given.only is None
              or any(only == str(bug[0]) if only.isdigit() else only in bug[1]
                     for only in given.only)]  # fmt: skip
    if not chosen:
        sys.exit(f"--only: no bug of the list {given.list} has {' or '.join(given.only)}")
    start = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        hunts = pool.map(lambda bug: hunt(bug, LISTS[given.list]), chosen)
        found, lines = zip(*hunts, strict=True)
    killers = sorted({f"tests/{killer.removesuffix(HANGS)}" for killer in found if killer})
    innocent = first_failure(killers) if killers else None
    killed, minutes = sum(map(bool, found)), (time.monotonic() - start) / 60
    print(f"# Planted bugs: {killed} of {len(chosen)} killed\n")
    command = f"python tests/helpers/planted_bugs.py --list {given.list}"
    print(f"`{command}`, {date.today()}, {minutes:.0f} min\n")
    print("| | bug | planted in | killed first by | s |\n|--:|---|---|---|--:|", *lines, sep="\n")
    if innocent:
        sys.exit(f"this fails without any bug: {innocent}")
    sys.exit(killed < len(chosen))


def killed_of(name: str, save: bool) -> str:
    """Hunts all bugs of a list in another process; "272 of 272 killed". `save` writes its table."""
    command = [sys.executable, __file__, "--list", name, "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if save:
        (ROOT / "tests" / "planted" / f"{name}.md").write_text(done.stdout)
    return re.search(r"\d+ of \d+ killed", done.stdout)[0]


if __name__ == "__main__":
    main()
