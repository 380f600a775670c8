"""A study's report in W&B: one run beside the study's, with what the report wrote."""

import csv
import hashlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import wandb

from transformer_norms.tracking.description import questions
from transformer_norms.tracking.parts import Mirrored

_COUNTED = ("result", "tune")  # stages
_NAMES = "study run variant identity commit data_fingerprint batch_chain".split()
_FILES = ("report.html", "curves.png", "results.csv")


class ReportMirror(Mirrored):
    """A study's; mirrored again whenever its files have changed."""

    def __init__(self, study: Path, mode: str) -> None:
        super().__init__(study / "report", mode)
        self.study = study
        self.state["digest"] = ""

    def _fields(self) -> dict[str, Any]:
        return {
            "name": self.study.name,
            "job_type": "report",
            "notes": questions(self.study) or None,
            "config": {"study": self.study.name, "stage": "report"},
        }

    def _poll(self, last: bool) -> bool:
        files = report_files(self.study)
        if not files:
            return True
        if not self.claim():
            return False
        now = _digest(files)
        if now != self.state["digest"]:
            self.attach({f"view/{file.stem}": _shown(file) for file in files})
            self.state["digest"] = now
        return True

    def _ending(self) -> tuple[str | None, dict[str, Any]]:
        """How many runs of the study have ended in which way."""
        counts: dict[str, Any] = {}
        with suppress(OSError, ValueError, KeyError):
            rows = _rows(self.study / "results.csv")
            runs = {row["run"]: row["status"] for row in rows if row["stage"] in _COUNTED}
            counts = {"runs": len(runs), **Counter(runs.values())}
        return "finished", counts

    def done(self) -> str:
        return "the report is mirrored"


def report_files(study: Path) -> list[Path]:
    return [study / name for name in _FILES if (study / name).is_file()]


def _digest(files: list[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.name} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]


def _shown(file: Path) -> Any:
    if file.suffix == ".html":
        return wandb.Html(file.read_text(encoding="utf-8"), inject=False, data_is_not_path=True)
    return wandb.Image(str(file)) if file.suffix == ".png" else _table(_rows(file))


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def _table(rows: list[dict[str, str]]) -> Any:
    """Columns of numbers where all that stands in them is numbers; an empty cell is none."""
    columns: list[str | int] = list(rows[0]) if rows else []
    cells = [
        [row[str(c)] or None for row in rows]
        if c in _NAMES  # of which some are all digits
        else _typed([row[str(c)] for row in rows])
        for c in columns
    ]
    data = [list(row) for row in zip(*cells, strict=True)]
    return wandb.Table(columns=columns, data=data)


def _typed(cells: list[str]) -> list[Any]:
    try:
        return [float(cell) if cell else None for cell in cells]
    except ValueError:
        return [cell or None for cell in cells]
