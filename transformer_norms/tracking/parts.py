"""One run of W&B, kept as parts: what each mirroring process finished.

What is mirrored for certain stands in `<study>/wandb/<run id>.json`. An offline part that was not
finished may lack rows that W&B still buffered, so it is thrown away and made again from the folder.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import wandb

from transformer_norms.files import read_json, write_json
from transformer_norms.locks import take_lock

_INIT_SECONDS = 20
_UPLOAD_SECONDS = 300
_PROJECT = "transformer_norms"
_OWN_DATA_DIR = "WANDB_DATA_DIR" not in os.environ


def run_id(place: Path) -> str:
    name = f"{place.parent.name}/{place.name}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


class Mirrored:
    """Logs what `place` has and W&B has not, at each `poll`; a problem becomes a log line.

    A child says what there is: `_fields` for wandb.init, `_poll` to log it, `_ending` for what the
    W&B run ends with. `place` is a path in a study, from whose two last names the run's id is made.
    """

    # Of the process: one that cannot reach W&B is not made to wait for it again by each folder.
    _unreached: ClassVar[bool] = False
    _running: ClassVar[set[str]] = set()

    def __init__(self, place: Path, mode: str) -> None:
        self.place, self.mode, self.id = place, mode, run_id(place)
        self.home = place.parent / "wandb"
        self._run: Any = None
        self._lock: Any = None
        self._mirrored = -1
        self.problem = ""
        self.state: dict[str, Any] = {"step": -1, "attached_at": -1, "status": None, "parts": []}

    def _fields(self) -> dict[str, Any]:
        raise NotImplementedError

    def _poll(self, last: bool) -> bool:
        raise NotImplementedError

    def _ending(self) -> tuple[str | None, dict[str, Any]]:
        """The status, and values for the summary."""
        raise NotImplementedError

    def poll(self, last: bool = False) -> bool:
        """Mirrors what is there; true when that was all or cannot be mirrored from here. At the
        `last` look nothing is waited for."""
        if self.problem:
            return True
        try:
            return self._poll(last)
        except Exception as error:  # whatever W&B does, the other runs go on
            self.problem = self._say(f"{type(error).__name__}: {error}")
            return True

    def close(self) -> None:
        """Ends the W&B run and records what it has; only then are its rows certain."""
        try:
            if self._run is not None:
                self._finish()
        except Exception as error:
            self.problem = self._say(f"{type(error).__name__}: {error}")
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _finish(self) -> None:
        status, values = self._ending()
        self._run.summary.update(values)
        part = Path(self._run.settings.sync_dir).name
        run, self._run = self._run, None
        self._running.discard(self.id)
        run.finish(exit_code=0 if status in {"finished", "diverged"} else 1)
        self.state.update(status=status, parts=[*self.state["parts"], part])
        write_json(self.home / f"{self.id}.json", self.state)

    def attach(self, things: dict[str, Any]) -> None:
        """Logs what is no metric, in a row of its own behind all others."""
        run = self._open()
        step = max(self._mirrored, self.state["step"], self.state["attached_at"]) + 1
        run.log(things, step=step)
        self.state["attached_at"] = step

    def claim(self) -> bool:
        """One process at a time mirrors a place; what an earlier one left half done goes."""
        if self._lock is not None:
            return True
        self.home.mkdir(exist_ok=True)
        file = self.home / f"{self.id}.lock"
        file.touch()
        self._lock = take_lock(file)
        if self._lock is None:
            return False
        with suppress(OSError, ValueError):
            self.state |= read_json(self.home / f"{self.id}.json")
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
                Mirrored._unreached = True
                wandb.teardown()
                self._run = self._init("offline")
            self._running.add(self.id)
            self._mirrored = max(self._mirrored, self._run.starting_step - 1)
            self._run.define_metric("*", step_metric="tokens")
        return self._run

    def _init(self, mode: str) -> Any:
        if _OWN_DATA_DIR:  # what W&B keeps of tables until they are uploaded, else in one's home
            os.environ["WANDB_DATA_DIR"] = str(self.home)
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            id=self.id,
            resume="allow",
            reinit="create_new",
            group=self.place.parent.name,
            dir=self.place.parent,
            mode=mode,  # type: ignore[arg-type]
            **self._fields(),
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
                Mirrored._unreached = True
                self._say(f"{error} {(error.stderr or b'').decode(errors='replace')}")

    def _say(self, text: str) -> str:
        text = " ".join(text.split())
        if secret := os.environ.get("WANDB_API_KEY"):
            text = text.replace(secret, "***")
        with suppress(OSError), open(self.home / "mirror.log", "a") as log:
            log.write(f"{self.place.name}: {text}\n")
        return text
