"""Saves and finds checkpoints: verified folders of safetensors and JSON. A run keeps the newest.

The manifest says which run a checkpoint belongs to.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.storage.files import storage
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
_OPTIONAL = ("optimizer.safetensors",)  # which a finished run need not keep
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
    sizes = {name: sum(t.nbytes for t in group.values()) for name, group in tensors.items()}
    with build_folder(path, len(encoded) + sum(sizes.values())) as draft:
        for name, group in tensors.items():
            draft.add(name + _SUFFIX, partial(save_file, _gathered(group)), sizes[name])
        draft.write(_STATE, [encoded], len(encoded))
        about = {"schema": SCHEMA, "identity": identity, "step": step, "finite": True}
        draft.seal({**about, "extra": extra})
    prune(folder, step, keep)
    return path


def follow(tensors: Mapping[str, Tensors]) -> None:
    """Gathers what `save` gathers, in the same order, without writing."""
    for group in tensors.values():
        for tensor in group.values():
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


def newest(
    folder: Path,
    identity: str | None,
    warn: Callable[[str], None],
    needs: Collection[str] = (),
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
    manifest = verify_folder(path, SCHEMA, optional=_OPTIONAL)
    step, identity = manifest["step"], manifest["identity"]
    if path.name != f"step-{step:08d}":
        raise DamagedError(f"{path}: its manifest is of step {step}")
    with name_damage(path):
        state = read_json(path / _STATE)
    return Checkpoint(path, identity, step, state, manifest["extra"], manifest["files"])


def _gathered(tensors: Tensors) -> dict[str, Tensor]:
    """Returns whole tensors in the memory of the processor, which checks each."""
    found = {name: whole(tensor.detach()).cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in found.items():
        if not is_finite_tensor(tensor):
            raise NonFiniteError(f"{name} holds NaN or an infinity; it is not saved")
    return found
