"""Reads files that anybody may have written: the only way into a run, a study, a cache, a manifest.

A file is opened once, and what was opened is asked whether it is a plain file of bounded size. No
link is followed, and no pipe is waited for. Libraries read JSON and YAML; what YAML may hold is
checked before it is built. All else raises ConfigError, one line that begins with the file's name.
"""

import copy
import errno
import json
import os
import stat
from collections import Counter
from functools import cache, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from transformer_norms.errors import ConfigError

LONGEST = 1 << 26  # bytes of a file that the caller knows nothing else about
LONGEST_YAML = 1 << 18  # bytes
_DEEPEST = 20  # collections in one another, of a YAML file
T = TypeVar("T")


# ------------------------------------------------------------------------------------------- bytes


def open_file(path: Path, limit: int | None = None) -> BufferedReader:
    """Opens a plain file for reading, at most `limit` bytes long.

    `path` may lead through links that the user has named. Its last part must not be a link.
    """
    # A pipe without a writer would block, and a terminal could become that of this process.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise ConfigError(f"{path}: {_reason(error)}") from None
    except ValueError:  # a NUL
        raise ConfigError(f"{str(path)!r}: is not a path") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path}: is not a file, but {_kind(status.st_mode)}")
        if limit is not None and status.st_size > limit:
            raise ConfigError(f"{path}: is longer than {limit} bytes; no file of a run is")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, limit: int = LONGEST) -> bytes:
    """Returns the content of a plain file, as long as it was when it was opened."""
    with open_file(path, limit) as file:
        try:
            return file.read(min(os.fstat(file.fileno()).st_size, limit))
        except OSError as error:
            raise ConfigError(f"{path}: {_reason(error)}") from None


def real_path(path: Path) -> Path:
    """Returns a path that the user has named, without its links. A link in a circle stays as it is:
    whoever opens it is told so."""
    return Path(os.path.realpath(path))


def read_text(path: Path, limit: int = LONGEST) -> str:
    return _decode(read_bytes(path, limit), str(path))


def is_there(path: Path) -> bool:
    """Whether the name is taken, also by what is not a file: a link that leads nowhere, a pipe."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:  # as in a folder that may not be read; whoever reads the file says so
        pass
    return True


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a link; name what it leads to"
    if error.errno == errno.ENXIO:
        return "is not a file, but a socket"
    return error.strerror or "cannot be read"


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: cannot be read as UTF-8: {error}") from None


# -------------------------------------------------------------------------------------------- JSON


def read_json(path: Path, limit: int = LONGEST) -> Any:
    return parse_json(read_bytes(path, limit), str(path))


def parse_json(data: bytes, name: str) -> Any:
    """Returns the value of a JSON text. NaN and Infinity are not JSON."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: not readable as JSON: {error}") from None


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def read_typed(path: Path, kind: type[T], limit: int = LONGEST) -> T:
    """Returns the JSON value of a file, checked against the schema of a dataclass."""
    from pydantic import ValidationError

    data = read_bytes(path, limit)
    try:
        value: T = _adapter(kind).validate_json(data)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        text = " ".join(f"{where and f'{where}: '}{first['msg'].lower()}".split())
        raise ConfigError(f"{path}: {text}") from None
    return value


@cache
def _adapter(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


# -------------------------------------------------------------------------------------------- YAML


def read_yaml(path: Path, values_only: bool = True) -> Any:
    return parse_yaml(read_bytes(path, LONGEST_YAML), str(path), values_only)


def parse_yaml(data: bytes, name: str, values_only: bool = True) -> Any:
    """Returns the values of a YAML text, with OmegaConf's rules for numbers: 1e-5 is a float.

    Tags and aliases are refused: so a text is not larger than it looks. `values_only` is for a
    saved config, which no person writes: it has no `${` either.
    """
    import yaml

    text = _decode(data, name)
    try:
        return copy.deepcopy(_values_of(text, values_only))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: is not YAML: {' '.join(str(error).split())}") from None


@lru_cache(maxsize=256)
def _values_of(text: str, values_only: bool) -> Any:
    """A sweep reads the configs of its runs again after each further run."""
    _check_events(text, values_only)
    loader = _loader()(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


@cache
def _loader() -> Any:
    """PyYAML's safe loader, in C where it can be. It refuses a key that a mapping has twice."""
    import yaml
    from omegaconf._utils import get_yaml_loader

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            for key, count in keys.most_common(1):
                if count > 1:
                    raise ConfigError(f"is not YAML: the key {key!r} is a duplicate")
            return super().construct_mapping(node, deep=deep)

    return Loader


def _check_events(text: str, values_only: bool) -> None:
    """Raises ConfigError for tags, aliases and depth, before any value is built."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=_loader()):
        if getattr(event, "anchor", None):
            raise ConfigError("a config holds no anchors or aliases; write out what they repeat")
        if tag := getattr(event, "tag", None):
            raise ConfigError(f"a config holds no tags, and there is {tag!r}")
        value = event.value if isinstance(event, yaml.ScalarEvent) else ""
        if values_only and ("${" in value or value in ("<<", "???")):
            raise ConfigError(f"a saved config holds no {value[:40]}")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ConfigError("is nested too deeply")
