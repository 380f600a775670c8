"""Shows one folder as one W&B run, which is its view.

Live mirroring, `sync` and repair are the same `update`. A view that is not complete is written anew
from the folder. `<study>/wandb/<id>.json` holds the fingerprint of what a complete view shows.
"""

import hashlib
import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import wandb

from transformer_norms.errors import ConfigError, describe_error, hide_secrets
from transformer_norms.run.metrics import LONGEST, open_plain
from transformer_norms.storage.files import as_storage_error, remove_leftovers, write_json
from transformer_norms.storage.locks import Lock, take_lock
from transformer_norms.storage.reading import read_bytes, read_json
from transformer_norms.tracking import PROJECT
from transformer_norms.training.measures import PREFIX

_INIT_SECONDS = 20
_UPLOAD_SECONDS = 300
_OWN_DATA_DIR = "WANDB_DATA_DIR" not in os.environ


class View(ABC):
    """Shows `files`, in the W&B group of `study`. `update` never raises: what fails becomes
    `problem` and a line in `<study>/wandb/mirror.log`. `kept` is what a later view of the folder
    takes over: the `agent` whose W&B run it is, whether the `model` is shown, and the wishes."""

    # Shared by the process: after one failed attempt nothing waits for W&B's server again.
    unreached: ClassVar[bool] = False
    open_ids: ClassVar[set[str]] = set()

    def __init__(
        self, study: Path, name: str, files: list[Path], mode: str, kept: Mapping[str, Any]
    ) -> None:
        self.study, self.name, self.files, self.mode = study, name, files, mode
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
    def fields(self) -> dict[str, Any]:
        """Returns the arguments of wandb.init that say what is shown."""

    @abstractmethod
    def machine(self) -> dict[str, Any]:
        """Returns W&B's settings of the machine, the code and the process that are shown."""

    @abstractmethod
    def pictures(self) -> dict[str, Any]:
        """Returns what is shown beside the rows, for run.log."""

    def totals(self) -> dict[str, Any]:
        """Returns the values of the W&B run's summary."""
        return {}

    def command(self) -> list[str]:
        """Returns the words of the command that is shown."""
        return []

    def console(self, row: Mapping[str, Any] | None = None) -> str:
        """Returns the lines of the W&B run's log for a row; without a row, those that it ends with.
        An empty text is no line."""
        return ""

    def model(self) -> Any:
        """Returns the artifact of the model, or None."""
        return None

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
            # The folder is read first: what is written meanwhile makes the view incomplete.
            done = last or self.ended()
            fingerprint = self._fingerprint() if done else ""
            if self._run is not None or not (done and self._is_complete(fingerprint)):
                self._log_rows()
                if done:
                    self._complete(fingerprint)
        except Exception as error:  # the views of other folders go on
            known = as_storage_error(error, self.home) or error
            self.problem, done = self._note(known), True
            self.code = getattr(known, "exit_code", 1)
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
            if file.is_symlink():
                raise ConfigError(f"{file}: is a link, and nothing is written through one")
            file.touch()
            self._lock = take_lock(file)
            if self._lock is not None:
                with suppress(ConfigError):
                    state = read_json(self._record)
                    self.state = state if isinstance(state, dict) else self.state
                self.kept = self.state.get("kept", {}) | self.kept
        return self._lock is not None

    def _release(self) -> None:
        with suppress(Exception):
            self._finish()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _fingerprint(self) -> str:
        shown = self.fields() | self.kept
        digest = hashlib.sha256(json.dumps(shown, default=str).encode())
        for file in self.files:
            if file.is_file():
                digest.update(file.name.encode() + read_bytes(file, LONGEST))
        return digest.hexdigest()

    def _is_complete(self, fingerprint: str) -> bool:
        if any(self.home.glob(f"offline-run-*-{self.id}/*.synced")):
            self.state["mode"] = "online"  # `wandb sync` has uploaded it
        enough = {"online", self.mode}
        return self.state.get("fingerprint") == fingerprint and self.state["mode"] in enough

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
            lines, step = self.console(row), row.pop("step")
            self._run.log(row, step=step)
            self._write_console(lines)
            self.state["step"] = step

    def _write_console(self, lines: str) -> None:
        if lines:
            self._run.write_logs(lines)

    def _open(self) -> None:
        """Starts the W&B run. It replaces all that W&B holds under the id: `resume` is unset."""
        self._finish()
        self.state = {"mode": "", "step": -1} | ({"kept": self.kept} if self.kept else {})
        write_json(self._record, self.state)
        for part in self.home.glob(f"*run-*-{self.id}"):
            shutil.rmtree(part, ignore_errors=True)
        mode = "offline" if View.unreached else self.mode
        fields = self.fields()
        try:
            self._run = self._init(mode, fields)
        except Exception as error:
            # W&B keeps the id of a run that failed to start until its service is torn down, which
            # would end all open runs.
            if mode == "offline" or self.open_ids:
                raise
            self._note(error, "W&B is not reached, offline instead: ")
            View.unreached, mode = True, "offline"
            wandb.teardown()
            self._run = self._init(mode, fields)
        self.open_ids.add(self.id)
        self._hidden.clear()
        self.state["mode"] = mode
        self._run.define_metric("*", step_metric="tokens")

    def _init(self, mode: Any, fields: Mapping[str, Any]) -> Any:
        if _OWN_DATA_DIR:  # W&B keeps tables there until they are uploaded; the default is ~
            os.environ["WANDB_DATA_DIR"] = str(self.home)
        os.environ.pop("WANDB_RESUME", None)  # which would go on where the old run ends
        agent = self.kept.get("agent", {})
        ours, sys.argv = sys.argv, self.command() or sys.argv  # W&B shows the words of sys.argv
        try:
            return wandb.init(
                project=self.kept.get("project") or PROJECT,
                entity=self.kept.get("entity"),
                id=self.id,
                reinit="create_new",  # else wandb.init returns a run that is open already
                group=self.kept.get("group") or self.study.name,
                dir=self.study,
                mode=mode,
                **fields,
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    symlink=False,
                    sweep_id=agent.get("sweep_id"),
                    init_timeout=_INIT_SECONDS,
                    finish_timeout=_UPLOAD_SECONDS,
                    finish_timeout_raises=True,
                    **self.machine(),
                ),
            )
        finally:
            sys.argv = ours

    def _complete(self, fingerprint: str) -> None:
        if pictures := self.pictures():
            self._run.log(pictures, step=self.state["step"] + 1)
        self._write_console(self.console())
        if model := self.model():
            self._run.log_artifact(model, aliases=["final", f"step-{self.state['step']}"])
        totals = self.totals()
        self._run.summary.update(totals)
        self._finish(0 if totals.get("status", "finished") in ("finished", "diverged") else 1)
        # Only now does W&B hold the rows for certain.
        self.state["fingerprint"] = fingerprint
        write_json(self._record, self.state)

    def _finish(self, code: int = 1) -> None:
        run, self._run = self._run, None
        self.open_ids.discard(self.id)
        if run is not None:
            run.finish(exit_code=code)

    def _note(self, error: Exception, text: str = "") -> str:
        """Writes one line to mirror.log and returns it."""
        line = hide_secrets(text + describe_error(error))
        file = self.home / "mirror.log"
        with suppress(OSError), open(file, "a", encoding="utf-8", opener=open_plain) as log:
            log.write(f"{self.name}: {line}\n")
        return line
