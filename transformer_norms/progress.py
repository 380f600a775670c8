"""Shows long work as it goes: a live line on a terminal, a plain line now and then elsewhere.

Work that takes no longer than a moment is not shown. A worker only says how far it is. A thread
shows it, so that work without news for a while is seen to go on. A terminal that has gone ends no
work.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from transformer_norms import processes
from transformer_norms.text_tables import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, Task

QUIET = 2.0  # seconds before anything is shown
PLAIN_EVERY = 15.0  # seconds between lines where stderr is not a terminal
_LOOK_EVERY = 0.1
_GONE = suppress(OSError, ValueError)  # which writing raises once the reader has gone

Item = TypeVar("Item")
# A phrase with places for how much is done and of how much: "reading runs {:.0f}/{:.0f}".
Tell = Callable[[str, float, float], None]
Say = Callable[[str], None]  # a line to a person


def tell_nobody(what: str, done: float, total: float) -> None:
    """Does nothing: the `tell` of work that nobody waits for."""


def track(tell: Tell, what: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yields the items, and tells how many are done."""
    for done, item in enumerate(items):
        tell(what, done, len(items))
        yield item


def say(line: str) -> None:
    """Prints one line for a person: on stderr, without control characters. Of the processes that
    train one run, the first speaks."""
    if processes.rank() == 0 and sys.stderr is not None:  # print(file=None) means stdout
        with _GONE:
            print(printable(line), file=sys.stderr, flush=True)


class Screen:
    """Draws in place on the terminal that stderr is, and prints lines above the drawing.

    Where stderr is not a terminal, there are only the lines. Nothing on stdout is touched. `stays`
    says whether the last drawing stays on the terminal.
    """

    def __init__(self, stays: bool = False) -> None:
        from rich.console import Console
        from rich.live import Live as Drawing

        class LineConsole(Console):
            def show_cursor(self, show: bool = True) -> bool:
                return False  # a killed process could not bring a hidden cursor back

        self.is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        # stderr as it is now: a run of a sweep redirects its own. Only `draw` refreshes: rich's own
        # thread would end with a traceback once the terminal has gone.
        self._console = LineConsole(file=sys.stderr, force_jupyter=False)
        self._drawing = Drawing(
            console=self._console, auto_refresh=False, transient=not stays, redirect_stdout=False
        )

    def draw(self, content: "RenderableType") -> None:
        """Replaces the drawing. Lines that others print on stderr come above it."""
        if self.is_terminal:
            with _GONE:
                self._drawing.start()
                self._drawing.update(content, refresh=True)

    def say(self, line: str) -> None:
        """Prints one line for a person, without control characters."""
        with _GONE:
            self._console.out(printable(line), highlight=False)

    def close(self) -> None:
        with _GONE:
            self._drawing.stop()


class Live:
    """Shows, during a `with`, the news that it is called with.

    `stays` says whether the last line stays on the terminal.
    """

    def __init__(self, stays: bool = False) -> None:
        self.stays = stays
        # The phrase, how much is done, of how much (0 if unknown), and anything else to say.
        self.news = "", 0.0, 0.0, ""
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> "Live":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def __call__(self, what: str, done: float, total: float, more: str = "") -> None:
        self.news = what, done, total, more  # in one step, since the thread reads it

    def _show(self) -> None:
        if self.over.wait(QUIET) or processes.rank() > 0:
            return
        while not self.news[0]:  # the work has not said anything yet
            if self.over.wait(_LOOK_EVERY):
                return
        screen, bar = Screen(self.stays), _make_bar()
        pause = _LOOK_EVERY if screen.is_terminal else PLAIN_EVERY
        ends = False
        while not ends:
            task = _update(bar, *self.news)
            screen.draw(bar)
            if not screen.is_terminal:
                screen.say("  ".join(filter(None, [task.description, task.fields["more"]])))
            ends = self.over.wait(pause)
        _update(bar, *self.news)
        screen.draw(bar)
        screen.close()


def _make_bar() -> "Progress":
    """Returns rich's progress of one line, which a Screen draws."""
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[more]}", markup=False),
        expand=True,
        speed_estimate_period=300,
    )
    bar.add_task("", what="", more="")
    return bar


def _update(bar: "Progress", what: str, done: float, total: float, more: str) -> "Task":
    """Puts the news into the only task of `bar`, and the time left at this speed."""
    task = bar.tasks[0]
    if task.fields["what"] != what:  # other work has another speed
        bar.reset(task.id, what=what)
    task.total = total or None  # which `update` would take for no news
    bar.update(task.id, completed=done, description=what.format(done, total))
    left = "" if task.time_remaining is None else f"{clock(task.time_remaining)} left"
    bar.update(task.id, more="  ".join(filter(None, [more, left])))
    return task


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
