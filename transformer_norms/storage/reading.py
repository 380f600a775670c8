"""Reads files that anybody may have written: the only way into a run, a study, a cache, a manifest.

A file is opened once, and what was opened is asked whether it is a plain file of bounded size. No
link is followed, and no pipe is waited for. Depth and digits are bounded before values are built.
Whatever else is there raises ConfigError, one line that begins with the file's name.
"""

import copy
import errno
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from transformer_norms.errors import ConfigError

LONGEST = 1 << 26  # bytes of a file that the caller knows nothing else about
_DEEPEST, _DEEPEST_YAML = 40, 20
_DIGITS = 40  # of a number: more cost a quadratic time to read, and overflow a float
_BYTES_EACH = 16  # for each value that a file of the longest length may hold: bounds the memory
_MOST_NODES = 1 << 16  # of a YAML file, each alias counted as all that it repeats
T = TypeVar("T")


# ------------------------------------------------------------------------------------------- bytes


def open_file(path: Path, limit: int | None = None) -> BufferedReader:
    """Opens a plain file for reading, at most `limit` bytes long.

    `path` may lead through links that the user has named. Its last part must be no link.
    """
    # A pipe without a writer would block, and a terminal could become that of this process.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise ConfigError(f"{path}: {_reason(error)}") from None
    except ValueError:  # a NUL
        raise ConfigError(f"{str(path)!r}: is no path") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path}: is no file, but {_kind(status.st_mode)}")
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
    """Whether the name is taken, also by what is no file: a link that leads nowhere, a pipe."""
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
        return "is no file, but a socket"
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
    return parse_json(read_bytes(path, limit), str(path), limit)


def parse_json(data: bytes, name: str, limit: int = LONGEST) -> Any:
    """Returns the value of a JSON text. NaN and Infinity are no JSON. Of a key that stands twice in
    an object, the last one counts."""
    try:
        text = data.decode("utf-8")
        _check_depth(data)
        if sum(map(data.count, (b",", b"[", b"{"))) * _BYTES_EACH > limit:
            raise ValueError("it holds too many values")
        return (_DECODER if _has_long_number(data) else _FAST_DECODER).decode(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: not readable as JSON: {error}") from None


def read_typed(path: Path, kind: type[T], limit: int = LONGEST) -> T:
    """Returns the JSON value of a file, checked against the schema of a dataclass."""
    return parse_typed(read_bytes(path, limit), str(path), kind, limit)


def parse_typed(data: bytes, name: str, kind: type[T], limit: int = LONGEST) -> T:
    from pydantic import ValidationError

    parse_json(data, name, limit)  # refuses more than pydantic's own parser does
    try:
        value: T = _adapter(kind).validate_json(data)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        text = " ".join(f"{where and f'{where}: '}{first['msg'].lower()}".split())
        raise ConfigError(f"{name}: {text}") from None
    return value


@cache
def _adapter(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _check_depth(data: bytes) -> None:
    """Raises ValueError for brackets that are nested too deeply or are not closed. Strings and
    everything but brackets are left out, then the innermost pairs are, a level at a time."""
    if data.count(b"[") + data.count(b"{") <= _DEEPEST:
        return
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_BRACKETS, _NO_MARKS)
    marks = b"".join(marks.replace(b'""', b"").split(b'"')[::2])
    for _ in range(_DEEPEST):
        if not marks or b"[" * (_DEEPEST + 1) in marks:
            break
        marks = marks.replace(b"[]", b"")
    if marks:
        raise ValueError(f"brackets are nested more than {_DEEPEST} deep, or are not closed")


_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_MARKS = bytes(set(range(256)) - set(b'"[]{}'))


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _fraction(text: str) -> float:
    if len(text) > 2 * _DIGITS or math.isinf(value := float(text)):
        raise ValueError(f"{text[:_DIGITS]} is no number that a run writes")
    return value


def _constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_fraction, parse_constant=_constant)
# The library reads numbers that are not long without a call of ours for each.
_FAST_DECODER = json.JSONDecoder(parse_constant=_constant)
_SHAPES = bytes.maketrans(b"123456789E+", b"000000000e-")
_LONG_SHAPES = (b"0" * 30, b"e000", b"e-000")


def _has_long_number(data: bytes) -> bool:
    """A number of which this is false has less than _DIGITS digits before its point and behind it,
    and is finite. A regular expression would take longer than the reading itself."""
    shapes = data.translate(_SHAPES)
    return any(shape in shapes for shape in _LONG_SHAPES)


# -------------------------------------------------------------------------------------------- YAML


def read_yaml(path: Path, limit: int = LONGEST, values_only: bool = True) -> Any:
    return parse_yaml(read_bytes(path, limit), str(path), values_only)


def parse_yaml(data: bytes, name: str, values_only: bool = True) -> Any:
    """Returns the values of a YAML text, with OmegaConf's rules for numbers: 1e-5 is a float.

    `values_only` is for a saved config, which no person writes: it has no aliases and no `${`.
    Without it, as for a sweep's file, aliases may repeat what stands once, and a text that expands
    without end is refused. There are tags in neither.
    """
    import yaml

    text = _decode(data, name)
    try:
        return copy.deepcopy(_values_of(text, values_only))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: is no YAML: {' '.join(str(error).split())}") from None


@lru_cache(maxsize=256)
def _values_of(text: str, values_only: bool) -> Any:
    """A sweep reads the configs of its runs again after each further run."""
    if values_only:
        return _build(_checked_events(text, values_only))
    for _ in _checked_events(text, values_only):
        pass
    loader = _loader()(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _build(events: Iterator[Any]) -> Any:
    """Builds the values of a YAML text without aliases, tags and merges in the walk that checks it.
    The library walks twice more; a report of a thousand runs would wait for that."""
    import yaml

    documents: list[Any] = []
    open_collections = [documents]  # those of a mapping are its keys and values in turn
    for event in events:
        if isinstance(event, yaml.ScalarEvent):
            plain = event.implicit[0]  # it has no quotes
            open_collections[-1].append(_plain_scalar(event.value) if plain else event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_collections.append([])
        elif isinstance(event, yaml.SequenceEndEvent):
            items = open_collections.pop()
            open_collections[-1].append(items)
        elif isinstance(event, yaml.MappingEndEvent):
            items = open_collections.pop()
            open_collections[-1].append(_mapping(items[::2], items[1::2]))
    if len(documents) > 1:
        raise ConfigError("is no YAML: it holds more than one document")
    return documents[0] if documents else None


def _mapping(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    for key in keys:
        if isinstance(key, (list, dict)):
            raise ConfigError("is no YAML: a key is a list or a mapping, and should be a word")
    _check_keys(keys)
    return dict(zip(keys, values, strict=True))


def _check_keys(keys: list[Any]) -> None:
    if len({*keys}) < len(keys):
        [(key, _)] = Counter(keys).most_common(1)
        raise ConfigError(f"is no YAML: the key {key!r} is a duplicate")


@lru_cache(maxsize=1 << 12)
def _plain_scalar(text: str) -> Any:
    """The value of a scalar without quotes, as the library builds it."""
    import yaml

    loader = _loader()("")
    try:
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        return loader.construct_object(yaml.ScalarNode(tag, text))
    finally:
        loader.dispose()


@cache
def _loader() -> Any:
    """PyYAML's safe loader, in C where it can be. No key stands twice in a mapping."""
    import yaml
    from omegaconf._utils import get_yaml_loader

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            _check_keys([key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            return super().construct_mapping(node, deep=deep)

    return Loader


def _checked_events(text: str, values_only: bool) -> Iterator[Any]:
    """Yields the events before anything is built from them; ConfigError."""
    import yaml

    sizes: dict[str, int] = {}  # of what has an anchor, in nodes
    above: list[tuple[str | None, int]] = []  # the open collections, and what there was before each
    size = 0
    for event in yaml.parse(text, Loader=_loader()):
        anchor = getattr(event, "anchor", None)
        if anchor and values_only:
            raise ConfigError("a saved config holds no anchors or aliases")
        if tag := getattr(event, "tag", None):
            raise ConfigError(f"a config holds no tags, and there is {tag!r}")
        if isinstance(event, yaml.AliasEvent):
            # An alias of a collection that is still open would make it a part of itself.
            size += sizes.get(anchor or "", _MOST_NODES)
        elif isinstance(event, yaml.ScalarEvent):
            _check_scalar(event, values_only)
            size += 1
            sizes |= {anchor: 1} if anchor else {}
        elif isinstance(event, yaml.CollectionStartEvent):
            above.append((anchor, size))
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = above.pop()
            sizes |= {anchor: size - before} if anchor else {}
        if len(above) > _DEEPEST_YAML:
            raise ConfigError("is nested too deeply")
        if size > _MOST_NODES:
            raise ConfigError(f"is more than {_MOST_NODES} values, with what its aliases repeat")
        yield event


# In YAML 1:59:59 is a number, too.
_LONG = re.compile(rf"[-+]?[0-9][0-9a-fA-Fox_:.]{{{_DIGITS},}}")


def _check_scalar(event: Any, values_only: bool) -> None:
    if event.implicit[0] and _LONG.fullmatch(event.value):
        raise ConfigError(f"is no YAML: a number of {len(event.value)} digits")
    if values_only and "${" in event.value:
        raise ConfigError("a saved config holds no ${...}")
    if values_only and event.value in ("<<", "???"):
        raise ConfigError(f"a saved config holds no {event.value}")
