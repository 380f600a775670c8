"""Names the folder of a run, finds it, and locks it."""

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformer_norms.config.tree import Config, chosen_value, diff
from transformer_norms.errors import Busy, ConfigError, hide_secrets
from transformer_norms.run.summary import Summary, read_summary
from transformer_norms.storage.locks import Lock, take_lock

# The end of NAME-HASH, of NAME-HASH-from-HASH, which continues another run, and of a later attempt
# (-2, -3, ...). A hash of eight digits is not a number of an attempt.
_ENDING = re.compile(r"-([0-9a-f]{8}(?:-from-[0-9a-f]{8})?)(?:-(\d{1,7}))?$")


class Attempts:
    """The folders of a study by the hash in their names, as they are now. The folder is listed
    once, however many runs are asked for."""

    def __init__(self, study: Path) -> None:
        self._by_hash: dict[str, list[Path]] = {}
        for name in os.listdir(study) if study.is_dir() else ():
            if ending := _ENDING.search(name):
                self._by_hash.setdefault(ending[1], []).append(study / name)

    def of(self, run_hash: str, origin: str = "") -> list[Path]:
        """Returns the folders of one identity, oldest first: NAME-HASH, NAME-HASH-2, ... `origin`
        is what the name of a continued run has after the hash (-from-HASH)."""
        folders = self._by_hash.get(f"{run_hash[:8]}{origin}", [])
        return sorted(filter(Path.is_dir, folders), key=lambda one: (attempt_number(one), one))


def attempt_number(folder: Path) -> int:
    """Returns 1 for NAME-HASH and 2 for NAME-HASH-2."""
    ending = _ENDING.search(folder.name)
    return int(ending[2] or 1) if ending else 1


def readable_name(config: Config, defaults: Mapping[str, str]) -> str:
    """Returns a name such as `rmsnorm-pre-s0`: norm, placement, each other choice that is not the
    default, seed. A typed equation becomes `norm_x-f_norm_x`. Two runs may share the name, because
    the hash that follows it differs."""
    axes = "recipe init position attention mlp model data tokenizer loss optimizer schedule".split()
    chosen, choices = config.chosen.choices, config.choices
    words = re.sub(r"[^A-Za-z0-9_.-]+", "_", re.sub(r"\s*[+]\s*", "-", choices.placement))
    parts = [choices.norm, words.strip("_.-")[:60]]
    parts += [choices[axis] for axis in axes if chosen[axis] != defaults[axis]]
    parts += [
        f"{key}_{choices[key]}".replace("_norm_", "_")
        for key in ("embed", "final_norm", "qk_norm", "v_norm")
        if chosen_value(config.chosen, key) != "auto"
    ]
    return "-".join([*parts, f"s{config.seed}"])[:150]


def choose_folder(
    study: Path,
    name: str,
    earlier: Sequence[Path],
    *,
    again: bool,
    code: Mapping[str, str],
    data: Mapping[str, Any],
) -> tuple[Path, list[str]]:
    """Returns the folder that a command means, which need not exist, and the lines to say about it.
    `earlier` are the attempts at the run, oldest first.

    Raises ConfigError if the corpus of the run has changed since, or if an unfinished run was begun
    by other code. A summary that cannot be read stops the command that trains the run, and not a
    sweep that has other runs to train.
    """
    if not earlier:
        return study / name, []
    latest = earlier[-1]
    if latest.is_symlink():
        raise ConfigError(f"{path_text(latest)}: is a link; name what it leads to")
    try:
        summary = read_summary(latest)
    except ConfigError:
        return (_next_attempt(earlier) if again else latest), []
    if not summary:  # killed before it had written anything
        return latest, []
    before = summary.data.identity
    files, keys = list(diff(summary.source, code)), diff(before, data)
    if again and (summary.ended or files or keys):
        return _next_attempt(earlier), []
    if keys:
        changes = ", ".join(f"{key}: {old} then, {new} now" for key, (old, new) in keys.items())
        raise ConfigError(
            f"{path_text(latest)}: the corpus has changed since ({changes}); again=true runs it "
            "again, in another folder"
        )
    if files:
        line = (
            f"run by other code ({files_text(files)}); again=true runs it again, in another folder"
        )
        if not summary.ended:
            raise ConfigError(f"{path_text(latest)}: {line}")
        return latest, [line]
    return latest, []


def _next_attempt(earlier: Sequence[Path]) -> Path:
    folder, number = earlier[0], len(earlier) + 1
    while (attempt := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return attempt


def files_text(files: list[str]) -> str:
    """`norms/rmsnorm.py differs`: the names of files that differ, the first two of many."""
    more = f" and {len(files) - 2} more" if len(files) > 2 else ""
    return f"{', '.join(files[:2])}{more} {'differ' if len(files) > 1 else 'differs'}"


def path_text(folder: Path) -> str:
    """Returns a folder as a command takes it: relative to the current folder, if it is below."""
    folder = folder.absolute()
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def hold_run(folder: Path) -> Lock:
    """Locks the folder for a `with`; raises Busy, which names the holder, if it is locked.

    The lock is on the folder itself, so it leaves no file.
    """
    lock = take_lock(folder)
    if lock is None:
        holder: Mapping[str, Any] = {}
        with suppress(ConfigError):
            summary = read_summary(folder)
            holder = summary.process if summary else {}
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        raise Busy(f"{path_text(folder)} is being trained by {who}")
    return lock


def this_process() -> dict[str, Any]:
    """Returns what the record of a run says of the process that trains it."""
    command = hide_secrets(shlex.join(sys.argv))
    return {"pid": os.getpid(), "host": socket.gethostname(), "command": command}


def state_of(summary: Summary) -> str:
    """Returns the recorded status; `interrupted` if the process that trained the run has ended. A
    look at the run's lock would hold it for a moment, and a trainer that starts would find it."""
    trainer = summary.process
    if summary.status != "running" or trainer.get("host") != socket.gethostname():
        return summary.status
    try:
        os.kill(int(trainer["pid"]), 0)
    except ProcessLookupError:
        return "interrupted"
    except PermissionError:  # another user's process
        pass
    return "running"
