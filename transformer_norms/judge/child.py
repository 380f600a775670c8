"""A process that runs a few lines of Python with the package of one checkout."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

_PATIENCE = 60.0  # seconds for a run to save, once told to stop


class Answer(NamedTuple):
    """The exit code of a process, and the last lines of its stdout and stderr, maybe empty."""

    code: int
    out: str
    err: str


class Child:
    """Runs `lines` with the package that lies in `root`. `arguments` are its sys.argv[1:].

    It is in a session of its own: Ctrl-C reaches its parent alone, which stops it once.
    """

    def __init__(self, root: Path, lines: str, arguments: Sequence[str]) -> None:
        path = filter(None, [str(root), os.environ.get("PYTHONPATH")])
        # Files, since a pipe that nobody reads fills up. -P: the package of `root`, and not that
        # of the current folder.
        self._out, self._err = TemporaryFile("w+"), TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", lines, *arguments],
            stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)}, start_new_session=True,
        )  # fmt: skip

    def wait(self) -> Answer:
        """Waits for the end of the process."""
        code = self._process.wait()
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read().rstrip().rpartition("\n")[2])
        return Answer(code, *texts)

    def stop(self) -> None:
        """Lets a run save and end. Does nothing if it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
