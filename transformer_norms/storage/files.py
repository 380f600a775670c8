"""Durable files: after a write the whole new content is on disk, or the old content still is."""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from transformer_norms.errors import StorageError
from transformer_norms.storage.locks import take_lock
from transformer_norms.storage.reading import open_file

TEMPORARY = ".tmp-"
_NO_SPACE = "no space left"
_STORAGE = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: "quota exceeded",
    errno.EFBIG: "file too large",
    errno.EROFS: "read-only file system",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.EIO: "the device failed",
}


def storage_error(path: Path, reason: str, needed: int | None = None) -> StorageError:
    try:
        disk = os.statvfs(_existing(path))
        free = str(disk.f_bavail * disk.f_frsize)
        if reason == _NO_SPACE and disk.f_files and not disk.f_favail:
            reason = "no inodes left, so that the disk takes no file more"
    except OSError:
        free = "unknown"
    wanted = "" if needed is None else f"{needed} bytes needed, "
    return StorageError(f"{path}: {reason} ({wanted}{free} bytes free)")


def as_storage_error(
    error: Exception, path: Path | None = None, needed: int | None = None
) -> StorageError | None:
    """Returns the StorageError that says what `error` says, or None if it is not about storage.
    `path` is by default the file that the error names."""
    if isinstance(error, StorageError):
        return error
    number, name = getattr(error, "errno", None), getattr(error, "filename", None)
    if told := re.search(r"\(os error (\d+)\)", str(error)):  # by a library in Rust: safetensors
        number = int(told[1])
    if number not in _STORAGE:
        return None
    if path is None and isinstance(name, (str, bytes)):
        path = Path(os.fsdecode(name))
    if path is None and number in (errno.EACCES, errno.EPERM, errno.EIO):  # of a socket, say
        return None
    path = path or Path("the disk")
    return storage_error(path, _STORAGE[number], needed)


@contextmanager
def storage(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turns an error that means storage into a StorageError during a `with`; others pass."""
    try:
        yield
    except Exception as error:
        refusal = as_storage_error(error, path, needed)
        if refusal is None or refusal is error:
            raise
        raise refusal from error


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, unless it is there. Raises StorageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise storage_error(path, "is a file, or lies below one") from None
    except OSError as error:
        reason = _STORAGE.get(error.errno or 0, "cannot be made")
        raise storage_error(path, reason) from error


def preflight(folder: Path, needed: int, elsewhere: Mapping[Path, int] | None = None) -> None:
    """Raises StorageError if `folder`, which need not exist, cannot take `needed` bytes more. Those
    that the same command will write `elsewhere` count where they go to the same disk."""
    existing = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
    except OSError as error:
        reason = _STORAGE.get(error.errno or 0, "not writable")
        raise storage_error(folder, reason, needed) from error
    disk = existing.stat().st_dev
    on_disk = {place: _existing(place).stat().st_dev for place in elsewhere or {}}
    needed += sum(more for place, more in (elsewhere or {}).items() if on_disk[place] == disk)
    if shutil.disk_usage(existing).free < needed:
        raise storage_error(folder, _NO_SPACE, needed)


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


def draft_of(path: Path) -> Path:
    """Returns the name under which this process builds `path`, in the same folder."""
    return path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")


@contextmanager
def hold_draft(draft: Path, make: Callable[[], object]) -> Iterator[None]:
    """Makes a draft, which `make` does, and locks it during a `with`. Nothing is left of it then.

    So whoever can lock a draft knows that its writer has ended, and may remove it.
    """
    with _made_and_locked(draft, make):
        try:
            yield
        finally:
            remove(draft)


def _made_and_locked(draft: Path, make: Callable[[], object]) -> AbstractContextManager[object]:
    while True:
        remove(draft)
        try:
            make()
            lock = take_lock(draft)
        except (FileExistsError, FileNotFoundError):
            if not draft.parent.is_dir():
                raise StorageError(f"{draft.parent}: the folder is gone") from None
            continue  # another process took it for a leftover before it was locked
        except StorageError:
            return nullcontext()  # the disk has no locks: nobody removes anything there
        if lock is not None:
            if lock.holds(draft):
                return lock
            lock.release()


def remove_leftovers(folder: Path) -> None:
    """Removes the drafts whose writers were killed. It leaves what a process is writing, and what
    it may not remove."""
    for draft in folder.glob(f"{TEMPORARY}[0-9]*-*"):
        with suppress(OSError):
            plain = stat.S_IFMT(draft.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR)
            lock = take_lock(draft) if plain else nullcontext()
            if lock is not None:
                with lock:
                    remove(draft)


def remove(path: Path) -> None:
    """Removes a file, a link, or a folder and all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes, workplace: Path | None = None) -> None:
    """Replaces `path` in one step, durably. The draft lies in `workplace`, on the same disk, from
    which leftovers are removed."""
    draft = draft_of((workplace or path.parent) / path.name)
    remove_leftovers(draft.parent)
    with storage(path, len(data)), hold_draft(draft, partial(draft.touch, exist_ok=False)):
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        fsync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Raises ValueError for NaN and Infinity, which are not JSON, before anything is written."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
