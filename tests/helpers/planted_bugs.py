"""Plants a bug in a copy of this project, never in this tree, and finds the test that fails of it.

tests/planted/architecture.txt has papers misread, tests/planted/trust.txt protections that are
gone. Each bug exchanges a text that must be there just once, and has hints: the files of tests, or
the tests, that run first.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COPIED = "transformer_norms configs tests benchmarks docs examples train.py README.md"
COPIED += " pyproject.toml constraints.txt Makefile .ci experiments/analyses"
LONGEST = 400  # seconds of the tests of one bug; a test that hangs has noticed it


class Bug(NamedTuple):
    wrong: str
    file: Path
    old: str
    new: str
    hints: list[str]

    @property
    def whole(self):
        """The text of the file with the bug."""
        text = (ROOT / self.file).read_text()
        assert text.count(self.old) == 1, f"{self.wrong}: {text.count(self.old)} times:\n{self.old}"
        return text.replace(self.old, self.new)


def bugs(name):
    """The bugs of a list."""
    found = []
    listed = (ROOT / "tests" / "planted" / f"{name}.txt").read_text()
    for text in re.split(r"^# ", listed, flags=re.MULTILINE)[1:]:
        head, *lines = text.split("\n")
        wrong, place, hints = head.split(" | ")
        homes = (Path(home, place) for home in ("transformer_norms", "configs", ""))
        file = next((home for home in homes if (ROOT / home).exists()), Path(place))
        old, new = ("\n".join(line[2:] for line in lines if line[:1] == sign) for sign in "-+")
        found.append(Bug(wrong, file, old, new, hints.split()))
    return found


def killer(bug, others=()):
    """The first test that fails of a bug: of its hints, and then of other files; or None."""
    rest = [other for other in others if other not in bug.hints]
    return first_failure(bug.hints, bug) or (first_failure(rest, bug) if rest else None)


def first_failure(hints, bug=None, longest=LONGEST):
    """The first test that fails in a copy, in which the bug is planted, or None."""
    with TemporaryDirectory(prefix="planted-") as folder:
        for name in COPIED.split():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder, name))
        if bug:
            Path(folder, bug.file).write_text(bug.whole)
        tests = [file_of(hint) for hint in hints]
        command = [sys.executable, "-B", *"-m pytest -x -v -n 0 -rfE --tb=no".split(), *tests]
        env = {**os.environ, "PYTHONPATH": folder, "COLUMNS": "1000"}
        log, code = Path(folder, "log"), None
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(longest)
            end_all_of(folder)
            process.wait()
        printed = log.read_text()
    if code is None:
        return re.findall(r"^tests/(\S+)", printed, re.MULTILINE)[-1]
    failed = re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", printed, re.MULTILINE)
    assert failed or code == 0, f"the tests did not run:\n{printed[-4000:]}"
    return failed and failed[1]


def end_all_of(folder):
    """Ends what runs with this copy: a test that failed may have left a process behind."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def file_of(hint):
    """tests/data/test_data_store.py of `data_store`, and one test of it of `data_store::name`."""
    name, colons, test = hint.partition("::")
    (file,) = (ROOT / "tests").glob(f"*/test_{name}.py")
    return f"{file.relative_to(ROOT)}" + (f"::test_{test}" if colons else "")
