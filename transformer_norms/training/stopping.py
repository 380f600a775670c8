"""Signals that ask a run to stop: at the next step boundary, with a checkpoint."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from transformer_norms import processes

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ONE_WISH = 10.0  # seconds
PREEMPTED = 75  # the exit code that says: run the same command again


class Preempted(Exception):
    """A signal came before training had anything to save."""


class Stopping:
    """While entered, SIGTERM, SIGINT and SIGUSR1 set `asked`, or raise Preempted until `patient` is
    set. A second signal ends the process at once: what is on disk verifies at any time. Under
    torchrun it does so after ONE_WISH seconds, because torchrun passes on what all have received.
    """

    def __init__(self) -> None:
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
            os._exit(PREEMPTED)
        self.asked, self.asked_at = True, now
        if not self.patient:
            raise Preempted(signal.Signals(number).name)
