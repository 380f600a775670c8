"""Weights & Biases shows what run folders hold; training never imports it and never waits for it.

`Mirror` stands in the training process and hands folders to one background process, which ends
with it. `python -m transformer_norms.tracking sync FOLDER` does late what that process could not.
"""

import argparse
import json
import netrc
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

_POLL_SECONDS = 0.5
_ORPHAN_SECONDS = 60
# W&B's host under its newer and its older name; it looks for both.
_HOSTS = {"api.forge.coreweave.com", "api.wandb.ai"}
_WORDS = {"online": "online", "run": "online", "disabled": "disabled"}


def resolve_mode(mode: str, environment: Mapping[str, str]) -> str:
    """`online`, `offline` or `disabled`: what was typed, else $WANDB_MODE, else by credentials."""
    if mode != "auto":
        return mode
    if word := environment.get("WANDB_MODE"):
        return _WORDS.get(word, "offline")
    known = environment.get("WANDB_API_KEY") or _in_netrc(environment)
    return "online" if known else "offline"


def _in_netrc(environment: Mapping[str, str]) -> bool:
    home = Path(environment.get("HOME", "~")).expanduser()
    url = environment.get("WANDB_BASE_URL")
    hosts = {urlsplit(url).netloc} if url else _HOSTS
    try:
        found = netrc.netrc(environment.get("NETRC") or home / ".netrc").hosts
        return not hosts.isdisjoint(found)
    except (OSError, netrc.NetrcParseError):
        return False


class Mirror:
    """The trainer's end. Nothing here raises or blocks, whatever becomes of the other process."""

    def __init__(self, mode: str) -> None:
        self.mode = resolve_mode(mode, os.environ)
        self._process: subprocess.Popen[bytes] | None = None

    def follow(self, folder: Path) -> None:
        """Mirrors a run folder from now on; the first call starts the process."""
        if self.mode == "disabled":
            return
        with suppress(OSError):
            if self._process is None:
                self._process = _start(self.mode)
            assert self._process.stdin is not None
            line = json.dumps(str(folder.resolve())) + "\n"
            os.write(self._process.stdin.fileno(), line.encode())

    def close(self, timeout: float = 5.0) -> None:
        """Waits at most `timeout` seconds for the last rows; `sync` can do what is then missing."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(mode: str) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "transformer_norms.tracking", "mirror", "--mode", mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None
    # A full pipe is a lost line, which `sync` repairs; a blocked trainer nothing repairs.
    os.set_blocking(process.stdin.fileno(), False)
    return process


def mirror(mode: str) -> int:
    """The background process: follows the folders named on stdin until its parent is gone."""
    with suppress(OSError):
        os.nice(10)
    named: queue.Queue[str] = queue.Queue()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    threading.Thread(target=_listen, args=(named, ended), daemon=True).start()
    from transformer_norms.wandb_mirror import FolderMirror

    mirrors: dict[str, FolderMirror] = {}
    parent = os.getppid()
    last_look = False
    while not last_look:
        ended.wait(_POLL_SECONDS)
        # A forked sibling may hold the pipe open after the parent died.
        last_look = ended.is_set() or os.getppid() != parent
        while not named.empty():
            folder = named.get()
            mirrors.setdefault(folder, FolderMirror(Path(folder), mode))
        if last_look:
            _end_anyhow()
        for folder, one in list(mirrors.items()):
            if one.poll():
                one.close()
                del mirrors[folder]
    for one in mirrors.values():
        one.close()
    return 0


def _listen(named: "queue.Queue[str]", ended: threading.Event) -> None:
    for line in sys.stdin:
        with suppress(ValueError):
            named.put(json.loads(line))
    ended.set()


def _end_anyhow() -> None:
    timer = threading.Timer(_ORPHAN_SECONDS, lambda: os._exit(1))
    timer.daemon = True
    timer.start()


def run_folders(folder: Path) -> list[Path]:
    """The run folder itself, or those of a study; ValueError where it is neither."""
    if (folder / "metrics.jsonl").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
    if not found:
        raise ValueError(f"{folder}: neither a run folder nor a study with runs in it")
    return found


def sync(folders: list[Path], mode: str) -> int:
    """Mirrors what is missing of each run folder and, when online, uploads what lies there."""
    try:
        runs = [run.resolve() for folder in folders for run in run_folders(folder)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    mode = resolve_mode(mode, os.environ)
    if mode == "disabled":
        print("W&B is disabled (WANDB_MODE); nothing is mirrored", file=sys.stderr)
        return 0
    try:
        from transformer_norms.wandb_mirror import mirror_folder
    except ImportError as error:
        print(f"W&B cannot be imported: {error}", file=sys.stderr)
        return 1
    failed = 0
    for run in runs:
        try:
            print(f"{run.name}: {mirror_folder(run, mode)}", file=sys.stderr)
        except Exception as error:  # one broken run must not keep the others from W&B
            failed = 1
            print(f"{run.name}: {error}", file=sys.stderr)
    return failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_norms.tracking", description="Run folders in Weights & Biases."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    late = commands.add_parser("sync", help="mirror what is missing of run folders or studies")
    late.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    live = commands.add_parser("mirror", help="follow the folders named on stdin (for training)")
    for command in (late, live):
        command.add_argument("--mode", choices=["auto", "online", "offline"], default="auto")
    options = parser.parse_args(arguments)
    if options.command == "sync":
        return sync(options.folders, options.mode)
    mode = resolve_mode(options.mode, os.environ)
    return 0 if mode == "disabled" else mirror(mode)


if __name__ == "__main__":
    sys.exit(main())
