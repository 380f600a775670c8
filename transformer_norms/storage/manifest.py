"""Folders with a manifest, by which they are verified before they are trusted: checkpoints, tokens.

A folder is built under a temporary name and renamed when it is complete. Its manifest is written
last. The manifest holds the size and the SHA-256 of each file, and a seal: its own SHA-256.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.storage.files import (
    draft_of,
    fsync_folder,
    hold_draft,
    make_folder,
    remove,
    sha256,
    storage,
)
from transformer_norms.storage.reading import is_there, parse_json, read_bytes

MANIFEST = "manifest.json"
_LONGEST_MANIFEST = 1 << 24


class DamagedError(ValueError):
    """A folder is not what was written. The message names the file."""


class Draft:
    """A folder while it is built. `files` describes what was written: name -> sha256, size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}

    def write(
        self, name: str, pieces: Iterable[bytes | memoryview], needed: int | None = None
    ) -> None:
        """Writes a durable file. `needed` is its size, if known, for the message of a full disk."""
        path, digest, size = self.folder / name, hashlib.sha256(), 0
        # A plain write raises on a full disk. A memory-mapped file would kill the process there.
        with storage(path, needed), open(path, "xb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += len(piece)
                del piece  # so that its memory is free before the next piece is made
            file.flush()
            os.fsync(file.fileno())
        self.files[name] = {"sha256": digest.hexdigest(), "size": size}

    def seal(self, about: Mapping[str, Any]) -> None:
        """Writes the manifest. It holds `files`, and what is said `about` the folder."""
        sealed = seal_manifest({**about, "files": self.files})
        self.write(MANIFEST, [sealed], len(sealed))


def seal_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Returns the only spelling of a manifest, its own hash included: any flipped bit shows."""
    manifest = {key: value for key, value in manifest.items() if key != "sha256"}
    body = json.dumps(manifest, indent=1, allow_nan=False).encode()
    sealed = {**manifest, "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(sealed, indent=1, allow_nan=False).encode()


@contextmanager
def build_folder(path: Path, needed: int | None = None) -> Iterator[Draft]:
    """Publishes the draft as `path` at the end of a `with`. An error leaves no trace of it.

    Raises StorageError, which says how many bytes were `needed`. A folder that was at `path` before
    is replaced.
    """
    draft = Draft(draft_of(path))
    with ExitStack() as holding:
        with storage(path, needed):
            make_folder(path.parent)
            holding.enter_context(hold_draft(draft.folder, draft.folder.mkdir))
        yield draft
        with storage(path, needed):
            fsync_folder(draft.folder)
            if is_there(path):
                remove_folder(path)
            os.rename(draft.folder, path)
            fsync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Renames the folder first, so that a kill leaves a temporary folder and not half of it."""
    aside = draft_of(path.with_name(f"old-{path.name}"))
    os.rename(path, aside)
    remove(aside)


def verify_folder(
    path: Path,
    schema: int,
    optional: Collection[str] = (),
    hash_file: Callable[[Path], str] = sha256,
) -> dict[str, Any]:
    """Returns the manifest after every byte was checked. Raises DamagedError.

    A manifest whose seal is right is believed: only this project writes it. `optional` files may
    have been deleted since, and are then not among the manifest's `files`. `hash_file` is for a
    caller that remembers what it has hashed.
    """
    with name_damage(path):
        if path.is_symlink() or not path.is_dir():
            raise DamagedError(f"{path} is not a folder; a link to one counts as none")
        manifest = _read_manifest(path / MANIFEST, schema)
        there = {file.name for file in path.iterdir()}
        if foreign := sorted(there - {MANIFEST, *manifest["files"]}):
            raise DamagedError(f"{path / foreign[0]} does not belong there")
        for name in {*optional} - there:
            manifest["files"].pop(name, None)
        for name, described in manifest["files"].items():
            size = (path / name).lstat().st_size
            if size != described["size"]:  # seen before any byte is hashed
                raise DamagedError(f"{path / name} has {size} bytes instead of {described['size']}")
        for name, described in manifest["files"].items():
            if hash_file(path / name) != described["sha256"]:
                raise DamagedError(f"{path / name}: its bytes are not those that were written")
    return manifest


@contextmanager
def name_damage(path: Path) -> Iterator[None]:
    """Turns what reading raises into a DamagedError, which names the file, during a `with`."""
    try:
        yield
    except ConfigError as error:
        raise DamagedError(str(error)) from None
    except OSError as error:
        raise DamagedError(f"{error.filename or path}: {error.strerror}") from None


def _read_manifest(file: Path, schema: int) -> dict[str, Any]:
    data = read_bytes(file, _LONGEST_MANIFEST)
    manifest = parse_json(data, str(file))
    if not isinstance(manifest, dict) or data != seal_manifest(manifest):
        raise DamagedError(f"{file} is not as it was written")
    if manifest["schema"] != schema:
        raise DamagedError(f"{file}: schema {manifest['schema']}, this program reads {schema}")
    return manifest
