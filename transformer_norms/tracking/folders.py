"""Reads run folders and reports for W&B: names to group by, rows, totals, drawings."""

import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import wandb

from transformer_norms.comparison.sweep_record import PlannedRun, SweepRecord, label, read_record
from transformer_norms.errors import ConfigError
from transformer_norms.run.failure import failure
from transformer_norms.run.folder import Attempts, state_of
from transformer_norms.run.identity import digest
from transformer_norms.run.metrics import parse_row
from transformer_norms.run.reader import SavedRun
from transformer_norms.run.summary import Summary, read_summary
from transformer_norms.storage.manifest import MANIFEST, seal_without
from transformer_norms.storage.reading import open_file, read_json, read_text
from transformer_norms.tracking.view import Closing, View

_LONGEST_TAG = 64
_NO_MACHINE = {"x_disable_meta": True, "x_disable_stats": True, "x_save_requirements": False,
               "disable_git": True, "disable_code": True, "save_code": False}  # fmt: skip


class RunView(View):
    """Shows a run folder: its rows as they come, then its curve."""

    def __init__(self, folder: Path, mode: str, kept: Mapping[str, Any] = {}) -> None:
        self.folder = folder
        self._file: Any = None
        self.metrics, self.curve = folder / "metrics.jsonl", folder / "curve.svg"
        files = [self.metrics, folder / "summary.json", self.curve]
        super().__init__(folder.parent, folder.name, files, mode, kept)

    def opening(self) -> dict[str, Any]:
        """The config has keys to group by (`variant`, `stage`, ...) and the run's own keys."""
        run = SavedRun(self.folder)
        plan, record = _plan_of(run) or (None, None)
        stage = plan.stage if plan else "train"
        groups = {
            "variant": label(plan.variant) if plan else _variant_of(run),
            "stage": stage,
            "identity": run.summary.identity,
            "commit": run.summary.commit,
            "versions": run.summary.versions,
            **self.kept.get("agent", {}).get("parameters", {}),
        }
        choices = [f"{axis}={value}" for axis, value in run.config["choices"].items()]
        asked = self.kept.get("tags", "").split(",")
        command = shlex.split(str(run.summary.process.get("command", "")))
        return {
            "name": self.kept.get("name") or self.name,
            "job_type": stage,
            "tags": [*map(_tag, filter(None, dict.fromkeys([*choices, *asked])))],
            "notes": self.kept.get("notes") or (record.question if record else None),
            "config": {**run.config, **groups},
            "command": command,
            "settings": _machine(run.summary) | ({"program": command[0]} if command else {}),
        }

    def ended(self) -> bool:
        """A result's curve is drawn after its last summary is written."""
        if (summary := read_summary(self.folder)) is None:
            return False
        stopped = summary.status in ("failed", "preempted")
        return stopped or (summary.ended and self.curve.is_file())

    def new_rows(self, anew: bool) -> Iterator[dict[str, Any]] | None:
        if self._file is None or anew:
            if not self.metrics.is_file():
                return iter(())
            self._file = open_file(self.metrics)
        elif not os.path.samestat(os.fstat(self._file.fileno()), self.metrics.stat()):
            return None
        return self._read_rows()

    def _read_rows(self) -> Iterator[dict[str, Any]]:
        """Yields each whole line without nulls, which mark numbers that are not finite."""
        while (line := self._file.readline()).endswith(b"\n"):
            row = parse_row(line, str(self.metrics))
            yield {k: v for k, v in row.items() if v is not None and k != "nonfinite"}
        self._file.seek(-len(line), os.SEEK_CUR)

    def closing(self) -> Closing:
        run = SavedRun(self.folder)
        summary = run.summary
        curve = run.ended and self.curve.is_file()
        totals = {k: v for k, v in summary.values().items() if isinstance(v, (str, int, float))}
        if summary.ended:  # a number: its mean over a group is the share
            totals["final/diverged"] = int(summary.status == "diverged")
        keeps = self.kept.get("model") or run.config["tracking"].get("model") == "final"
        return Closing(
            {"view/curve": _drawing(read_text(self.curve))} if curve else {},
            totals,
            "\n".join(_closing_lines(summary)),
            _model_artifact(run, self.id) if keeps and run.finished else None,
        )


class ReportView(View):
    """Shows the report of a study: its page, which has all results, and its curves."""

    def __init__(self, study: Path, mode: str, kept: Mapping[str, Any] = {}) -> None:
        super().__init__(study, "report", [study / "report.html", study / "curves.svg"], mode, kept)

    def opening(self) -> dict[str, Any]:
        questions = dict.fromkeys(record.question for record in _records(self.study))
        return {
            "name": self.study.name,
            "job_type": "report",
            "notes": " ".join(questions) or None,
            "config": {"study": self.study.name, "stage": "report"},
            "command": [],
            "settings": _NO_MACHINE,
        }

    def closing(self) -> Closing:
        page, curves = self.files
        pictures = {"view/report": _page(read_text(page))}
        if curves.is_file():
            pictures["view/curves"] = _drawing(read_text(curves))
        return Closing(pictures)


def view_of(folder: Path, mode: str, kept: Mapping[str, Any] = {}) -> View:
    is_run = any((folder / name).is_file() for name in ("summary.json", "metrics.jsonl"))
    return (RunView if is_run else ReportView)(folder, mode, kept)


def _machine(summary: Summary) -> dict[str, Any]:
    """Returns W&B's settings of the machine and the code. W&B measures the process that trains,
    while there is one on this machine. Later the host and the commit of the record are all that is
    known for certain."""
    process, host = summary.process.get("pid"), summary.process.get("host")
    shown = {**_NO_MACHINE, "host": host}
    if summary.commit:
        shown |= {"disable_git": False, "git_commit": summary.commit}
        shown |= {"git_root": str(Path(__file__).parents[2])}
    if process and host == socket.gethostname() and state_of(summary) == "running":
        del shown["disable_code"], shown["save_code"]  # the environment decides
        shown |= {"x_disable_meta": False, "x_disable_stats": False, "x_stats_pid": process}
        shown |= {"x_save_requirements": True}
    return shown


def _closing_lines(summary: Summary) -> list[str]:
    lines = [f"warning: {line}" for line in summary.warnings]
    if summary.diverged:
        lines.append(f"diverged: {summary.diverged}")
    elif summary.status == "finished" and (why := failure(summary, "val_loss")):
        lines.append(f"failed to train: {why}")
    losses = [f"{name} {getattr(summary, name):.4f}" for name in ("val_loss", "test_loss")
              if getattr(summary, name) is not None]  # fmt: skip
    lines += [summary.error] if summary.error else []
    return [*lines, "  ".join([f"{summary.status} at step {summary.step}", *losses])]


def _model_artifact(run: SavedRun, name: str) -> Any:
    """Returns an artifact that loads as the run does: its files without rows and optimizer. W&B
    reads the weights where they lie, and copies the rest. None: the run has no checkpoint."""
    from transformer_norms.run import checkpoint  # imports torch

    identity = run.summary.identity
    newest = checkpoint.newest(run.folder / "checkpoints", identity, lambda line: None)
    if newest is None:
        return None
    about = {"run": run.folder.name, "step": newest.step, "val_loss": run.summary.val_loss}
    artifact = wandb.Artifact(f"model-{name}", type="model", metadata=about)
    for file in ("config.yaml", "tokenizer.json", "summary.json"):
        artifact.add_file(str(run.folder / file))
    inside = newest.path.relative_to(run.folder)
    for file in ("state.json", "model.safetensors"):
        artifact.add_file(str(newest.path / file), str(inside / file), policy="immutable")
    manifest = read_json(newest.path / MANIFEST)
    with artifact.new_file(str(inside / MANIFEST), "wb") as written:
        written.write(seal_without(manifest, "optimizer.safetensors"))
    return artifact


def _plan_of(run: SavedRun) -> tuple[PlannedRun, SweepRecord] | None:
    """Returns a sweep's plan of the run, and the sweep. A plan of a result goes before another
    sweep's plan of a tuning run."""
    study, identity = run.folder.parent, run.summary.identity
    folders = Attempts(study)
    plans = [
        (plan, record)
        for record in _records(study)
        for plan in record.runs
        if plan.identity == identity and run.folder in plan.attempts(folders)
    ]
    return min(plans, key=lambda plan: plan[0].stage != "result", default=None)


def _records(study: Path) -> Iterator[SweepRecord]:
    for path in sorted(study.glob("sweep-*.json")):
        with suppress(ConfigError):  # an unreadable record keeps no run from W&B
            yield read_record(path)


def _variant_of(run: SavedRun) -> str:
    """Names a run that no sweep planned without its seed, and with a hash of all other keys, so
    that a group differs in nothing but seeds: `rmsnorm-post-tiny-3f2a`."""
    name = re.sub(r"(-s\d+)?-[0-9a-f]{8}(-from-\w+)?(-\d+)?$", "", run.folder.name)
    return f"{name}-{digest(run.settings)[:4]}"


def _tag(text: str) -> str:
    """Cuts a long text, such as a typed equation, and ends it with a hash, so that tags differ."""
    return text if len(text) <= _LONGEST_TAG else f"{text[: _LONGEST_TAG - 5]}~{digest(text)[:4]}"


def _page(html: str) -> Any:
    return wandb.Html(html, inject=False, data_is_not_path=True)


def _drawing(svg: str) -> Any:
    """A drawing as a page, without the head of an XML file: W&B's own images are pixels."""
    return _page("".join(svg.partition("<svg")[1:]))
