"""Signals that ask a run to stop: after the micro-batch that is being computed, with a checkpoint
of the last whole step."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from transformer_norms import processes
from transformer_norms.progress import Say, say

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ONE_WISH = 10.0  # seconds
PREEMPTED = 75  # the exit code that says: run the same command again


class Preempted(Exception):
    """A signal came before training had anything to save."""


class Interrupted(Exception):
    """A signal cut a step short. Nothing of the step counts."""


class Stopping:
    """While entered, SIGTERM, SIGINT and SIGUSR1 set `asked`, or raise Preempted until `patient` is
    set. A second signal ends the process at once: what is on disk verifies at any time. Under
    torchrun it does so after ONE_WISH seconds, because torchrun passes on what all have received.

    `say` prints at once that a signal has come. Inside a sweep's, it is the sweep's that speaks.
    """

    def __init__(self, say: Say = say, what: str = "this run stops") -> None:
        self.say, self.what = say, what
        self.asked = False
        self.asked_at = 0.0
        self.patient = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, Stopping):  # of the sweep round this run: it was asked as well
                outer.asked = outer.asked or self.asked

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked and processes.launched() and now - self.asked_at < ONE_WISH:
            return
        if self.asked:
            if processes.rank() == 0:
                os.write(2, b"stopped at once; the same command goes on from the last checkpoint\n")
            os._exit(PREEMPTED)
        self.asked, self.asked_at = True, now
        name = signal.Signals(number).name
        if not self.patient:
            raise Preempted(name)
        outermost = self._outermost(number)
        # In a thread, since this one may hold the lock of what it was just printing.
        line = f"{name}: {outermost.what} with a checkpoint; once more ends it at once"
        threading.Thread(target=outermost.say, args=(line,), daemon=True).start()

    def _outermost(self, number: int) -> "Stopping":
        outer = getattr(self._before.get(number), "__self__", None)
        return outer._outermost(number) if isinstance(outer, Stopping) else self
