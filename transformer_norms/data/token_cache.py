"""The cache of tokens. Each entry is built once, by one process, and may be deleted at any time.

An entry is a folder with a manifest. That of tokens has a flat file of ids for each part, and the
tokenizer. The n-grams that were counted on tokens have a separate entry.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from transformer_norms.data.tokenizer import Tokenizer, load_tokenizer
from transformer_norms.errors import InputError, StorageError
from transformer_norms.progress import Say, Tell
from transformer_norms.storage.files import make_folder, remove_leftovers, sha256, storage
from transformer_norms.storage.locks import wait_for_lock
from transformer_norms.storage.manifest import DamagedError, Draft, build_folder, verify_folder
from transformer_norms.storage.reading import read_json

SCHEMA = 2
PARTS = ("train", "val", "test")
TOKENIZER = "tokenizer.json"
ELSEWHERE = "TRANSFORMER_NORMS_CACHE=FOLDER puts the tokens elsewhere"
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Tokens:
    """The ids of each part, read-only; test may be empty.

    `fingerprint` is a SHA-256 of the ids and the tokenizer. `facts` can be written as JSON: corpus,
    split, separated, documents, bytes and tokens per part, uniform (nats per token), floor
    (nats per byte, or None), repeated (share of val's documents in train), notes.
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    tokenizer: Tokenizer
    folder: Path
    fingerprint: str
    facts: dict[str, Any]

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def check(self, context: int) -> None:
        """Raises InputError unless train fills two contexts and val predicts a token."""
        for part, needed in (("train", 2 * context), ("val", 2)):
            count = len(getattr(self, part))
            if count < needed:
                raise InputError(
                    f"data={self.facts['corpus']['type']}: {part} has {count} tokens after "
                    f"data.split={self.facts['split']}, model.context={context} needs {needed}; "
                    "use more text or a shorter model.context"
                )


def cache_folder() -> Path:
    """$TRANSFORMER_NORMS_CACHE, else $XDG_CACHE_HOME/transformer_norms, else ~/.cache/..."""
    if folder := os.environ.get("TRANSFORMER_NORMS_CACHE"):
        return Path(folder).expanduser().absolute()
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if caches.startswith("~"):
        raise StorageError(f"{caches}: this user has no home; {ELSEWHERE}")
    return Path(caches, "transformer_norms").absolute()


def entry_key(content: dict) -> str:
    """SHA-256 of everything that determines the tokens, this package's own source included."""
    here = Path(__file__).parent
    files = sorted([*here.rglob("*.py"), *here.rglob("*.yaml")])
    sources = {file.relative_to(here).as_posix(): sha256(file) for file in files}
    everything = {"schema": SCHEMA, "sources": sources, "content": content}
    return hashlib.sha256(canonical_json(everything)).hexdigest()


def open_or_build(
    folder: Path,
    build: Callable[[Draft], dict[str, Any]],
    read: Callable[[Path, dict[str, Any]], Entry],
    say: Say,
    tell: Tell,
) -> Entry:
    """Returns the entry in `folder`, from its files and its manifest, which are verified. Unless it
    is there, `build` writes its files, and returns what else its manifest holds.

    Calls `tell` some times a second while another process builds it. Raises StorageError if the
    cache cannot be written.
    """

    def open_verified() -> Entry:
        return read(folder, verify_folder(folder, SCHEMA, hash_file=_hash_once))

    if folder.is_dir():
        with suppress(DamagedError):
            return open_verified()
    kind, lock = folder.name.partition("-")[0], folder.with_name(f"{folder.name}.lock")
    make_folder(folder.parent)
    with storage(lock):
        lock.touch()
    waiting = f"data: another process is preparing the same {kind}; waiting for it"
    with wait_for_lock(lock, lambda: tell("data: waiting", 0, 0), lambda: say(waiting)):
        if folder.is_dir():  # another process may have built it meanwhile
            try:
                return open_verified()
            except DamagedError as error:
                say(f"data: damaged, and built again: {error}")
        remove_leftovers(folder.parent)
        with build_folder(folder) as draft:
            draft.seal({"schema": SCHEMA, **build(draft)})
        shutil.rmtree(workplace(folder), ignore_errors=True)
        return open_verified()


def workplace(folder: Path) -> Path:
    """The folder in which a long build of an entry keeps what it has, until the entry is there. A
    build that was stopped goes on from it."""
    return folder.with_name(f"{folder.name}.unfinished")


def dtype_for(vocab_size: int) -> str:
    return "<u4" if vocab_size > 2**16 else "<u2"


def pack_ids(ids: np.ndarray, vocab_size: int) -> bytes:
    assert ids.size == 0 or int(ids.max()) < vocab_size, "an id beyond the vocabulary"
    return ids.astype(dtype_for(vocab_size)).tobytes()


def read_ids(folder: Path, part: str, dtype: str) -> np.ndarray:
    file = folder / f"{part}.bin"
    if file.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(file, dtype=dtype, mode="r")


def open_entry(folder: Path, manifest: dict[str, Any]) -> Tokens:
    """Returns the tokens of an entry whose files were verified."""
    dtype = manifest["dtype"]
    # The content alone makes the fingerprint, so it is equal on every machine.
    content = {
        name: {"bytes": file["size"], "sha256": file["sha256"]}
        for name, file in manifest["files"].items()
    }
    fingerprint = hashlib.sha256(canonical_json({"dtype": dtype, "files": content})).hexdigest()
    return Tokens(
        **{part: read_ids(folder, part, dtype) for part in PARTS},
        tokenizer=load_tokenizer(read_json(folder / TOKENIZER)),
        folder=folder,
        fingerprint=fingerprint,
        facts=manifest["facts"],
    )


def _hash_once(file: Path) -> str:
    """SHA-256 of a file, once a process as long as the file is the same one and untouched."""
    status = file.stat()
    return _hash(file, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


@cache
def _hash(file: Path, *state: int) -> str:
    return sha256(file)


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys: equal values, equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
