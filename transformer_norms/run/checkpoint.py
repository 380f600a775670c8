"""Saves and finds checkpoints: verified folders of safetensors and JSON. A run keeps the newest.

The manifest says which run a checkpoint belongs to.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, TensorSpec, safe_open
from torch import Tensor

from transformer_norms.errors import NoUsableCheckpoint, StorageError
from transformer_norms.storage.files import remove_leftovers, storage
from transformer_norms.storage.manifest import (
    DamagedError,
    build_folder,
    name_damage,
    remove_folder,
    verify_folder,
)
from transformer_norms.storage.reading import is_there, read_json
from transformer_norms.training.tensors import is_finite_tensor, whole

SCHEMA = 2
_STATE, _SUFFIX = "state.json", ".safetensors"
BRANCHES = "branches"  # the folder of the state from which the next longer branch begins
OPTIONAL = ("optimizer.safetensors", "snapshots.safetensors")  # which a finished run need not keep
Tensors = Mapping[str, Tensor]  # a sharded one is gathered when it is written


class NonFiniteError(ValueError):
    """A tensor that was to be saved holds NaN or an infinity."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were verified when this object was made."""

    path: Path
    identity: str  # of its run
    step: int
    state: dict[str, Any]
    extra: dict[str, Any]
    files: dict[str, dict[str, Any]]

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """Opens stored tensors, each of which is read when it is asked for.

        Raises DamagedError where the checkpoint keeps weights only, and where the file holds no
        tensors or none that fit.
        """
        file = self.check_has(name)
        try:
            # Reading takes the memory of one slice. A memory map takes that of the file, and a file
            # that is cut short meanwhile would kill the process.
            with safe_open(file, "pt", backend="pread") as tensors:
                yield tensors
        except (SafetensorError, ValueError) as error:
            raise DamagedError(f"{file}: {error}") from None

    def check_has(self, name: str) -> Path:
        """Returns the file of stored tensors. Raises DamagedError where there is none."""
        if (file := name + _SUFFIX) not in self.files:
            raise DamagedError(f"{self.path} has no {file}: it keeps weights only")
        return self.path / file


def save(
    folder: Path,
    identity: str,
    step: int,
    tensors: Mapping[str, Tensors],
    state: Mapping[str, Any],
    extra: Mapping[str, Any],
    keep: int,
) -> Path:
    """Writes `folder`/step-XXXXXXXX with one safetensors file for each of `tensors`, and prunes.

    `identity` is that of the run. A folder of that step, which the run has passed over, is
    replaced. Raises NonFiniteError or StorageError, which leave the other checkpoints untouched and
    no trace of this one. Where tensors are sharded, every other rank calls `follow` meanwhile.
    """
    path = folder / f"step-{step:08d}"
    encoded = json.dumps(state, indent=1, allow_nan=False).encode()
    sizes = {name: stream_size(group) for name, group in tensors.items()}
    with build_folder(path, len(encoded) + sum(sizes.values())) as draft:
        for name, group in tensors.items():
            draft.write(name + _SUFFIX, stream(group), sizes[name])
        draft.write(_STATE, [encoded], len(encoded))
        about = {"schema": SCHEMA, "identity": identity, "step": step, "finite": True}
        draft.seal({**about, "extra": extra})
    prune(folder, step, keep)
    return path


def follow(tensors: Mapping[str, Tensors]) -> None:
    """Gathers what `save` gathers, in the same order, without writing."""
    for group in tensors.values():
        for _, tensor in _in_order(group):
            whole(tensor.detach())


def prune(folder: Path, saved: int, keep: int) -> None:
    """Keeps the newest `keep` checkpoints up to the step `saved`, which is known to be good: it was
    just written, or a run that was killed before it pruned goes on from it.

    Later steps belong to a future that failed to verify. Training passes or replaces them.
    """
    assert keep >= 1
    with storage(folder):
        past = [path for step, path in _candidates(folder) if 0 <= step <= saved]
        for path in past[keep:]:
            remove_folder(path)


def remove_branch(run: Path, warn: Callable[[str], None]) -> None:
    """Removes the state from which the next longer branch of a run began. What cannot be removed
    stays, since no result depends on it."""
    folder = run / BRANCHES
    try:
        remove_leftovers(folder)
        with storage(folder):
            for _, path in _candidates(folder):
                remove_folder(path)
    except (NoUsableCheckpoint, StorageError, FileNotFoundError) as error:
        warn(f"{folder} stays: {error}")
    with suppress(OSError):  # it is not there, or holds something else
        folder.rmdir()


def newest(
    folder: Path, identity: str | None, warn: Callable[[str], None], needs: Collection[str] = ()
) -> Checkpoint | None:
    """Returns the newest checkpoint that verifies, belongs to the run and has the tensors `needs`,
    or None if there never was one.

    The run is that of `identity`; None is any run. Calls `warn` for each checkpoint that is passed
    over. Raises NoUsableCheckpoint if all are.
    """
    candidates = _candidates(folder)
    for _, path in candidates:
        try:
            saved = verify(path)
            if identity not in (None, saved.identity):
                raise DamagedError(f"{path} is of another run: {saved.identity}, not {identity}")
            for name in needs:
                saved.check_has(name)
        except DamagedError as error:
            warn(f"checkpoint passed over: {error}")
        else:
            return saved
    if candidates:
        raise NoUsableCheckpoint(
            f"{folder}: none of {len(candidates)} checkpoints can be used; nothing was deleted"
        )
    return None


def _candidates(folder: Path) -> list[tuple[int, Path]]:
    """Returns the steps and folders, newest first. A name that only resembles that of a checkpoint
    comes last, with step -1."""
    numbered = []
    if is_there(folder) and (folder.is_symlink() or not folder.is_dir()):
        # To prune a folder that a link leads to would delete what lies elsewhere.
        raise NoUsableCheckpoint(f"{folder}: is not a folder; a link to one counts as none")
    for path in folder.glob("step-*"):
        name = re.fullmatch(r"step-([0-9]{8,18})", path.name)
        numbered.append((int(name[1]) if name else -1, path))
    return sorted(numbered, reverse=True)


def verify(path: Path) -> Checkpoint:
    """Returns the checkpoint at `path` after every byte was checked. Raises DamagedError."""
    manifest = verify_folder(path, SCHEMA, optional=OPTIONAL)
    step, identity = manifest["step"], manifest["identity"]
    if path.name != f"step-{step:08d}":
        raise DamagedError(f"{path}: its manifest is of step {step}")
    with name_damage(path):
        state = read_json(path / _STATE)
    return Checkpoint(path, identity, step, state, manifest["extra"], manifest["files"])


# ------------------------------------------------------------------- tensors, written one at a time

# safetensors' own writer wants all of them at once. A file is 8 bytes with the length of the
# header, the header (JSON: dtype, shape and place of each tensor) and the bytes of the tensors:
# https://github.com/huggingface/safetensors#format


def stream_size(tensors: Tensors) -> int:
    """Returns the bytes of the file. It is known from the shapes."""
    return len(_header(tensors)) + sum(tensor.nbytes for tensor in tensors.values())


def stream(tensors: Tensors) -> Iterator[bytes | memoryview]:
    """Yields the bytes of the file, with one whole tensor in memory at a time.

    Raises NonFiniteError at a tensor that holds NaN or an infinity.
    """
    yield _header(tensors)
    for name, tensor in _in_order(tensors):
        yield _finite_bytes(name, whole(tensor.detach()).cpu().contiguous())


def _in_order(tensors: Tensors) -> list[tuple[str, Tensor]]:
    """Returns wide types first, so that every tensor begins at a multiple of its item's size."""
    return sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))


def _header(tensors: Tensors) -> bytes:
    places, end = {}, 0
    for name, tensor in _in_order(tensors):
        start, end = end, end + tensor.nbytes
        torchs = str(tensor.dtype).removeprefix("torch.")
        dtype = str(TensorSpec(dtype=torchs, shape=[], data_ptr=0, data_len=0).dtype)  # such as F32
        places[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(places, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _finite_bytes(name: str, tensor: Tensor) -> memoryview:
    """Returns the tensor's own memory after it was checked."""
    if not is_finite_tensor(tensor):
        raise NonFiniteError(f"{name} holds NaN or an infinity; it is not saved")
    return tensor.reshape(-1).view(torch.uint8).numpy().data
