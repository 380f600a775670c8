"""One folder of tokens: flat files of ids, a saved tokenizer, and a manifest written last.

The manifest holds size and SHA-256 of each file, and its own. Nothing is read unverified.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = 1
PARTS = ("train", "val", "test")
LARGEST_SHORT = 2**16  # so many ids fit two bytes


class DamagedError(Exception):
    """An entry that is there and does not verify."""


@dataclass(frozen=True)
class Entry:
    """A verified entry: the ids of each part (read-only), the saved tokenizer, what is known."""

    folder: Path
    ids: dict[str, np.ndarray]
    tokenizer: dict
    facts: dict
    fingerprint: str


def dtype_for(vocab_size: int) -> str:
    return "<u2" if vocab_size <= LARGEST_SHORT else "<u4"


def write_ids(file: Path, arrays: Iterable[np.ndarray], vocab_size: int) -> int:
    """Writes ids one after another and returns how many; plain writes, so that a full disk raises.

    (A memory-mapped file on a full disk kills the process, and leaves a file of full size.)
    """
    count = 0
    with file.open("wb") as stream:
        for ids in arrays:
            assert ids.size == 0 or int(ids.max()) < vocab_size, "an id beyond the vocabulary"
            stream.write(ids.astype(dtype_for(vocab_size)).tobytes())
            count += ids.size
        _flush(stream)
    return count


def write_manifest(folder: Path, dtype: str, tokenizer: dict, facts: dict) -> None:
    """The saved tokenizer, then the manifest, last of all."""
    _write_json(folder / "tokenizer.json", tokenizer)
    files = {}
    for name in [*(f"{part}.bin" for part in PARTS), "tokenizer.json"]:
        data = (folder / name).read_bytes()
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {"schema": SCHEMA, "dtype": dtype, "files": files, "facts": facts}
    manifest["sha256"] = hashlib.sha256(canonical(manifest)).hexdigest()
    _write_json(folder / "manifest.json", manifest)


_opened: dict[tuple, str] = {}


def open_entry(folder: Path) -> Entry:
    """Verifies sizes and hashes. Raises FileNotFoundError, or DamagedError for a bad entry."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        digest = manifest.pop("sha256")
        if digest != hashlib.sha256(canonical(manifest)).hexdigest():
            raise DamagedError("manifest.json does not hash to what it says")
        for name, known in manifest["files"].items():
            _verify(folder / name, known)
        tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
        ids = {part: _read(folder / f"{part}.bin", manifest["dtype"]) for part in PARTS}
    except OSError as error:
        raise DamagedError(f"{error.filename or folder}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"manifest.json cannot be read: {error}") from None
    # The content alone, and not where or how it came about: equal on every machine.
    content = {"dtype": manifest["dtype"], "files": manifest["files"]}
    fingerprint = hashlib.sha256(canonical(content)).hexdigest()
    return Entry(folder, ids, tokenizer, manifest["facts"], fingerprint)


def _verify(file: Path, known: dict) -> None:
    stat = file.stat()
    if stat.st_size != known["bytes"]:
        raise DamagedError(f"{file.name} has {stat.st_size} bytes instead of {known['bytes']}")
    # Hashed once a process, as long as the file is the same one, untouched.
    seen = (str(file), stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size)
    if _opened.get(seen) != known["sha256"]:
        with file.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != known["sha256"]:
                raise DamagedError(f"{file.name} does not hash to what the manifest says")
        _opened[seen] = known["sha256"]


def _read(file: Path, dtype: str) -> np.ndarray:
    if file.stat().st_size == 0:  # what is empty cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(file, dtype=dtype, mode="r")


def _write_json(file: Path, value: Any) -> None:
    with file.open("wb") as stream:
        stream.write(canonical(value))
        _flush(stream)


def _flush(stream: Any) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def canonical(value: Any) -> bytes:
    """JSON with sorted keys: equal values, equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
