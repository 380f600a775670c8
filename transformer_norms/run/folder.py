"""The folder of a run: where it is, who holds it, what state it is in."""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_norms.errors import Busy, ConfigError
from transformer_norms.locks import Lock, take_lock
from transformer_norms.run.identity import differing
from transformer_norms.run.summary import read_summary


def attempts(study: Path, run_hash: str, origin: str = "") -> list[Path]:
    """The folders of one identity, oldest first: NAME-HASH, NAME-HASH-2, ... `origin` is what a
    continued run's name has behind the hash (-from-HASH)."""
    name = re.compile(rf".*-{run_hash[:8]}{origin}(?:-\d+)?")
    folders = [
        folder
        for folder in study.glob(f"*-{run_hash[:8]}{origin}*")
        # A continuation is a run of its own, even if its origin's hash looks like this one.
        if name.fullmatch(folder.name) and ("-from-" in folder.name) == bool(origin)
    ]
    return sorted(filter(Path.is_dir, folders), key=lambda folder: (attempt_number(folder), folder))


def attempt_number(folder: Path) -> int:
    """1 of NAME-HASH, 2 of NAME-HASH-2. (A hash of eight digits may look like a number.)"""
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() and len(number) < len("01234567") else 1


def choose(
    study: Path,
    name: str,
    there: Sequence[Path],
    *,
    again: bool,
    code: Mapping[str, str],
    data: Mapping[str, Any],
) -> tuple[Path, list[str]]:
    """The folder that this command means, made or not, and what is to be said about it. `there` are
    the attempts at the run, oldest first.

    ConfigError where its run was fed by a corpus that has changed since, and where an unfinished
    run was begun by other code.
    """
    if not there:
        return study / name, []
    latest, summary = there[-1], read_summary(there[-1])
    if not summary:  # killed before it had written anything
        return latest, []
    other = differing(summary.source, code)
    changed = _changed(summary.data.identity, data)
    if again and (summary.ended or other or changed):
        number = len(there) + 1
        while (study / f"{there[0].name}-{number}").exists():
            number += 1
        return study / f"{there[0].name}-{number}", []
    if changed:
        raise ConfigError(
            f"{shown(latest)}: the corpus has changed since ({changed}); again=true runs it anew "
            "beside it"
        )
    if other:
        line = f"run by other code ({named(other)}); again=true runs it anew beside it"
        if not summary.ended:
            raise ConfigError(f"{shown(latest)}: {line}")
        return latest, [line]
    return latest, []


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    keys = differing(before, now)
    return ", ".join(f"{key}: {before.get(key)} then, {now.get(key)} now" for key in keys)


def named(files: list[str]) -> str:
    more = f" and {len(files) - 2} more" if len(files) > 2 else ""
    return f"{', '.join(files[:2])}{more} {'differ' if len(files) > 1 else 'differs'}"


def shown(folder: Path) -> str:
    """The folder as a command takes it: relative to where one stands, if it is below."""
    folder = folder.absolute()
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def hold_run(folder: Path) -> Lock:
    """Locks the folder for a `with`; raises Busy, which names the holder, if it is locked.

    The lock is on the folder itself, so it leaves no file behind.
    """
    lock = take_lock(folder)
    if lock is None:
        summary = read_summary(folder)
        holder = summary.process if summary else {}
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        raise Busy(f"{shown(folder)} is being trained by {who}")
    return lock


def this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname()}
