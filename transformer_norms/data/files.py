"""Paths and globs that a user typed: found and checked before anything is read."""

import glob
import hashlib
from pathlib import Path

from transformer_norms.errors import InputError


def find_files(patterns: list[str]) -> list[Path]:
    """The files that `data.paths` names, globs in sorted order; InputError for whatever is none."""
    files: list[Path] = []
    for pattern in patterns:
        files += _matches(pattern)
    if not files:
        raise InputError("data.paths is empty: name a file, data.paths=FILE_OR_GLOB")
    seen: set[Path] = set()
    for file in files:
        _check(file)
        if file.resolve() in seen:
            # Twice the same text would stand on both sides of a split by position.
            raise InputError(f"data.paths: {file} is named twice; name each file once")
        seen.add(file.resolve())
    return files


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.exists():  # a file may be called a[1].txt: what is there wins over what a glob means
        return [path]
    if not glob.has_magic(pattern):
        raise InputError(f"data.paths: there is no file {pattern}")
    found = sorted(glob.glob(str(path), recursive=True))
    files = [Path(name) for name in found if not Path(name).is_dir()]
    if not files:
        raise InputError(f"data.paths: no file matches {pattern}")
    return files


def _check(file: Path) -> None:
    if file.is_dir():
        raise InputError(f"data.paths: {file} is a directory; name files, e.g. {file}/*.txt")
    if not file.is_file():
        raise InputError(f"data.paths: {file} is not a regular file")
    try:
        with file.open("rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        raise InputError(f"data.paths: {file} cannot be read ({error.strerror})") from None
    if empty:
        raise InputError(f"data.paths: {file} is empty")


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
