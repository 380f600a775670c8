"""train.py in a process that kills itself with -9 at a chosen point of a chosen phase.

A point is the n-th call of a Python or C function inside the phase: before an fsync, between two
writes, in the middle of an optimizer's step. So points do not depend on how fast a machine is.
"""

import json
import os
import signal
import sys
import tempfile
from collections import Counter
from functools import partial
from multiprocessing import util
from pathlib import Path

import warm

from transformer_norms.training.trainer import Trainer

# The functions in which a phase happens, by file and name. The innermost one counts. Calls of other
# packages count in training and saving alone: those of a drawing are a million.
PHASES = {
    ("prepare.py", "build"): "tokenization",
    ("trainer.py", "train_step"): "step",
    ("trainer.py", "evaluate"): "evaluation",
    ("metrics.py", "append"): "row",
    ("checkpoint.py", "save"): "save",
    ("summary.py", "write"): "summary",
    ("curve.py", "draw_curve"): "curve",
    ("writing.py", "write_report"): "report",
}
DEEP = {"tokenization", "step", "evaluation", "row", "save"}
PACKAGE = str(Path(sys.modules[Trainer.__module__].__file__).parents[1])


class DyingCommand(warm.Command):
    """A command that dies at the `count`-th call of `phase`, if it comes there. `trained` has the
    steps that it made, and `calls` how many calls each phase had, where it did not die."""

    def __init__(self, arguments, environment=(), phase=None, count=0):
        self._logs = tempfile.TemporaryDirectory()
        prepare = partial(_watch, self._logs.name, phase, count)
        super().__init__(arguments, environment, prepare=prepare)

    def wait(self):
        out, self.err = self.communicate(timeout=600)
        self.trained = [int(line) for line in Path(self._logs.name, "steps").read_text().split()]
        calls = Path(self._logs.name, "calls")
        self.calls = json.loads(calls.read_text()) if calls.exists() else {}
        return self.returncode


def _watch(folder, phase, count):
    calls = Counter()
    _log_steps(f"{folder}/steps")
    write = partial(_write, Path(folder, "calls"), calls)
    util.Finalize(None, write, exitpriority=100)
    sys.setprofile(_counter(calls, phase, count))


def _write(file, calls):
    sys.setprofile(None)
    file.write_text(json.dumps(calls))


def _log_steps(file):
    train_step, log = Trainer.train_step, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def stepped(self):
        reason = train_step(self)
        os.write(log, f"{self.step}\n".encode())
        return reason

    Trainer.train_step = stepped


def _counter(calls, phase, count):
    entered = []

    def look(frame, event, _):
        code = frame.f_code
        inside = code.co_filename.startswith(PACKAGE)
        named = inside and PHASES.get((os.path.basename(code.co_filename), code.co_name))
        if event == "call" and named:
            entered.append(named)
        elif event == "return" and named:
            entered.pop()
        here = entered[-1] if entered else "between"
        if event in ("call", "c_call") and (inside or here in DEEP):
            calls[here] += 1
            if here == phase and calls[here] == count:
                os.kill(os.getpid(), signal.SIGKILL)

    return look
