"""The hashes of source files as this process runs them."""

import sys
from collections.abc import Mapping
from pathlib import Path

from transformer_norms.storage.files import sha256

_first: dict[Path, tuple[object, str]] = {}  # of a file: its module's spec, and the hash


def hash_loaded(files: Mapping[str, Path]) -> dict[str, str]:
    """Returns the SHA-256 of each file at the first call since its module was loaded. A
    later edit does not run before the module is loaded again, which gives it another spec."""
    specs: dict[object, object] = {}
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        specs[getattr(spec, "origin", None)] = spec
    hashes = {}
    for name, file in files.items():
        spec = specs.get(str(file))
        known, digest = _first.get(file, (None, ""))
        if not digest or known is not spec:
            digest = sha256(file)
            _first[file] = spec, digest
        hashes[name] = digest
    return hashes
