"""Signals that ask a run to stop: at the next step boundary, with a checkpoint."""

import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PREEMPTED = 75  # the exit code that says: run the same command again


class Preempted(Exception):
    """A signal came before training had anything to save."""


class Stopping:
    """While entered, SIGTERM, SIGINT and SIGUSR1 set `asked`, or raise Preempted until `patient` is
    set. A second signal ends the process at once: what is on disk verifies at any time.
    """

    def __init__(self) -> None:
        self.asked = False
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
        if self.asked:
            os._exit(PREEMPTED)
        self.asked = True
        if not self.patient:
            raise Preempted(signal.Signals(number).name)
