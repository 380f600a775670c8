"""A user's own folder: `plugins=mine` adds mine/configs to the choices and imports mine/*.py."""

import hashlib
import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from traceback import format_exception, walk_tb

from transformer_norms.errors import BEGAN, ConfigError, StorageError, describe_error, hide_secrets
from transformer_norms.names import AXES, PLUGIN, nearest, options, unknown
from transformer_norms.text_tables import shorten

LONGEST = 500  # letters of an error that a line shows; its traceback has all


def check_plugins(text: str) -> Path | None:
    """Returns the folder that `plugins=TEXT` names. Raises ConfigError where there is none, or
    where an option in it has the name of a built-in one."""
    if text == "none":
        return None
    if not Path(text).is_dir():  # nor is a link in a circle, which cannot be resolved
        raise ConfigError(f"plugins={text}: there is no such folder")
    folder = Path(text).resolve()
    if not (folder / "configs").is_dir() and not list(folder.glob("*.py")):
        raise ConfigError(f"plugins={text}: it holds neither configs/ nor a Python file")
    for file in sorted((folder / "configs").glob("*/*.yaml")):
        axis, where = file.parent.name, f"plugins={text}: configs/{file.parent.name}"
        if axis in AXES and file.stem in options(axis):
            line = f"{axis}={file.stem} is ours; name it otherwise"
            raise ConfigError(f"{where}/{file.name}: {line}")
        if axis not in AXES and nearest(axis, AXES, cutoff=0.7):  # a misspelled axis
            raise ConfigError(f"{where}: {unknown('axis', axis, AXES)}")
    return folder


def load(folder: Path) -> None:
    """Runs each of the folder's Python files once, and so registers their classes by name."""
    for file in sorted(folder.glob("*.py")):
        digest = hashlib.sha256(str(file).encode()).hexdigest()[:8]
        name = f"{PLUGIN}{digest}_{file.stem}"
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
            raise ConfigError(f"plugins={folder}: {file.name}: {describe_error(error)}") from error


def sources(folder: Path | None) -> dict[str, Path]:
    """Returns every Python file of the folder, also those that its other files import."""
    if folder is None:
        return {}
    files = sorted(folder.rglob("*.py"))
    return {f"plugins/{file.relative_to(folder).as_posix()}": file for file in files}


def plugin_error(error: BaseException) -> ConfigError | None:
    """Returns an error of a plugin's code in one line: its last method, with file and line. Writes
    the traceback into the cache. A run that had begun ends with 1; it has left a note."""
    frames = walk_tb(error.__traceback__)
    own = [one for one in frames if str(one[0].f_globals.get("__name__")).startswith(PLUGIN)]
    if not own or hasattr(error, "exit_code") or not isinstance(error, Exception):
        return None
    from transformer_norms.data.token_cache import cache_folder

    text = hide_secrets("".join(format_exception(error))).encode()
    kept = ""
    with suppress(OSError, StorageError):
        file = cache_folder() / f"traceback-{hashlib.sha256(text).hexdigest()[:8]}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
        kept = f"; its traceback is in {file}"
    frame, line = own[-1]
    where = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})"
    known = ConfigError(f"{where}: {shorten(describe_error(error), LONGEST)}{kept}")
    known.exit_code = 1 if BEGAN in getattr(error, "__notes__", ()) else 2
    return known
