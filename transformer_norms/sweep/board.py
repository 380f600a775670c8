"""Shows a sweep as it goes: a live table on a terminal, a line at each change elsewhere.

It looks at the run folders, as anybody could, so it shows runs of any launcher and of another
driver alike.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from transformer_norms.progress import clock
from transformer_norms.run.folder import ENDED, summary_of
from transformer_norms.sweep.planning import Job

OVER = (*ENDED, "failed")
LOOK_EVERY, PLAIN_EVERY = 0.5, 60.0  # seconds
MOST_ROWS = 12  # of the live table
_ROWS = 1 << 18  # bytes that hold the last row with a loss, and rows of probes behind it


@dataclass
class Row:
    """What is known of one job."""

    job: Job
    state: str = "waiting"
    step: int = 0
    steps: int = 0
    loss: float | None = None
    began: bool = False  # while this command watched
    error: str = ""
    seen: int = 0  # when its summary was written that was read last
    before: int = 0  # and when the one was written that was there before this command
    start: tuple[float, int] | None = None  # the second and the step at which it was seen running

    @property
    def done(self) -> float:
        over = self.state in OVER
        return 1.0 if over else self.step / self.steps if self.steps else 0.0

    @property
    def left(self) -> str:
        """The time that the run will take, if it goes on as it went."""
        if self.state != "running" or self.start is None or self.step == self.start[1]:
            return ""
        rate = (time.monotonic() - self.start[0]) / (self.step - self.start[1])
        return clock(rate * (self.steps - self.step))


class Board:
    """`with` it, `add` jobs, `tell` what became of those whose folder does not say it."""

    def __init__(self, title: str, follow: Callable[[Job], None]) -> None:
        self.title, self.follow = title, follow
        self.rows: list[Row] = []
        self.stream = sys.stderr  # a job's own output is kept apart from it
        self.live = Live(console=Console(file=self.stream), auto_refresh=False, transient=True)
        self.is_terminal = self.stream.isatty()
        self.begun = self.spoken = time.monotonic()
        self.already = 0.0  # jobs' worth that was there before
        self.lock, self.over = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Board":
        if self.is_terminal:
            self.live.start()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.look()
        if self.is_terminal:
            self.live.stop()

    def add(self, jobs: list[Job]) -> None:
        with self.lock:
            for job in jobs:
                row = Row(job)
                row.seen = row.before = _read(row)
                row.state = "waiting" if row.state == "failed" else row.state
                self.already += row.done
                self.rows.append(row)

    def tell(self, job: Job, state: str, error: str = "") -> None:
        """What a launcher says of a job."""
        with self.lock:
            for row in self.rows:
                if row.job is job and row.state not in OVER:
                    row.state, row.error = state, error
                    self._say(row)

    def say(self, line: str) -> None:
        """A line for a person, above the table where there is one."""
        text = "".join(c if c.isprintable() else "?" for c in line)
        if self.is_terminal:
            self.live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.stream, flush=True)

    def _watch(self) -> None:
        while not self.over.wait(LOOK_EVERY):
            self.look()

    def look(self) -> None:
        """Reads the folders now: what has ended is said before anything that follows from it."""
        with self.lock:
            for row in self.rows:
                if row.state in OVER:
                    continue
                before = row.state
                with suppress(OSError, ValueError):  # being written, or gone
                    row.seen = _read(row)
                if row.seen != row.before and not row.began:
                    row.began = True
                    self.follow(row.job)
                if row.state == "running" and row.start is None and row.step:
                    row.start = time.monotonic(), row.step
                if row.state != before and row.state in OVER:
                    self._say(row)
            if self.is_terminal:
                self.live.update(self._table(), refresh=True)
            elif time.monotonic() - self.spoken > PLAIN_EVERY:
                for row in self.rows:
                    if row.state == "running":
                        self.say(f"  {row.job}: step {row.step}/{row.steps}{_loss(row)}")
                self.spoken = time.monotonic()

    def _say(self, row: Row) -> None:
        """A line for a run that has ended; the live table has one for each state."""
        self.spoken = time.monotonic()
        ended = sum(row.state in OVER for row in self.rows)
        error = f": {row.error}" if row.error else ""
        where = f"{ended}/{len(self.rows)}"
        self.say(f"{where}  {row.job}: {row.state}{error or _loss(row)}{self._left()}")

    def _left(self) -> str:
        """The time that the rest takes, if it goes on as it went; after the first has ended."""
        total = sum(row.done for row in self.rows)
        done = total - self.already
        if done <= 0 or not any(row.began and row.done == 1 for row in self.rows):
            return ""
        rate = (time.monotonic() - self.begun) / done
        return f"; {clock(rate * (len(self.rows) - total))} left"

    def _table(self) -> Table:
        ended = [row for row in self.rows if row.state in OVER]
        table = Table(
            title=f"{self.title}: {len(ended)} of {len(self.rows)} runs{self._left()}",
            title_justify="left", box=None, pad_edge=False, expand=False,
        )  # fmt: skip
        for name in ("run", "state", "step", "loss", "left"):
            number = name in ("step", "loss", "left")
            table.add_column(name, justify="right" if number else "left", no_wrap=True)
        running = [row for row in self.rows if row not in ended and row.state != "waiting"]
        waiting = [row for row in self.rows if row.state == "waiting"]
        room = max(1, MOST_ROWS - len(running) - min(3, len(waiting)))
        for row in [*ended[-room:], *running[:MOST_ROWS], *waiting[:3]]:
            step = f"{row.step}/{row.steps}" if row.steps else ""
            loss = "" if row.loss is None else f"{row.loss:.3f}"
            table.add_row(str(row.job)[:40], row.state, step, loss, row.left)
        return table


def _loss(row: Row) -> str:
    return "" if row.loss is None else f", loss {row.loss:.4f}"


def _read(row: Row) -> int:
    """Brings a row up to date from its folder; when its summary was written, in nanoseconds."""
    file = row.job.folder / "summary.json"
    if not file.is_file():
        return 0
    written = file.stat().st_mtime_ns
    if written != row.seen:
        summary = summary_of(row.job.folder)
        row.state = _state(summary)
        row.step, row.steps = summary["step"], summary["steps"]
        row.loss = summary["val_loss"]
        row.error = (summary.get("error", "").strip().splitlines() or [""])[-1]
    if row.state == "running" and (last := _last_loss(row.job.folder / "metrics.jsonl")):
        row.step = last["step"]
        row.loss = last.get("val/loss", last.get("train/loss"))
    return written


def _state(summary: dict[str, Any]) -> str:
    """The recorded status; `interrupted` where whoever was running it is no longer there."""
    holder = summary.get("process", {})
    if summary["status"] != "running" or holder.get("host") != socket.gethostname():
        return str(summary["status"])
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return "interrupted"
    except PermissionError:  # somebody else's
        pass
    return "running"


def _last_loss(file: Path) -> dict[str, Any] | None:
    """The last whole row with a loss of a metrics file, without reading far back."""
    try:
        with open(file, "rb") as stream:
            stream.seek(max(0, file.stat().st_size - _ROWS))
            lines = stream.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and {"step", "train/loss"} <= row.keys():
                return row
    return None
