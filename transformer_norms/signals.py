"""The signals that ask a command to stop, answered from its first line on, and the work that stops:
after the micro-batch that is being computed, with a checkpoint of the last whole step.

Python calls a signal's handler in the main thread, between two of Python's operations: late, where
that thread imports a library, fits a tokenizer, compiles or waits for another rank, and in the
middle of an import, where an exception would leave half a module and a traceback. So a thread
answers. It prints a line at once. It ends a process that has nothing to save, which leaves no more
than kill -9 does. Nothing here imports what Python has not loaded or loads at once.
"""

import _thread
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from select import select
from types import FrameType

from transformer_norms.processes import launched, rank

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
AGAIN = 75  # the exit code that says: run the same command again
# `timeout` and others send a signal to a process and to its group: one wish that comes twice. As
# torchrun does later, which passes on what its ranks have received.
ONE_WISH, ONE_WISH_OF_TORCHRUN = 0.1, 10.0  # seconds
GRACE = 6.0  # seconds for work that has nothing to save to end
_LOOK_EVERY = 0.1
_NEVER = float("inf")


class Preempted(BaseException):
    """A signal came before training had anything to save. As with KeyboardInterrupt, no handler of
    the errors that data or a library may raise catches it."""


class Interrupted(Exception):
    """A signal cut a step short. Nothing of the step counts."""


class Stopping:
    """While entered, a signal sets `stop_requested`, or raises Preempted until `deferring` is set.
    The process of a command does not end before it has saved where `has_unsaved_steps` is set.

    `print_line` prints at once that a signal has come. Inside a sweep's, it is the sweep's that
    speaks. Raises Preempted on entry where a signal has come to the Stopping around it.
    """

    def __init__(
        self, print_line: Callable[[str], object] | None = None, what: str = "this run stops"
    ) -> None:
        self._print_line, self.what = print_line, what
        self.stop_requested = False
        self.deferring = self.has_unsaved_steps = False
        self._raised = False

    def __enter__(self) -> "Stopping":
        import threading

        global _watch
        if threading.current_thread() is threading.main_thread():
            outer = current_work()
            if outer is not None and outer.stop_requested:
                raise Preempted
            if _watch is None:
                _watch = Watch(ends=False)
            _works.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        global _watch
        if self in _works:
            _works.remove(self)
            if outer := current_work():  # the sweep round this run: it was asked as well
                outer.stop_requested = outer.stop_requested or self.stop_requested
            elif _watch is not None and not _watch.ends:
                _watch.close()
                _watch = None

    def line(self, name: str) -> str:
        """Returns the line that says that the signal of this name has come."""
        what = self._outermost.what
        if self.deferring:
            return f"{name}: {what} with a checkpoint; once more ends it at once"
        return f"{name}: {what}; the same command goes on"

    def say(self, line: str) -> None:
        """Prints a line. The outermost work speaks."""
        from transformer_norms.progress import say

        (self._outermost._print_line or say)(line)

    @property
    def _outermost(self) -> "Stopping":
        return _works[0] if _works else self


_works: list[Stopping] = []  # that are entered, the inner ones last


def current_work() -> Stopping | None:
    """Returns the work that a signal stops."""
    return _works[-1] if _works else None


class Watch:
    """Answers the signals of this process in a thread, until `close`.

    The first signal prints a line. A second one ends the process at once: what is on disk verifies
    at any time. `ends` says whether the first one does too, where no work handles it, or where the
    work has nothing to save and does not end: so it is in a command, and not in the
    process of a notebook. `speaks` is False where another process speaks.
    """

    def __init__(self, ends: bool, speaks: bool = True) -> None:
        self.ends, self.speaks = ends, speaks and rank() == 0
        self.work: Stopping | None = None  # which handled a signal
        self.number = 0  # of the first signal
        self.first, self.idle = _NEVER, _NEVER  # when it came, and since when nothing is to save
        self._said = _thread.allocate_lock()
        self._said.acquire()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _handle) for number in handled_signals()}
        _thread.start_new_thread(self._answer, ())  # importing threading would take a while

    @property
    def signalled(self) -> bool:
        return bool(self.work or self.number)

    def close(self) -> None:
        """Ends the thread, once it has said what it has to say."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.wait()
        signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        os.close(self._writer)

    def wait(self) -> None:
        """Waits until the line about a signal is printed, but not for a reader that is stuck."""
        if self.signalled and self._said.acquire(timeout=1.0):
            self._said.release()

    def _answer(self) -> None:
        while True:
            pause = None if self.first == _NEVER else _LOOK_EVERY
            if select([self._reader], [], [], pause)[0]:
                numbers = os.read(self._reader, 4096)
                if not numbers:  # closed
                    return os.close(self._reader)
                for number in numbers:
                    if number in SIGNALS:
                        self._hear(number)
            if self.ends and self.number:
                self._end_idle()

    def _hear(self, number: int) -> None:
        now = time.monotonic()
        if self.number:
            if now - self.first > (ONE_WISH_OF_TORCHRUN if launched() else ONE_WISH):
                self._leave("stopped at once; the same command goes on from the last checkpoint")
            return
        self.first, self.number, work = now, number, self.work or current_work()
        name = signal.Signals(number).name
        if work is not None:
            work.stop_requested = True
            # The line is of the state that the signal found, which soon changes.
            _thread.start_new_thread(self._say, (work, work.line(name)))
        elif self.ends:
            self._leave(f"{name}: stopped; the same command goes on")

    def _say(self, work: Stopping, line: str) -> None:
        """In a separate thread: the terminal may be gone, and a reader may be stuck."""
        with suppress(OSError, ValueError):
            work.say(line)
        self._said.release()

    def _end_idle(self) -> None:
        """Ends the process where nothing has been there to save for a while."""
        now, work = time.monotonic(), current_work()
        self.idle = _NEVER if work is not None and work.has_unsaved_steps else min(self.idle, now)
        if now - self.idle > GRACE:
            self._leave("stopped; the same command goes on")

    def _leave(self, line: str) -> None:
        if self.speaks:
            with suppress(OSError, ValueError):
                if select([], [2], [], 1.0)[1]:  # a pipe that is full would take no end
                    os.write(2, f"{line}\n".encode())
        os._exit(AGAIN)


_watch: Watch | None = None


def _handle(number: int, frame: FrameType | None) -> None:
    """Stops the work. The thread hears of the signal as well, also where no work is entered."""
    work = current_work()
    if work is None:
        return
    work.stop_requested = True
    if _watch is not None:  # this work may be gone by the time that the thread hears of it
        _watch.work = _watch.work or work
    if not (work.deferring or work._raised or _must_not_fail(frame)):
        work._raised = True  # once: a second one would break what the first one unwinds
        raise Preempted(signal.Signals(number).name)


def watch_command(speaks: bool = True) -> None:
    """Answers signals from now to the end of this process, which runs a command."""
    global _watch
    _watch = Watch(ends=True, speaks=speaks)


def leave_if_asked() -> None:
    """Ends the process of a command that a signal has stopped. Python's own end would run what
    half-imported libraries have registered, and wait for threads that are at work."""
    if _watch is not None and _watch.signalled:
        _watch.wait()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(AGAIN)


def handled_signals() -> list[signal.Signals]:
    """Returns the signals that stop this process. One that was ignored when the process began stays
    ignored: SIGHUP under nohup, SIGINT in the background of a script."""
    return [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def _must_not_fail(frame: FrameType | None) -> bool:
    """Whether an exception would be lost here, or leave half a module: in an import, and
    where Python frees an object. `stop_requested` is looked at later, and a command ends in any
    case."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


@contextmanager
def withhold_signals() -> Iterator[None]:
    """Processes that are started during this `with` are born with the signals blocked: Ctrl-C and
    Slurm reach all processes, and these are to outlive the work of their parent. They let through
    (`let_through`) what they can answer, once they can."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_tracker() -> None:
    """Starts the process that tracks what Python's workers share, which outlives them."""
    from multiprocessing import resource_tracker

    with withhold_signals():
        resource_tracker.ensure_running()


def let_through(*numbers: signal.Signals) -> None:
    """Unblocks these signals, or all, in a process that was started under `withhold_signals`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers or SIGNALS)


def _forget_in_child() -> None:
    """A forked process has no thread that answers, and its signals are none of its parent's."""
    global _watch
    if _watch is not None:
        signal.set_wakeup_fd(-1)
        for number in handled_signals():
            signal.signal(number, signal.SIG_DFL)
        _watch = None
        _works.clear()


os.register_at_fork(after_in_child=_forget_in_child)
