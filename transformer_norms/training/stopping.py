"""Runs that are asked to stop: after the micro-batch that is being computed, with a checkpoint of
the last whole step."""

import signal
import threading
from types import FrameType
from typing import Any

from transformer_norms import signals
from transformer_norms.progress import Say, say

PREEMPTED = signals.AGAIN


class Preempted(BaseException):
    """A signal came before training had anything to save. Like KeyboardInterrupt, it is none of the
    errors that data or a library may raise, and passes whatever handles those."""


class Interrupted(Exception):
    """A signal cut a step short. Nothing of the step counts."""


class Stopping:
    """While entered, a signal sets `asked`, or raises Preempted until `patient` is set. `saves`
    says whether there is something to save, for which the process of a command waits.

    `say` prints at once that a signal has come. Inside a sweep's, it is the sweep's that speaks.
    Raises Preempted on entry where a signal has come to the Stopping round it.
    """

    def __init__(self, say: Say = say, what: str = "this run stops") -> None:
        self._say, self.what = say, what
        self.asked = False
        self.patient = self.saves = False
        self._raised = False
        self._watch: signals.Watch | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is threading.main_thread():
            handled = signals.handled_signals()
            if any(getattr(signals.work_of(number), "asked", False) for number in handled):
                raise Preempted
            self._watch = signals.watch_work()
            self._before = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, Stopping):  # of the sweep round this run: it was asked as well
                outer.asked = outer.asked or self.asked
        if self._watch:
            signals.forget_watch(self._watch)

    def line(self, name: str) -> str:
        """Returns the line that says that the signal of this name has come."""
        what = self._outermost.what
        if self.patient:
            return f"{name}: {what} with a checkpoint; once more ends it at once"
        return f"{name}: {what}; the same command goes on"

    def say(self, line: str) -> None:
        self._outermost._say(line)

    @property
    def _outermost(self) -> "Stopping":
        outers = [getattr(handler, "__self__", None) for handler in self._before.values()]
        for outer in outers:
            if isinstance(outer, Stopping):
                return outer._outermost
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signals.note_work(self)
        if not (self.patient or self._raised or _must_not_fail(frame)):
            self._raised = True  # once: a second one would break what the first one unwinds
            raise Preempted(signal.Signals(number).name)


def _must_not_fail(frame: FrameType | None) -> bool:
    """Whether an exception would be lost here, or leave half a module behind: in an import, and
    where Python frees an object. `asked` is looked at later, and a command ends in any case."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
