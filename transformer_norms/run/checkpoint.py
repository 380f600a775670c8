"""Saves and finds checkpoints: verified folders of safetensors and JSON. A run keeps the newest."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.files import parse_json, storage
from transformer_norms.manifest import (
    MANIFEST,
    DamagedError,
    build_folder,
    drop_file,
    read_verified,
    remove_folder,
    verify_folder,
)

SCHEMA = 1
_STATE, _SUFFIX = "state.json", ".safetensors"
_NAMES = r"state\.json|[a-z_]+\.safetensors"
# A header of a hundred thousand tensors fits; one made to exhaust memory does not.
_LONGEST_HEADER = 1 << 23
_LONGEST_STATE = 1 << 24


class NonFiniteError(ValueError):
    """A tensor that was to be saved holds NaN or an infinity."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were verified when this object was made."""

    path: Path
    step: int
    state: dict[str, Any]
    extra: dict[str, Any]
    files: dict[str, dict[str, Any]]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Returns tensors on the CPU. Raises ValueError if the checkpoint keeps weights only."""
        file = name + _SUFFIX
        if file not in self.files:
            raise ValueError(f"{self.path} has no {file}: it keeps weights only")
        data = read_verified(self.path / file, self.files[file])
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
    """Writes `folder`/step-XXXXXXXX with one safetensors file for each of `tensors`, and prunes.

    A checkpoint of that step is left as it is if it verifies, and replaced if it is damaged. Raises
    NonFiniteError before anything is written. Raises StorageError, which leaves the other
    checkpoints untouched.
    """
    path = folder / f"step-{step:08d}"
    if path.exists():
        try:
            return verify(path).path
        except DamagedError:
            pass
    contents = {name + _SUFFIX: _serialize(name, group) for name, group in tensors.items()}
    contents[_STATE] = json.dumps(state, indent=1, allow_nan=False).encode()
    with build_folder(path, sum(map(len, contents.values()))) as draft:
        for name, data in contents.items():
            draft.write(name, [data], len(data))
        about = {"schema": SCHEMA, "step": step, "finite": True}
        draft.seal({**about, "files": draft.files, "extra": extra})
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


def _prune(folder: Path, saved: int, keep: int) -> None:
    """Keeps the newest `keep` checkpoints up to the step just saved, which is known to be good.

    Later steps belong to a future that failed to verify. Training passes or replaces them.
    """
    assert keep >= 1
    with storage(folder):
        past = [path for step, path in _candidates(folder) if 0 <= step <= saved]
        for path in past[keep:]:
            remove_folder(path)


def newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """Returns the newest checkpoint that verifies, or None if there never was one.

    Calls `warn` for each damaged checkpoint. Raises NoUsableCheckpoint if all are damaged.
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
    """Returns the steps and folders, newest first. A name that only resembles that of a checkpoint
    comes last, with step -1."""
    numbered = []
    for path in folder.glob("step-*"):
        name = re.fullmatch(r"step-([0-9]{8,18})", path.name)
        numbered.append((int(name[1]) if name else -1, path))
    return sorted(numbered, reverse=True)


def verify(path: Path) -> Checkpoint:
    """Returns the checkpoint at `path` after every byte was checked. Raises DamagedError."""
    manifest = verify_folder(path, SCHEMA, _NAMES)
    step, files, extra = manifest.get("step"), manifest["files"], manifest.get("extra")
    if type(step) is not int or not isinstance(extra, dict) or _STATE not in files:
        raise DamagedError(f"{path / MANIFEST} lacks what a checkpoint says")
    if path.name != f"step-{step:08d}":
        raise DamagedError(f"{path}: {MANIFEST} is of step {step}")
    try:
        for name in files.keys() - {_STATE}:
            _check_header(path / name, files[name]["size"])
        state = _read_state(path / _STATE, files[_STATE])
    except OSError as error:
        raise DamagedError(f"{error.filename or path}: {error.strerror}") from None
    return Checkpoint(path, step, state, extra, files)


def _check_header(file: Path, size: int) -> None:
    with open(file, "rb") as stream:
        header = int.from_bytes(stream.read(8), "little")
    if not 2 <= header <= min(_LONGEST_HEADER, size - 8):
        raise DamagedError(f"{file}: a header of {header} bytes")


def _read_state(file: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    if described["size"] > _LONGEST_STATE:
        raise DamagedError(f"{file} is too long")
    try:
        state = parse_json(read_verified(file, described), str(file))
    except DamagedError:
        raise
    except ValueError as error:
        raise DamagedError(str(error)) from None
    if not isinstance(state, dict):
        raise DamagedError(f"{file} holds no object")
    return state


def drop(path: Path, name: str) -> None:
    """Deletes the tensors `name` of a checkpoint, which then verifies without them."""
    drop_file(path, name + _SUFFIX, SCHEMA, _NAMES)
