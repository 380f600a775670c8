"""A process that runs a few lines of Python with the package of one checkout."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_PATIENCE = 60.0  # seconds for a run to save, once told to stop


class Exit(NamedTuple):
    """The exit code of a process, and the last lines of its stdout and stderr, maybe empty."""

    code: int
    out: str
    err: str


def run_python(root: Path, lines: str, arguments: Sequence[str]) -> Exit:
    """Runs `lines` with the package that lies in `root`. `arguments` are its sys.argv[1:].

    It is in a separate session: Ctrl-C reaches this process alone, which stops it once and lets
    it save.
    """
    path = filter(None, [str(root), os.environ.get("PYTHONPATH")])
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", lines, *arguments],  # -P: not the package of this folder
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)}, start_new_session=True,
    )  # fmt: skip
    try:
        printed = process.communicate()
    except BaseException:
        process.terminate()
        try:
            process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        raise
    return Exit(process.returncode, *(text.rstrip().rpartition("\n")[2] for text in printed))
