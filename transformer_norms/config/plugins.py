"""A user's own folder: `plugins=mine` adds mine/configs to the choices and imports mine/*.py."""

import hashlib
import importlib.util
import sys
from pathlib import Path

from transformer_norms.errors import ConfigError


def check(text: str) -> Path | None:
    """Returns the folder that `plugins=TEXT` names."""
    if text == "none":
        return None
    if not Path(text).is_dir():  # nor is a link in a circle, which cannot be resolved
        raise ConfigError(f"plugins={text}: there is no such folder")
    folder = Path(text).resolve()
    if not (folder / "configs").is_dir() and not list(folder.glob("*.py")):
        raise ConfigError(f"plugins={text}: it holds neither configs/ nor a Python file")
    return folder


def load(folder: Path) -> None:
    """Runs each of the folder's Python files once, and so registers their classes by name."""
    for file in sorted(folder.glob("*.py")):
        digest = hashlib.sha256(str(file).encode()).hexdigest()[:8]
        name = f"transformer_norms_plugin_{digest}_{file.stem}"
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, KeyboardInterrupt):
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ConfigError(f"plugins={folder}: {file.name}: {reason}") from error


def sources(folder: Path | None) -> dict[str, Path]:
    """Returns every Python file of the folder, also those that its other files import."""
    if folder is None:
        return {}
    files = sorted(folder.rglob("*.py"))
    return {f"plugins/{file.relative_to(folder).as_posix()}": file for file in files}
