"""Shows run folders in W&B by one background process per command; here are both ends of its pipe.

Training names folders to that process. Training never imports wandb and never waits for it. What
the process could not finish, `python -m transformer_norms.tracking sync FOLDER` does later.
"""

import netrc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformer_norms import processes, signals
from transformer_norms.storage.reading import read_yaml

_EXIT_SECONDS = 5.0
_LONG_EXIT_SECONDS = 300.0  # for a model's upload, and for an agent: it decides by what W&B has
_ORPHAN_SECONDS = 60  # after the command was killed
_POLL_SECONDS = 0.5
# W&B has had two names for its host, and a login may stand under either.
_HOSTS = {"api.forge.coreweave.com", "api.wandb.ai"}


def resolve_mode(mode: str, environment: Mapping[str, str]) -> str:
    """Returns `online`, `offline` or `disabled`: what was typed, else $WANDB_MODE, else `online`
    where there are credentials."""
    if mode != "auto":
        return mode
    if word := environment.get("WANDB_MODE"):
        return {"online": "online", "run": "online", "disabled": "disabled"}.get(word, "offline")
    has_login = environment.get("WANDB_API_KEY") or _login_is_stored(environment)
    return "online" if has_login else "offline"


def _login_is_stored(environment: Mapping[str, str]) -> bool:
    # A process of an unknown user has no home, of which Path.expanduser would complain.
    home = environment.get("HOME", "~")
    file = environment.get("NETRC") or os.path.expanduser(f"{home}/.netrc")
    url = environment.get("WANDB_BASE_URL")
    try:
        logins = netrc.netrc(file).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return not logins.keys().isdisjoint({urlsplit(url).netloc} if url else _HOSTS)


def take_agent(environment: MutableMapping[str, str]) -> dict[str, Any]:
    """Returns the W&B run that the agent of a sweep wants of this command, and the parameters that
    it typed; nothing without an agent. The variables are removed: W&B would otherwise apply them to
    every run that this process shows."""
    if not processes.has_agent(environment):
        return {}
    agent: dict[str, Any] = {
        "run_id": environment.pop("WANDB_RUN_ID"),
        "sweep_id": environment.pop("WANDB_SWEEP_ID"),
        "project": environment.get("WANDB_PROJECT"),
        "entity": environment.get("WANDB_ENTITY"),
    }
    if file := environment.pop("WANDB_SWEEP_PARAM_PATH", None):
        parameters = read_yaml(Path(file).resolve(), values_only=False)
        agent["parameters"] = {
            key: about["value"] for key, about in parameters.items() if isinstance(about, dict)
        }
    return {"agent": agent}


class Mirror:
    """Names folders to the background process. Nothing here blocks training or raises."""

    def __init__(self, mode: str, with_model: bool = False) -> None:
        self.mode = resolve_mode(mode, os.environ)
        self._patience = (
            _LONG_EXIT_SECONDS if with_model or processes.has_agent() else _EXIT_SECONDS
        )
        self._named: set[Path] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def follow(self, folder: Path) -> None:
        """Mirrors a run folder, or a study's report, from now on. The first call starts the
        background process. A folder is named once."""
        if self.mode == "disabled" or folder in self._named:
            return
        self._named.add(folder)
        with suppress(OSError):
            if self._process is None:
                self._process = _start(self.mode)
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), os.fsencode(folder.resolve()) + b"\0")

    def close(self, timeout: float | None = None) -> None:
        """Waits at most `timeout` seconds for the last rows; `sync` brings what is then missing."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(self._patience if timeout is None else timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(mode: str) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    # W&B's default is off, unless an account says otherwise; $WANDB_DISABLE_CODE goes before.
    environment = {"WANDB_SAVE_CODE": "true", **os.environ, "PYTHONPATH": path}
    # If the training process uses W&B itself, its service would keep the mirror's run ids in use.
    environment.pop("WANDB_SERVICE", None)
    with signals.withhold_signals():
        process = subprocess.Popen(
            [sys.executable, "-m", "transformer_norms.tracking.mirror", mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
    assert process.stdin is not None
    # If the pipe is full, a name is lost, which `sync` repairs; a blocked trainer is worse.
    os.set_blocking(process.stdin.fileno(), False)
    return process


def follow_stdin(mode: str) -> None:
    """Keeps views of the folders that are named on stdin until the naming process is gone."""
    from transformer_norms.tracking.folders import View, view_of

    with suppress(OSError):
        os.nice(10)
    parent, ended = os.getppid(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signals.let_through(signal.SIGTERM)  # the others are its parent's, and end it with the pipe
    kept = take_agent(os.environ)
    views: dict[bytes, View] = {}
    unread = b""
    while not ended.is_set():
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            piece = os.read(sys.stdin.fileno(), 1 << 16)
            *names, unread = (unread + piece).split(b"\0")
            for name in names:
                views.setdefault(name, view_of(Path(os.fsdecode(name)), mode, kept))
            if not piece:
                ended.set()
        # A forked sibling may hold the pipe open after the parent has died.
        if os.getppid() != parent:
            ended.set()
        if ended.is_set():
            signal.alarm(_ORPHAN_SECONDS)
        for name, view in list(views.items()):
            if view.update(last=ended.is_set()):
                del views[name]


if __name__ == "__main__":
    follow_stdin(sys.argv[1])
