"""Checkpoints: folders of safetensors and JSON that are whole and verified, or not there at all.

A folder is built under a temporary name, its manifest (size and SHA-256 of every file) last, and
then renamed. Loading believes a manifest only, and falls back to the newest that verifies.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.files import (
    TEMPORARY,
    fsync_folder,
    parse_json,
    remove_leftovers,
    sha256,
    storage,
    write_bytes,
    write_synced,
)

SCHEMA = 1
_MANIFEST, _STATE, _SUFFIX = "manifest.json", "state.json", ".safetensors"
# A header of a hundred thousand tensors fits; one made to exhaust memory does not.
_LONGEST_HEADER = 1 << 23
_LONGEST_JSON = 1 << 24


class NonFiniteError(ValueError):
    """A tensor that was to be saved holds NaN or an infinity."""


class DamagedError(ValueError):
    """A checkpoint is not what was written; the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were verified when it was made."""

    path: Path
    step: int
    state: dict[str, Any]
    extra: dict[str, Any]
    files: dict[str, dict[str, Any]]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """On the CPU. ValueError where the checkpoint has none of that name (weights only)."""
        file = name + _SUFFIX
        if file not in self.files:
            raise ValueError(f"{self.path} has no {file}: it keeps weights only")
        data = _verified_bytes(self.path / file, self.files[file])
        try:
            return safetensors.torch.load(data)
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise DamagedError(f"{self.path / file}: {error}") from None


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    extra: Mapping[str, Any],
    keep: int,
) -> Path:
    """Writes `folder`/step-XXXXXXXX, one safetensors file for each of `tensors`, and prunes.

    A checkpoint of that step that verifies is left as it is; a damaged one is replaced.
    NonFiniteError, before anything is written; StorageError, with the other checkpoints untouched.
    """
    path = folder / f"step-{step:08d}"
    if path.exists():
        try:
            return verify(path).path
        except DamagedError:
            pass
    contents = {name + _SUFFIX: _serialize(name, group) for name, group in tensors.items()}
    contents[_STATE] = json.dumps(state, indent=1, allow_nan=False).encode()
    manifest = {
        "schema": SCHEMA,
        "step": step,
        "finite": True,
        "files": {name: _described(data) for name, data in contents.items()},
        "extra": extra,
    }
    contents[_MANIFEST] = _sealed(manifest)
    _publish(path, contents)
    _prune(folder, step, keep)
    return path


def _serialize(name: str, group: Mapping[str, Tensor]) -> bytes:
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for key, tensor in group.items():
        if (tensor.is_floating_point() or tensor.is_complex()) and not tensor.isfinite().all():
            raise NonFiniteError(f"{name}: {key} holds NaN or an infinity; it is not saved")
        tensor = tensor.detach().cpu().contiguous()
        # Safetensors refuses tensors that share memory, as tied weights do.
        if tensor.untyped_storage().data_ptr() in storages:
            tensor = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
        plain[key] = tensor
    return safetensors.torch.save(plain)


def _described(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """The manifest's one spelling, with its own hash in it: a flipped bit anywhere shows."""
    body = json.dumps(manifest, indent=1, allow_nan=False).encode()
    sealed = {**manifest, "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(sealed, indent=1, allow_nan=False).encode()


def _publish(path: Path, contents: Mapping[str, bytes]) -> None:
    folder = path.parent
    draft = folder / f"{TEMPORARY}{os.getpid()}-{path.name}"
    with storage(path, sum(map(len, contents.values()))):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir()
            for name, data in contents.items():
                write_synced(draft / name, data)
            fsync_folder(draft)
            if path.exists():
                _remove(path)
            os.rename(draft, path)
            fsync_folder(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _remove(path: Path) -> None:
    """Out of sight first, so that a kill half way leaves a leftover and not half a checkpoint."""
    aside = path.parent / f"{TEMPORARY}{os.getpid()}-old-{path.name}"
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _prune(folder: Path, saved: int, keep: int) -> None:
    """Keeps the newest `keep` up to the one just saved, which is known to be good.

    Newer ones are of a future that failed to verify; training passes or replaces them.
    """
    assert keep >= 1
    with storage(folder):
        past = [path for step, path in _candidates(folder) if 0 <= step <= saved]
        for path in past[keep:]:
            _remove(path)


def newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that verifies; None where there never was one.

    Each damaged one that is passed over is told in a line; NoUsableCheckpoint where all are.
    """
    candidates = _candidates(folder)
    for _, path in candidates:
        try:
            return verify(path)
        except DamagedError as error:
            warn(f"damaged checkpoint passed over: {error}")
    if candidates:
        raise NoUsableCheckpoint(
            f"{folder}: none of {len(candidates)} checkpoints verifies; nothing was deleted"
        )
    return None


def _candidates(folder: Path) -> list[tuple[int, Path]]:
    """Newest first; what only looks like a checkpoint is last, with step -1."""
    found = []
    for path in folder.glob("step-*"):
        name = re.fullmatch(r"step-([0-9]{8,18})", path.name)
        found.append((int(name[1]) if name else -1, path))
    return sorted(found, reverse=True)


def verify(path: Path) -> Checkpoint:
    """The checkpoint at `path` with every byte checked; DamagedError names the file."""
    try:
        return _verify(path)
    except OSError as error:
        raise DamagedError(f"{error.filename or path}: {error.strerror}") from None


def _verify(path: Path) -> Checkpoint:
    manifest = _read_manifest(path / _MANIFEST)
    if path.name != f"step-{manifest['step']:08d}":
        raise DamagedError(f"{path}: {_MANIFEST} is of step {manifest['step']}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    present = {entry.name for entry in path.iterdir()} - {_MANIFEST}
    for name in sorted(present - files.keys() - set(manifest.get("dropped", []))):
        raise DamagedError(f"{path / name} does not belong there")
    for name, described in files.items():
        _check_kind(path / name, described)
    for name, described in files.items():
        if name != _STATE and sha256(path / name) != described["sha256"]:
            raise DamagedError(f"{path / name}: its bytes are not those that were written")
    state = _verified_bytes(path / _STATE, files[_STATE])
    try:
        parsed = parse_json(state, str(path / _STATE))
    except ValueError as error:
        raise DamagedError(str(error)) from None
    if not isinstance(parsed, dict):
        raise DamagedError(f"{path / _STATE} holds no object")
    return Checkpoint(path, manifest["step"], parsed, manifest["extra"], files)


def _read_manifest(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LONGEST_JSON:
        raise DamagedError(f"{path} is too long")
    data = path.read_bytes()
    try:
        manifest = parse_json(data, str(path))
        body = {key: value for key, value in manifest.items() if key != "sha256"}
        whole = data == _sealed(body)
    except (ValueError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise DamagedError(f"{path} is not as it was written")
    if manifest.get("schema") != SCHEMA:
        raise DamagedError(f"{path}: schema {manifest.get('schema')}, this program reads {SCHEMA}")
    if not _well_formed(manifest):
        raise DamagedError(f"{path} lacks what a manifest says")
    return manifest


def _well_formed(manifest: dict[str, Any]) -> bool:
    """A seal proves that the bytes are whole, not who wrote them: the folder may be anybody's."""
    step, files, dropped = manifest.get("step"), manifest.get("files"), manifest.get("dropped", [])
    return (
        type(step) is int
        and 0 <= step < 10**18
        and isinstance(manifest.get("extra"), dict)
        and isinstance(files, dict)
        and _STATE in files
        and isinstance(dropped, list)
        and all(isinstance(name, str) for name in dropped)
        and all(re.fullmatch(r"state\.json|[a-z_]+\.safetensors", name) for name in files)
        and all(
            isinstance(file, dict) and file.keys() >= {"size", "sha256"} for file in files.values()
        )
    )


def _check_kind(path: Path, described: Mapping[str, Any]) -> None:
    """Cheap looks before any byte is hashed or allocated: a plain file, its size, its header."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise DamagedError(f"{path} is not a plain file")
    if found.st_size != described["size"]:
        raise DamagedError(f"{path} has {found.st_size} bytes instead of {described['size']}")
    if path.name == _STATE:
        if found.st_size > _LONGEST_JSON:
            raise DamagedError(f"{path} is too long")
        return
    with open(path, "rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if not 2 <= header <= min(_LONGEST_HEADER, found.st_size - 8):
        raise DamagedError(f"{path}: a header of {header} bytes")


def _verified_bytes(path: Path, described: Mapping[str, Any]) -> bytes:
    """Hash and content are of one reading, so nothing can change in between."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != described["sha256"]:
        raise DamagedError(f"{path}: its bytes are not those that were written")
    return data


def drop(path: Path, name: str) -> None:
    """Deletes the tensors `name` of a checkpoint that verifies, which then verifies without them.

    The manifest goes first and permits the file until it is gone, so a kill in between is harmless.
    """
    checkpoint = verify(path)
    file = name + _SUFFIX
    if file in checkpoint.files:
        manifest = _read_manifest(path / _MANIFEST)
        del manifest["sha256"], manifest["files"][file]
        manifest["dropped"] = [*manifest.get("dropped", []), file]
        write_bytes(path / _MANIFEST, _sealed(manifest), workplace=path.parent)
    (path / file).unlink(missing_ok=True)


def clean(folder: Path) -> None:
    """Removes what killed processes left. Only for the holder of the run's lock."""
    remove_leftovers(folder)
