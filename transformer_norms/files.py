"""Durable files: after a write the whole new content is on disk, or the old content still is."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformer_norms.errors import StorageError
from transformer_norms.reading import open_file

TEMPORARY = ".tmp-"
_STORAGE = {
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "quota exceeded",
    errno.EFBIG: "file too large",
    errno.EROFS: "read-only file system",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.EIO: "the device failed",
}


def storage_error(path: Path, reason: str, needed: int | None = None) -> StorageError:
    try:
        free = str(shutil.disk_usage(_existing(path)).free)
    except OSError:
        free = "unknown"
    wanted = "" if needed is None else f"{needed} bytes needed, "
    return StorageError(f"{path}: {reason} ({wanted}{free} bytes free)")


@contextmanager
def storage(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turns an OSError that means storage into a StorageError during a `with`; others pass."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno not in _STORAGE:
            raise
        raise storage_error(path, _STORAGE[error.errno], needed) from error


def preflight(folder: Path, needed: int) -> None:
    """Raises StorageError if `folder`, which need not exist, cannot take `needed` bytes."""
    existing = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
    except OSError as error:
        raise storage_error(folder, error.strerror or "not writable", needed) from error
    if shutil.disk_usage(existing).free < needed:
        raise storage_error(folder, _STORAGE[errno.ENOSPC], needed)


def _existing(path: Path) -> Path:
    folder = path.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def fsync_folder(folder: Path) -> None:
    """Brings a folder to the disk. A rename is durable only after this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes, workplace: Path | None = None) -> None:
    """Replaces `path` in one step, durably. The draft lies in `workplace`, on the same disk."""
    draft = (workplace or path.parent) / f"{TEMPORARY}{os.getpid()}-{path.name}"
    draft.unlink(missing_ok=True)
    try:
        with storage(path, len(data)):
            with open(draft, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
            fsync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Raises ValueError for NaN and Infinity, which are no JSON, before anything is written."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(folder: Path) -> None:
    """Removes what killed processes were building. Only the holder of a lock may call it."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
