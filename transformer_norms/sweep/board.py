"""Shows a sweep as it goes: live lines on a terminal, a line at each change everywhere.

It reads the run folders, as anybody could. So it shows the runs of any launcher, and also those of
another command that works on the same study.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from transformer_norms.comparison.sweep_record import FAILED_AT_START
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Screen, clock
from transformer_norms.run.folder import state_of
from transformer_norms.run.metrics import parse_row
from transformer_norms.run.summary import ENDED, Summary
from transformer_norms.storage.reading import open_file
from transformer_norms.sweep.planning import Job

FAILED = ("failed", FAILED_AT_START)
OVER = (*ENDED, *FAILED)
LOOK_EVERY, PLAIN_EVERY = 0.5, 60.0  # seconds
MOST_LINES = 12  # of runs at work that are drawn at once
_TAIL = 1 << 18  # bytes that hold the last row with a loss, and rows of probes after it


@dataclass
class JobRow:
    """The state of one job."""

    job: Job
    summary: Summary | None = None  # which was read last
    state: str = "waiting"
    step: int = 0
    steps: int = 0
    loss: float | None = None
    error: str = ""
    began: bool = False  # whether it was trained while this command watched
    start: tuple[float, int] | None = None  # the second and the step when it was first seen running

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def status(self) -> str:
        """How the run counts at the end of the sweep: finished, diverged, failed or missing."""
        summary = self.job.summary
        if summary and summary.ended:
            return summary.status
        recorded = summary is not None and summary.status == "failed"
        return "failed" if recorded or self.state in FAILED else "missing"

    @property
    def share(self) -> float:
        """The part of the job's work that is done."""
        if self.over:
            return 1.0
        return self.step / self.steps if self.steps else 0.0

    @property
    def left(self) -> str:
        if self.start is None:
            return ""
        left = time_left(self.start[0], self.step - self.start[1], self.steps - self.step)
        return f", {left} left" if left else ""

    def update(self) -> bool:
        """Reads the run folder, and returns whether the run has written its summary since."""
        summary = self.job.summary
        changed = summary not in (None, self.summary)
        if summary and changed:
            self.summary, self.state = summary, state_of(summary)
            self.step, self.steps, self.loss = summary.step, summary.steps or 0, summary.val_loss
            self.error = self.job.error.rpartition("\n")[2]
        if self.state == "running" and (last := last_loss(self.job.folder / "metrics.jsonl")):
            self.step = last["step"]
            self.loss = last.get("val/loss", last.get("train/loss"))
        return changed


class Board:
    """A context in which `add` shows jobs and `tell` notes a state that no folder holds. `follow`
    is called once with each folder whose run has begun."""

    def __init__(self, title: str, follow: Callable[[Path], None]) -> None:
        self.title, self.follow = title, follow
        self._row_of: dict[Path, JobRow] = {}  # by the job's folder
        self.screen, self.said = Screen(), set[str]()
        self.began = self.spoke = time.monotonic()
        self.done_before = 0.0  # of the runs, by earlier commands
        self.lock, self.over = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Board":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.look()
        self.screen.close()

    @property
    def rows(self) -> list[JobRow]:
        return list(self._row_of.values())

    def add(self, jobs: Sequence[Job]) -> None:
        """Shows the jobs that are not shown yet."""
        with self.lock:
            for job in jobs:
                if job.folder not in self._row_of:
                    row = self._row_of[job.folder] = JobRow(job)
                    row.update()
                    row.state = "waiting" if row.state == "failed" else row.state
                    self.done_before += row.share

    def tell(self, job: Job, state: str, error: str) -> None:
        """Notes what a launcher says of a job."""
        with self.lock:
            row = self._row_of[job.folder]
            if not row.over:
                row.state, row.error = state, error
                self._say_ended(row)

    def say(self, line: str) -> None:
        """Prints a line for a person, above the drawing if there is one."""
        self.screen.say(line)

    def say_once(self, text: str) -> None:
        """Prints the lines of a text, unless it has been printed before."""
        if text not in self.said:
            self.said.add(text)
            for line in text.splitlines():
                self.say(line)

    def look(self) -> None:
        """Reads the folders now, so that a run's end is printed before what follows from it."""
        with self.lock:
            for row in self.rows:
                if not row.over:
                    self._look_at(row)
            if self.screen.is_terminal:
                self.screen.draw(self._drawing())
            elif time.monotonic() - self.spoke > PLAIN_EVERY:
                for line in self._running():
                    self.say(line)
                self.spoke = time.monotonic()

    def _watch(self) -> None:
        while not self.over.wait(LOOK_EVERY):
            self.look()

    def _look_at(self, row: JobRow) -> None:
        changed = False
        with suppress(OSError, ValueError):  # a file that is being written, or has gone
            changed = row.update()
        if changed and not row.began:
            row.began = True
            self.follow(row.job.folder)
        if row.state == "running" and row.start is None and row.step:
            row.start = time.monotonic(), row.step
        if row.over:
            self._say_ended(row)

    def _say_ended(self, row: JobRow) -> None:
        self.spoke = time.monotonic()
        ended = sum(row.over for row in self.rows)
        result = f": {row.error}" if row.error else _loss_text(row)
        self.say(f"{ended}/{len(self.rows)}  {row.job}: {row.state}{result}{self._left()}")

    def _left(self) -> str:
        """The time that the rest of these runs takes, once one of this command's runs has ended."""
        rows = self.rows
        if not any(row.began and row.share == 1 for row in rows):
            return ""
        done = sum(row.share for row in rows)
        left = time_left(self.began, done - self.done_before, len(rows) - done)
        return f"; {left} left" if left else ""

    def _drawing(self) -> Text:
        ended = sum(row.over for row in self.rows)
        title = f"{self.title}: {ended} of {len(self.rows)} runs{self._left()}"
        return Text("\n".join([title, *self._running()[:MOST_LINES]]), no_wrap=True)

    def _running(self) -> list[str]:
        """Returns a line for each run that is trained now."""
        rows = [row for row in self.rows if row.state == "running"]
        return [f"  {r.job}: step {r.step}/{r.steps}{_loss_text(r)}{r.left}" for r in rows]


def time_left(began: float, done: float, rest: float) -> str:
    """The time that `rest` takes at the pace of what was done since `began`; '' if nothing was."""
    return clock((time.monotonic() - began) / done * rest) if done > 0 else ""


def _loss_text(row: JobRow) -> str:
    name = "validation loss" if row.over else "loss"
    return "" if row.loss is None else f", {name} {row.loss:.4f}"


def last_loss(file: Path) -> dict[str, Any] | None:
    """The last whole row with a loss of a metrics file, without reading far back."""
    try:
        with open_file(file) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
            lines = stream.read(_TAIL).splitlines()
    except (OSError, ConfigError):
        return None
    for line in reversed(lines):
        with suppress(ValueError):  # a line that is cut, at either end
            row = parse_row(line, str(file))
            if "train/loss" in row:
                return row
    return None
