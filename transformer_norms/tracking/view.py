"""Shows one folder as one W&B run, which is its view.

Live mirroring and `sync` are the same `update`. `<study>/wandb/<key>.json` holds what a complete
view shows. A view that is not complete is written whole, from the folder.
"""

import hashlib
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import wandb

from transformer_norms.errors import ConfigError, describe_error
from transformer_norms.storage.files import as_storage_error, remove_leftovers, write_json
from transformer_norms.storage.locks import Lock, take_lock
from transformer_norms.storage.reading import is_there, read_json
from transformer_norms.tracking import PROJECT
from transformer_norms.training.measures import PREFIX

_INIT_SECONDS = 20
_UPLOAD_SECONDS = 300
_OWN_DATA_DIR = "WANDB_DATA_DIR" not in os.environ
_IN_LOG = {"train/loss": "loss", "val/loss": "val", "test/loss": "test"}


@dataclass(frozen=True)
class Closing:
    """What a view shows after its rows."""

    pictures: dict[str, Any]  # for run.log
    totals: dict[str, Any] = field(default_factory=dict)  # of the W&B run's summary
    lines: str = ""  # of the W&B run's log
    model: Any = None  # its artifact


class View(ABC):
    """Shows `files`, in the W&B group of `study`. `update` never raises: what fails becomes
    `problem` and a line in `<study>/wandb/mirror.log`. `kept` is what a later view of the folder
    takes over: the `agent` whose W&B run it is, whether the `model` is shown, and the wishes."""

    # Shared by the process: after one failed attempt nothing waits for W&B's server again.
    unreached: ClassVar[bool] = False

    def __init__(
        self, study: Path, name: str, files: list[Path], mode: str, kept: Mapping[str, Any]
    ) -> None:
        self.study, self.name, self.files = study, name, files
        self.mode: Any = mode
        self.key = hashlib.sha256(f"{study.name}/{name}".encode()).hexdigest()[:16]
        self.home = study / "wandb"
        self._record = self.home / f"{self.key}.json"
        self.state: dict[str, Any] = {}
        self.kept = dict(kept)
        self.problem, self.code = "", 0  # what failed, and the exit code that says so
        self._run: Any = None
        self._lock: Lock | None = None
        self._hidden: set[str] = set()

    @abstractmethod
    def opening(self) -> dict[str, Any]:
        """Returns the arguments of wandb.init that say what is shown. `settings` are W&B's of the
        machine and the code, and `command` has the words of the command."""

    @abstractmethod
    def closing(self) -> Closing: ...

    def ended(self) -> bool:
        """Whether nothing more is to come."""
        return True

    def new_rows(self, anew: bool) -> Iterable[dict[str, Any]] | None:
        """Returns the rows that are new, or all; None if earlier ones have been replaced."""
        return ()

    def update(self, last: bool = False) -> bool:
        """Shows what is new. Returns True when the view is complete or has failed; the `last` call
        completes it with what there is."""
        try:
            if not self._claim():
                return False
            # The times are read first: what is written meanwhile makes the view incomplete.
            done, shown = last or self.ended(), self._shown()
            if self._run is not None or not (done and self._is_complete(shown)):
                self._log_rows()
                if done:
                    self._complete(shown)
        except Exception as error:  # the views of other folders go on
            known = as_storage_error(error, self.home) or error
            self.problem, self.code = describe_error(known), getattr(known, "exit_code", 1)
            done = True
            with suppress(OSError), open(self.home / "mirror.log", "a", encoding="utf-8") as log:
                log.write(f"{self.name}: {self.problem}\n")
        if done:
            self._release()
        return done

    @property
    def id(self) -> str:
        """The id of the W&B run: that of a sweep's agent, else a hash of the folder's name."""
        return str(self.kept.get("agent", {}).get("run_id", self.key))

    def _claim(self) -> bool:
        """Whether this process may write the view: one process at a time does. Reads what the last
        one has left."""
        if self._lock is None:
            self.home.mkdir(exist_ok=True)
            remove_leftovers(self.home)
            file = self.home / f"{self.key}.lock"
            file.touch()
            self._lock = take_lock(file)
            if self._lock is not None:
                with suppress(ConfigError):
                    self.state = read_json(self._record)
                self.kept = self.state.get("kept", {}) | self.kept
        return self._lock is not None

    def _release(self) -> None:
        with suppress(Exception):
            self._finish()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _shown(self) -> dict[str, Any]:
        """Returns what tells a view of the folder as it is now from an earlier one."""
        return {file.name: file.stat().st_mtime_ns for file in self.files if is_there(file)}

    def _is_complete(self, shown: Mapping[str, Any]) -> bool:
        if any(self.home.glob(f"offline-run-*-{self.id}/*.synced")):
            self.state["mode"] = "online"  # `wandb sync` has uploaded it
        known = self.state.get("shown"), self.state.get("kept", {})
        return known == (shown, self.kept) and self.state["mode"] in ("online", self.mode)

    def _log_rows(self) -> None:
        rows = None if self._run is None else self.new_rows(anew=False)
        if rows is None:
            self._open()
            rows = self.new_rows(anew=True) or ()
        for row in rows:
            for key in row.keys() - self._hidden:
                # Keys are named in full: where two patterns match a key, W&B takes either.
                if key.startswith(f"{PREFIX}/"):
                    self._run.define_metric(key, step_metric="tokens", hidden=True)
                    self._hidden.add(key)
            losses = [f"{name} {row[key]:.4f}" for key, name in _IN_LOG.items() if key in row]
            self.state["step"] = step = row.pop("step")
            self._run.log(row, step=step)
            if losses:
                self._run.write_logs("  ".join([f"step {step}", *losses]))

    def _open(self) -> None:
        """Starts the W&B run. It replaces all that W&B holds under the id: `resume` is unset."""
        self._finish()
        self.state = {"mode": self.mode, "step": -1, "kept": self.kept}
        write_json(self._record, self.state)
        for part in self.home.glob(f"*run-*-{self.id}"):
            shutil.rmtree(part, ignore_errors=True)
        fields = self.opening()
        if View.unreached and self.mode == "online":
            raise ConnectionError("W&B was not reached before")
        try:
            self._run = self._init(**fields)
        except Exception:
            View.unreached = True
            raise
        self._hidden.clear()
        self._run.define_metric("*", step_metric="tokens")

    def _init(self, *, settings: Mapping[str, Any], command: list[str], **fields: Any) -> Any:
        if _OWN_DATA_DIR:  # W&B keeps tables there until they are uploaded; the default is ~
            os.environ["WANDB_DATA_DIR"] = str(self.home)
        os.environ.pop("WANDB_RESUME", None)  # which would go on where the old run ends
        ours, sys.argv = sys.argv, command or sys.argv  # W&B shows the words of sys.argv
        try:
            return wandb.init(
                project=self.kept.get("project") or PROJECT,
                entity=self.kept.get("entity"),
                id=self.id,
                reinit="create_new",  # else wandb.init returns a run that is open already
                group=self.kept.get("group") or self.study.name,
                dir=self.study,
                mode=self.mode,
                **fields,
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    symlink=False,
                    sweep_id=self.kept.get("agent", {}).get("sweep_id"),
                    init_timeout=_INIT_SECONDS,
                    finish_timeout=_UPLOAD_SECONDS,
                    finish_timeout_raises=True,
                    **settings,
                ),
            )
        finally:
            sys.argv = ours

    def _complete(self, shown: dict[str, Any]) -> None:
        end, step = self.closing(), self.state["step"]
        if end.pictures:
            self._run.log(end.pictures, step=step + 1)
        if end.lines:
            self._run.write_logs(end.lines)
        if end.model:
            self._run.log_artifact(end.model, aliases=["final", f"step-{step}"])
        self._run.summary.update(end.totals)
        self._finish(0 if end.totals.get("status", "finished") in ("finished", "diverged") else 1)
        # Only now does W&B hold the rows for certain.
        self.state["shown"] = shown
        write_json(self._record, self.state)

    def _finish(self, code: int = 1) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=code)
