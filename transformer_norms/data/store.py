"""The cache of tokens: each entry is built by one process, once, and may be deleted at any time.

An entry is built in a folder beside its place, under a lock that the kernel drops when its holder
dies, and renamed when complete.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from transformer_norms.data.entry import SCHEMA, DamagedError, Entry, canonical, open_entry
from transformer_norms.files import fsync_folder
from transformer_norms.locks import is_locked, wait_for_lock

Say = Callable[[str], None]


def cache_folder() -> Path:
    """$TRANSFORMER_NORMS_CACHE, else $XDG_CACHE_HOME/transformer_norms, else ~/.cache/..."""
    own = os.environ.get("TRANSFORMER_NORMS_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(shared, "transformer_norms").absolute()


def key_of(content: dict) -> str:
    """SHA-256 of everything that determines the tokens, this package's own source included."""
    sources = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(Path(__file__).parent.glob("*.py"))
    }
    everything = {"schema": SCHEMA, "sources": sources, "content": content}
    return hashlib.sha256(canonical(everything)).hexdigest()


def open_or_build(
    key: str, build: Callable[[Path], None], say: Say, poll: Callable[[], None]
) -> Entry:
    """The entry of a key, built by `build(folder)` unless a verified one is there.

    While another process builds it, `poll` is called some times a second. Raises OSError where the
    cache cannot be written: then no entry is left that passes as complete.
    """
    root = cache_folder()
    folder = root / f"tokens-{key}"
    try:
        return open_entry(folder)
    except (FileNotFoundError, DamagedError):
        pass
    root.mkdir(parents=True, exist_ok=True)
    file = _lock_file(root, key)
    if is_locked(file):
        say("data: another process is preparing the same tokens; waiting for it")
    with wait_for_lock(file, poll):
        try:
            return open_entry(folder)  # another may have built it meanwhile
        except FileNotFoundError:
            pass
        except DamagedError as error:
            say(f"data: the cached tokens in {folder} are damaged ({error}): building them again")
            shutil.rmtree(folder)
        _sweep(root, key)
        passing = root / f".tmp-{os.getpid()}-{key}"
        try:
            passing.mkdir()
            build(passing)
            fsync_folder(passing)
            _put(passing, folder)
            fsync_folder(root)
        finally:
            shutil.rmtree(passing, ignore_errors=True)
        return open_entry(folder)


def _put(passing: Path, folder: Path) -> None:
    try:
        passing.rename(folder)
    except OSError:
        if not folder.is_dir():  # else the lock was deleted under us, and another built the same
            raise


def _lock_file(root: Path, key: str) -> Path:
    file = root / f"tokens-{key}.lock"
    file.touch()
    return file


def _sweep(root: Path, key: str) -> None:
    """Removes what dead builders left: whose lock can be taken is not at work any more."""
    for left in root.glob(".tmp-*"):
        other = left.name.rsplit("-", 1)[-1]
        if other == key:
            shutil.rmtree(left, ignore_errors=True)
            continue
        if not is_locked(_lock_file(root, other)):
            shutil.rmtree(left, ignore_errors=True)
