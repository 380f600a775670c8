"""Shows run folders in W&B by one background process per command; here are both ends of its pipe.

Training names folders to that process. Training never imports wandb and never waits for it. What
the process could not finish, `python -m transformer_norms.tracking sync FOLDER` does later.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformer_norms import processes, signals
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Say, say
from transformer_norms.run.folder import path_text
from transformer_norms.tracking import PROJECT
from transformer_norms.tracking.wishes import resolve_mode, wishes

_EXIT_SECONDS = 5.0
_LONG_EXIT_SECONDS = 300.0  # for a model's upload, and for an agent: it decides by what W&B has
_ORPHAN_SECONDS = 60  # after the command was killed
_POLL_SECONDS = 0.5
_UNUSED = ("WANDB_DIR", "WANDB_RUN_ID", "WANDB_JOB_TYPE", "WANDB_RESUME")  # a folder decides these


class Mirror:
    """Names folders to the background process, and says where they go and what did not get there.
    Raises ConfigError where W&B would take nothing, and ModuleNotFoundError where a mode is typed
    and wandb is not installed. After that it neither raises nor blocks."""

    def __init__(self, tracking: Mapping[str, Any], say: Say = say) -> None:
        self.mode, self._say = resolve_mode(tracking.get("mode", "disabled"), os.environ), say
        self.tracking, asked = tracking, wishes(tracking, os.environ)
        project = asked.get("project", PROJECT)
        if self.mode != "disabled" and re.search(r"[/\\#?%:]|.{129}", project):
            key = "tracking.project" if project == tracking.get("project") else "WANDB_PROJECT"
            rule = "a W&B project has up to 128 characters, none of /\\#?%:"
            raise ConfigError(f"{key}={project}: {rule}; its owner is tracking.entity=NAME")
        self._project = "/".join(filter(None, [asked.get("entity"), project]))
        self._absent = self.mode != "disabled" and find_spec("wandb") is None
        if self._absent and tracking["mode"] != "auto":
            raise ModuleNotFoundError(name="wandb")
        waits = tracking.get("model", "none") != "none" or processes.has_agent()
        self._patience = _LONG_EXIT_SECONDS if waits else _EXIT_SECONDS
        self._named: set[Path] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def follow(self, folder: Path) -> None:
        """Mirrors a run folder, or a study's report, from now on. The first call starts the
        background process. A folder is named once."""
        if self.mode == "disabled" or folder in self._named:
            return
        if self._absent:
            self.mode = "disabled"
            self._say("W&B: wandb is not installed, nothing is mirrored (the extra wandb adds it)")
            return
        self._named.add(folder)
        with suppress(OSError):
            if self._process is None:
                self._process = self._begin(folder.parent)
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), os.fsencode(folder.resolve()) + b"\0")

    def _begin(self, study: Path) -> subprocess.Popen[bytes]:
        self._sync = f"transformer-norms tracking sync {path_text(study)}"
        where = f"config, command, host, metrics, packages, changed code go to {self._project}"
        if self.mode == "offline":
            where = f"offline, in {path_text(study / 'wandb')}; {self._sync} uploads it"
        unused = [name for name in _UNUSED if name in os.environ and not processes.has_agent()]
        more = f"; not used: {', '.join(unused)}" if unused else ""
        self._say(f"W&B: {where}; tracking=none switches it off{more}")
        return _start(self.mode, self.tracking)

    def close(self, timeout: float | None = None) -> None:
        """Waits at most `timeout` seconds for the last rows, and says what is then missing."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            problems, _ = process.communicate(
                timeout=self._patience if timeout is None else timeout
            )
            why = f"its process ended with code {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            process.kill()
            problems, _ = process.communicate()
            why = "not all of it is written yet"
        told = problems.decode().splitlines()
        if why := told[-1] if told else why:
            self._say(f"W&B: {why}; {self._sync} brings what is missing")


def _start(mode: str, tracking: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    # W&B's default is off, unless an account says otherwise; $WANDB_DISABLE_CODE goes before.
    environment = {"WANDB_SAVE_CODE": "true", **os.environ, "PYTHONPATH": path}
    # If the training process uses W&B itself, its service would keep the mirror's run ids in use.
    environment.pop("WANDB_SERVICE", None)
    with signals.withhold_signals():
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, mode, json.dumps(dict(tracking))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
    assert process.stdin is not None
    # If the pipe is full, a name is lost, which `sync` repairs; a blocked trainer is worse.
    os.set_blocking(process.stdin.fileno(), False)
    return process


def follow_stdin(mode: str, typed: str) -> None:
    """Shows the folders that are named on stdin until the naming process is gone. A failure is a
    line on stdout, where W&B's own processes print nothing."""
    answer = os.dup(1)
    os.set_blocking(answer, False)  # nobody reads before the end: the line of a full pipe is lost
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from transformer_norms.tracking.view import problem_of, show_folder

    with suppress(OSError):
        os.nice(10)
    parent, ended = os.getppid(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signals.let_through(signal.SIGTERM)  # the others are its parent's, and end it with the pipe
    views: dict[Path, Iterator[None]] = {}
    unread = b""
    while not ended.is_set():
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            piece = os.read(sys.stdin.fileno(), 1 << 16)
            *names, unread = (unread + piece).split(b"\0")
            for folder in (Path(os.fsdecode(name)) for name in names):
                views[folder] = show_folder(folder, mode, ended.is_set, json.loads(typed))
            if not piece:
                ended.set()
        # A forked sibling may hold the pipe open after the parent has died.
        if os.getppid() != parent:
            ended.set()
        if ended.is_set():
            signal.alarm(_ORPHAN_SECONDS)
        for folder, view in list(views.items()):
            try:
                next(view)
            except StopIteration:
                del views[folder]
            except Exception as error:  # the views of other folders go on
                del views[folder]
                problem, _ = problem_of(error, folder)
                with suppress(OSError):
                    os.write(answer, f"{folder.name}: {problem}\n".encode())


if __name__ == "__main__":
    follow_stdin(*sys.argv[1:])
