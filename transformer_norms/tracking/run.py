"""A run folder in W&B: its rows as they come, and, when it has ended, its pictures."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import wandb

from transformer_norms.files import read_json
from transformer_norms.tracking.charts import drawn
from transformer_norms.tracking.description import described
from transformer_norms.tracking.parts import Mirrored
from transformer_norms.training.measures import PREFIX

_RESULTS = {"finished", "diverged"}
_ENDED = {*_RESULTS, "failed", "preempted"}
_CURVE_SECONDS = 10.0  # how long after its end a run may still be drawing its curve


class Tail:
    """The whole lines that a growing file has gained; all of them again when it was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = self._offset = 0

    def rows(self) -> Iterator[dict[str, Any]]:
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._offset = found.st_ino, 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                with suppress(ValueError):
                    yield json.loads(line)


class RunMirror(Mirrored):
    """A run folder's."""

    def __init__(self, folder: Path, mode: str) -> None:
        super().__init__(folder, mode)
        self.state["attached"] = []
        self._tail = Tail(folder / "metrics.jsonl")
        self._hidden: set[str] = set()

    def _fields(self) -> dict[str, Any]:
        self._hidden.clear()
        return described(self.place, self._summary())

    def _poll(self, last: bool) -> bool:
        summary = self._summary()  # before the rows: a final status comes after the last of them
        if not self.claim():
            return False
        for row in self._tail.rows():
            if self._missing(row["step"]):
                self._open()
                if self._missing(row["step"]):  # opening may have told what the server has
                    self._log(row)
        status = summary.get("status")
        if status in _RESULTS and not self._attach(last):
            return False
        if status in _ENDED and self.state["status"] != status:
            self._open()
        return status in _ENDED

    def _missing(self, step: int) -> bool:
        """Equal to the last one is another row of the same step, which W&B merges."""
        return step > self._mirrored and step >= self.state["step"]

    def _log(self, row: dict[str, Any]) -> None:
        plain = _plain(row)
        for key in plain.keys() - self._hidden:
            # Not by a pattern: where two match a key, W&B takes either.
            if key.startswith(f"{PREFIX}/"):
                self._run.define_metric(key, step_metric="tokens", hidden=True)
                self._hidden.add(key)
        self._run.log(plain, step=row["step"])
        self.state["step"] = row["step"]

    def _attach(self, last: bool) -> bool:
        """Once each: the curve, and what was probed as charts; false where the curve may still be
        drawn."""
        curve = self.place / "curve.svg"
        if not curve.is_file() and not last and self._ended_since() < _CURVE_SECONDS:
            return False
        pages: dict[str, str] = {}
        if "curve" not in self.state["attached"] and curve.is_file():
            pages["curve"] = curve.read_text(encoding="utf-8")
        if "probes" not in self.state["attached"]:
            pages["probes"] = drawn(Tail(self._tail.path).rows())
        if things := {f"view/{name}": _html(text) for name, text in pages.items() if text}:
            self.attach(things)
        self.state["attached"] = [*self.state["attached"], *pages]
        return True

    def _ended_since(self) -> float:
        try:
            return time.time() - (self.place / "summary.json").stat().st_mtime
        except OSError:
            return float("inf")

    def _ending(self) -> tuple[str | None, dict[str, Any]]:
        summary = self._summary()
        values = {
            key: value for key, value in summary.items() if isinstance(value, (str, int, float))
        }
        status = summary.get("status")
        if status in _RESULTS:  # a number, whose mean over a group is the share
            values["final/diverged"] = int(status == "diverged")
        return status, values

    def _summary(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            summary = read_json(self.place / "summary.json")
            return summary if isinstance(summary, dict) else {}
        return {}

    def done(self) -> str:
        return f"mirrored up to step {self.state['step']}"


def _html(text: str) -> Any:
    """W&B shows a drawing as a page; as an image it takes pixels only."""
    picture = "".join(text.partition("<svg")[1:])  # without the XML's own head
    return wandb.Html(picture, inject=False, data_is_not_path=True)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    skipped = ("step", "nonfinite")
    return {key: value for key, value in row.items() if value is not None and key not in skipped}
