"""Locks between processes, on a folder or a file. The kernel drops a lock when its holder dies."""

import os
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from transformer_norms.errors import StorageError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

_LOOK_EVERY = 0.1  # seconds


class Lock:
    """A lock that this process holds until it releases it or ends. `locked` says what is locked."""

    def __init__(self, release: Callable[[], object], locked: os.stat_result) -> None:
        self.release, self._locked = release, locked

    def holds(self, path: Path) -> bool:
        """Whether what was locked is still at `path`."""
        try:
            return os.path.samestat(self._locked, path.lstat())
        except FileNotFoundError:
            return False

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take_lock(path: Path) -> Lock | None:
    """Locks an existing folder or file; returns None if another process has locked it. Raises
    StorageError where the file system has no locks, as some network disks."""
    if fcntl is None:
        return _take_lock_file(path)
    # A network disk locks a file only for a process that may write it.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        if not isinstance(error, OSError):
            raise
        raise StorageError(f"{path}: its file system offers no locks (flock: {error})") from None
    return Lock(partial(os.close, descriptor), os.fstat(descriptor))


def _take_lock_file(path: Path) -> Lock | None:
    """Locks a file in the temporary folder, for `path` and for processes of this machine alone."""
    from filelock import FileLock, Timeout  # torch brings it

    name = uuid.uuid5(uuid.NAMESPACE_URL, os.path.realpath(path))
    lock = FileLock(Path(tempfile.gettempdir(), f"transformer_norms-{name}.lock"))
    with suppress(Timeout):
        lock.acquire(blocking=False)
        return Lock(lock.release, path.lstat())
    return None


def wait_for_lock(
    path: Path,
    poll: Callable[[], object] = lambda: None,
    announce: Callable[[], object] = lambda: None,
) -> Lock:
    """Locks `path` for a `with`. If it is locked, calls `announce` once, and `poll` some times a
    second until it is free."""
    lock = take_lock(path)
    if lock is None:
        announce()
    while lock is None:
        poll()
        time.sleep(_LOOK_EVERY)
        lock = take_lock(path)
    return lock
