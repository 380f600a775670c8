"""Shows long work as it goes: a live line on a terminal, a plain line now and then elsewhere.

What takes no longer than a moment is not shown. A worker only says how far it is; a thread shows
it, so that work which has no news for a while is seen to go on.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET = 2.0  # seconds before anything is shown
PLAIN_EVERY = 15.0  # seconds between lines where nobody watches a terminal
_LOOK_EVERY = 0.1
_GONE = suppress(OSError, ValueError)  # what is written to whoever listened and has gone

Item = TypeVar("Item")
# What is done, with places for how much of it and of how much: "reading runs {:.0f}/{:.0f}".
Tell = Callable[[str, float, float], None]


def untold(what: str, done: float, total: float) -> None:
    """For work that nobody waits for."""


def each(tell: Tell, what: str, items: Sequence[Item]) -> Iterator[Item]:
    for done, item in enumerate(items):
        tell(what, done, len(items))
        yield item


def say(line: str) -> None:
    """One line to a person: stderr, without control characters."""
    print("".join(c if c.isprintable() else "?" for c in line), file=sys.stderr, flush=True)


class Told(NamedTuple):
    """How far something is; `first` was done when it began, at `begun`."""

    what: str
    done: float
    total: float
    more: str
    first: float
    begun: float

    @property
    def words(self) -> str:
        return self.what.format(self.done, self.total)

    def rest(self, now: float) -> str:
        """What else there is to say: the time left, if it goes on as it went."""
        if self.done <= self.first or not self.total:
            return self.more
        rate = (now - self.begun) / (self.done - self.first)
        left = f"{clock(rate * max(0.0, self.total - self.done))} left"
        return f"{self.more}  {left}" if self.more else left


class Live:
    """`with` it, and call it with what is done, how much, of how much (0: nobody knows), and more
    to be said of it. `stays`: whether the last live line does."""

    def __init__(self, stays: bool = False) -> None:
        self.stays = stays
        self.entered = time.monotonic()
        self.told = Told("", 0.0, 0.0, "", 0.0, self.entered)
        self.spoken: float | None = None
        self.bar: Progress | None = None
        self.is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Live":
        self.entered = time.monotonic()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        if self.bar:
            with _GONE:
                self._draw(self.bar)
            with _GONE:
                self.bar.stop()

    def __call__(self, what: str, done: float, total: float, more: str = "") -> None:
        first, begun = self.told.first, self.told.begun
        if what != self.told.what:
            first, begun = done, time.monotonic()
        self.told = Told(what, done, total, more, first, begun)  # at once, since a thread reads it

    def _watch(self) -> None:
        while not self.over.wait(_LOOK_EVERY):
            now = time.monotonic()
            if not self.told.what or now - self.entered < QUIET:
                continue
            with _GONE:
                self._show(now)

    def _show(self, now: float) -> None:
        if self.is_terminal:
            self.bar = self.bar or _bar(transient=not self.stays)
            self._draw(self.bar)
        elif self.spoken is None or now - self.spoken > PLAIN_EVERY:
            self.spoken = now
            told = self.told
            say("  ".join(filter(None, [told.words, told.rest(now)])))

    def _draw(self, bar: "Progress") -> None:
        told, task = self.told, bar.tasks[0]
        task.total = told.total or None  # which `update` would take for no news
        more = told.rest(time.monotonic())
        bar.update(task.id, description=told.words, completed=told.done, more=more, refresh=True)


def _bar(transient: bool) -> "Progress":
    """Started. The cursor stays: who is killed could not bring it back. Nothing on stdout is
    touched, and what others print on stderr comes above."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    class Shown(Console):
        def show_cursor(self, show: bool = True) -> bool:
            return False

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[more]}", markup=False),
        console=Shown(file=sys.stderr),
        auto_refresh=False,
        transient=transient,
        redirect_stdout=False,
        expand=True,
    )
    bar.add_task("", total=None, more="")
    bar.start()
    return bar


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
