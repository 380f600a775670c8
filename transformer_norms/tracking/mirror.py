"""Weights & Biases shows what run folders hold; training never imports it and never waits for it.

`Mirror` stands in the training process and hands folders to one background process, which ends
with it. `python -m transformer_norms.tracking sync FOLDER` does late what that process could not,
`workspace PROJECT` lays out what is there.
"""

import argparse
import json
import netrc
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

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
        """Mirrors a run folder from now on, or the report of a study; the first call starts the
        process."""
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
    environment = {**os.environ, "PYTHONPATH": path}
    # Where this process has used W&B itself, its service would be the mirror's too, and would hold
    # on to the ids of a mirror's runs after its end.
    environment.pop("WANDB_SERVICE", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "transformer_norms.tracking", "mirror", "--mode", mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )
    assert process.stdin is not None
    # A full pipe is a lost line, which `sync` repairs; a blocked trainer nothing repairs.
    os.set_blocking(process.stdin.fileno(), False)
    return process


def run_folders(folder: Path) -> list[Path]:
    """The run folder itself, or those of a study; ValueError where it is neither."""
    if (folder / "metrics.jsonl").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
    if not found:
        raise ValueError(f"{folder}: neither a run folder nor a study with runs in it")
    return found


def sync(folders: list[Path], mode: str) -> int:
    """Mirrors what is missing of each run folder and of each study's report and, when online,
    uploads what lies there."""
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
        from transformer_norms.tracking.report import report_files
        from transformer_norms.tracking.syncing import mirror_once
    except ImportError as error:
        print(f"W&B cannot be imported: {error}", file=sys.stderr)
        return 1
    named = [folder.resolve() for folder in folders if report_files(folder)]
    studies = [folder for folder in named if folder not in runs]  # a run may have a report in it
    failed = 0
    for place in [*runs, *studies]:
        try:
            print(f"{place.name}: {mirror_once(place, mode)}", file=sys.stderr)
        except Exception as error:  # one broken run must not keep the others from W&B
            failed = 1
            print(f"{place.name}: {error}", file=sys.stderr)
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
    laid_out = commands.add_parser("workspace", help="save panels like the report's in a project")
    laid_out.add_argument("project", metavar="[ENTITY/]PROJECT")
    options = parser.parse_args(arguments)
    if options.command == "sync":
        return sync(options.folders, options.mode)
    if options.command == "workspace":
        from transformer_norms.tracking.saving import save

        return save(options.project)
    mode = resolve_mode(options.mode, os.environ)
    if mode == "disabled":
        return 0
    from transformer_norms.tracking.following import follow

    return follow(mode)


if __name__ == "__main__":
    sys.exit(main())
