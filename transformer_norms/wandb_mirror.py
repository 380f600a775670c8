"""One run folder in W&B: the same steps whether mirrored live, late, or after a kill.

What is mirrored for certain stands in `<study>/wandb/<run id>.json`. An offline part that was not
finished may lack rows that W&B still buffered, so it is thrown away and made again from the folder.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import wandb
from omegaconf import OmegaConf

from transformer_norms.files import read_json, write_json

_INIT_SECONDS = 20
_UPLOAD_SECONDS = 300
_ENDED = {"finished", "diverged", "failed", "preempted"}
_PROJECT = "transformer_norms"
_LONGEST_TAG = 64


def run_id(folder: Path) -> str:
    name = f"{folder.parent.name}/{folder.name}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


class Tail:
    """The whole lines that a growing file has gained; all of them again when it was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._offset = 0

    def rows(self) -> Iterator[dict[str, Any]]:
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
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


class FolderMirror:
    """Logs what a run folder has and W&B has not, at each `poll`; a problem becomes a log line."""

    # Of the process: one that cannot reach W&B is not made to wait for it again by each folder.
    _unreached: ClassVar[bool] = False
    _running: ClassVar[set[str]] = set()

    def __init__(self, folder: Path, mode: str) -> None:
        self.folder, self.mode, self.id = folder, mode, run_id(folder)
        self.home = folder.parent / "wandb"
        self._tail = Tail(folder / "metrics.jsonl")
        self._run: Any = None
        self._lock: Any = None
        self._mirrored = -1
        self.problem = ""
        self.state: dict[str, Any] = {"step": -1, "status": None, "parts": []}

    def poll(self) -> bool:
        """Mirrors what is there; true when the run has ended or cannot be mirrored from here."""
        if self.problem:
            return True
        try:
            return self._poll()
        except Exception as error:  # whatever W&B does, the other runs go on
            self.problem = self._say(f"{type(error).__name__}: {error}")
            return True

    def _poll(self) -> bool:
        summary = self._summary()  # before the rows: a final status comes after the last of them
        if not self.claim():
            return False
        for row in self._tail.rows():
            if self._missing(row["step"]):
                run = self._open()
                if self._missing(row["step"]):  # opening may have told what the server has
                    run.log(_plain(row), step=row["step"])
                    self.state["step"] = row["step"]
        ended = summary.get("status") in _ENDED
        if ended and self.state["status"] != summary["status"]:
            self._open()
        return ended

    def _missing(self, step: int) -> bool:
        """Equal to the last one is another row of the same step, which W&B merges."""
        return step > self._mirrored and step >= self.state["step"]

    def close(self) -> None:
        """Ends the W&B run and records what it has; only then are its rows certain."""
        try:
            if self._run is not None:
                self._finish(self._summary())
        except Exception as error:
            self.problem = self._say(f"{type(error).__name__}: {error}")
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _finish(self, summary: dict[str, Any]) -> None:
        status = summary.get("status")
        plain = {
            key: value for key, value in summary.items() if isinstance(value, (str, int, float))
        }
        self._run.summary.update(plain)
        part = Path(self._run.settings.sync_dir).name
        run, self._run = self._run, None
        self._running.discard(self.id)
        run.finish(exit_code=0 if status in {"finished", "diverged"} else 1)
        self.state.update(status=status, parts=[*self.state["parts"], part])
        write_json(self.home / f"{self.id}.json", self.state)

    def claim(self) -> bool:
        """One process at a time mirrors a folder; what an earlier one left half done goes."""
        if self._lock is not None:
            return True
        self.home.mkdir(exist_ok=True)
        lock = open(self.home / f"{self.id}.lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        self._lock = lock
        with suppress(OSError, ValueError):
            self.state = read_json(self.home / f"{self.id}.json")
        self._mirrored = self.state["step"]
        for part in self.home.glob(f"offline-run-*-{self.id}*"):
            if part.name not in self.state["parts"]:
                shutil.rmtree(part, ignore_errors=True)
        return True

    def _open(self) -> Any:
        if self._run is None:
            # Uploaded later, an offline part would come after newer steps and be dropped.
            online = self.mode == "online" and not self.waiting() and not self._unreached
            try:
                self._run = self._init("online" if online else "offline")
            except Exception as error:
                # W&B holds on to the id of a run that failed to start until it is torn down,
                # which would end the runs of other folders too; theirs go on, `sync` does this.
                if not online or self._running:
                    raise
                self._say(f"W&B is not reached, offline instead: {type(error).__name__}: {error}")
                FolderMirror._unreached = True
                wandb.teardown()
                self._run = self._init("offline")
            self._running.add(self.id)
            self._mirrored = max(self._mirrored, self._run.starting_step - 1)
            self._run.define_metric("*", step_metric="tokens")
        return self._run

    def _init(self, mode: str) -> Any:
        choices = self._summary().get("choices") or {}
        config: Any = {}
        with suppress(FileNotFoundError):
            loaded = OmegaConf.load(self.folder / "config.yaml")
            config = OmegaConf.to_container(loaded, resolve=False)
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            id=self.id,
            resume="allow",
            reinit="create_new",
            name=self.folder.name,
            group=self.folder.parent.name,
            job_type="train",
            tags=[f"{axis}={value}"[:_LONGEST_TAG] for axis, value in choices.items()],
            config={**config, "choices": choices},
            dir=self.folder.parent,
            mode=mode,  # type: ignore[arg-type]
            settings=wandb.Settings(
                silent=True,
                console="off",
                symlink=False,
                disable_git=True,
                save_code=False,
                x_save_requirements=False,
                x_disable_stats=True,
                x_disable_meta=True,
                init_timeout=_INIT_SECONDS,
                finish_timeout=_UPLOAD_SECONDS,
                finish_timeout_raises=True,
            ),
        )

    def waiting(self) -> list[Path]:
        """Finished offline parts that no upload has marked, oldest first."""
        parts = [self.home / name for name in self.state["parts"] if name.startswith("offline-")]
        return [part for part in parts if part.is_dir() and not list(part.glob("*.synced"))]

    def _summary(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            summary = read_json(self.folder / "summary.json")
            return summary if isinstance(summary, dict) else {}
        return {}

    def upload(self) -> None:
        """W&B's own command for the offline parts; it marks what it has uploaded."""
        for part in self.waiting():
            if self._unreached:
                return
            try:
                subprocess.run(
                    [sys.executable, "-m", "wandb", "sync", str(part)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=True,
                    timeout=_UPLOAD_SECONDS,
                )
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                FolderMirror._unreached = True
                self._say(f"{error} {(error.stderr or b'').decode(errors='replace')}")

    def _say(self, text: str) -> str:
        text = " ".join(text.split())
        if secret := os.environ.get("WANDB_API_KEY"):
            text = text.replace(secret, "***")
        with suppress(OSError), open(self.home / "mirror.log", "a") as log:
            log.write(f"{self.folder.name}: {text}\n")
        return text


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    skipped = ("step", "nonfinite")
    return {key: value for key, value in row.items() if value is not None and key not in skipped}


def mirror_folder(folder: Path, mode: str) -> str:
    """All that is missing of a run folder, once; says what was done. RuntimeError says why not."""
    one = FolderMirror(folder, mode)
    if not one.claim():
        return "another process is mirroring it"
    try:
        if mode == "online":
            one.upload()
        one.poll()
    finally:
        one.close()
    if one.problem:
        raise RuntimeError(one.problem)
    done = f"mirrored up to step {one.state['step']}"
    if not one.waiting():
        return done
    if mode == "online":
        raise RuntimeError(f"{done}, but W&B is not reached: {one.home / 'mirror.log'}")
    return f"{done}; its upload waits for `sync` online"
