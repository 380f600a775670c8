"""A study's archive: a tar of what its runs recorded, which xz compresses.

Nearly all of it is the numbers of metrics.jsonl. The member COLUMNS holds those of all runs by
column: a number lies among numbers of its kind, and each key is written once. Its first line names
the files, and the kind of each of their rows; each further line has the values of one key.
"""

import io
import json
import lzma
import re
import struct
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

COLUMNS = "metrics.columns"
_PAIR = re.compile(r'"([^"]+)": ([^ ,}]*[^ ,}f])')  # an f would mark the value as shortened
_LONG = re.compile(r"-?\d+\.\d{9,}(e-\d+)?")

Rows = list[list[tuple[str, str]]]  # the keys of each row, and the texts of their values


def write_archive(target: Path, study: str, files: Mapping[str, bytes]) -> None:
    """The same files are the same bytes."""
    rows = {name: _rows(data) for name, data in files.items() if name.endswith(".jsonl")}
    # A file of another form is kept as it is.
    rows = {name: parsed for name, parsed in rows.items() if _text(parsed) == files[name]}
    members = {name: data for name, data in files.items() if name not in rows}
    members[f"{study}/{COLUMNS}"] = _columns(rows)
    with tarfile.open(target, "w:xz", preset=9 | lzma.PRESET_EXTREME) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def read_archive(archive: Path) -> Iterator[tuple[Path, bytes]]:
    """Yields the path and the bytes of each file that `write_archive` was given. ValueError where a
    path leads out of the archive. (Before Python 3.11.4 tarfile has no filter that would make sure
    of that.)"""
    for name, data in _members(archive):
        if (path := Path(name)).is_absolute() or ".." in path.parts:
            raise ValueError(f"{archive}: {name} is not a file of a study")
        yield path, data


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as packed:
        for member in packed:
            data = packed.extractfile(member) if member.isfile() else None
            if data is None:
                raise ValueError(f"{archive}: {member.name} is not a file of a study")
            if Path(member.name).name == COLUMNS:
                yield from _files(data.read())
            else:
                yield member.name, data.read()


def _rows(data: bytes) -> Rows:
    return [_PAIR.findall(line) for line in data.decode().splitlines()]


def _text(rows: Rows) -> bytes:
    lines = (", ".join([f'"{key}": {value}' for key, value in row]) for row in rows)
    return "".join([f"{{{line}}}\n" for line in lines]).encode()


def _columns(files: Mapping[str, Rows]) -> bytes:
    kinds: dict[tuple[str, ...], int] = {}
    columns: dict[str, list[str]] = {}
    order: dict[str, list[int]] = {name: [] for name in files}
    for name, rows in files.items():
        for row in rows:
            order[name].append(kinds.setdefault(tuple([key for key, _ in row]), len(kinds)))
            for key, value in row:
                columns.setdefault(key, []).append(_shorten(value))
    head = json.dumps({"files": order, "kinds": [*kinds], "keys": [*columns]})
    return "\n".join([head, *map(" ".join, columns.values())]).encode()


def _files(columns: bytes) -> Iterator[tuple[str, bytes]]:
    head, *lines = columns.decode().split("\n")
    named = json.loads(head)
    values = {
        key: iter([_widen(text) if text[-1] == "f" else text for text in line.split(" ")])
        for key, line in zip(named["keys"], lines, strict=True)
    }
    kinds = [([values[key] for key in keys], _pattern(keys)) for keys in named["kinds"]]
    for name, order in named["files"].items():
        rows = [kinds[kind][1] % tuple(map(next, kinds[kind][0])) for kind in order]
        yield name, "".join(rows).encode()


def _pattern(keys: list[str]) -> str:
    pairs = ", ".join(['"' + key.replace("%", "%%") + '": %s' for key in keys])
    return f"{{{pairs}}}\n"


def _shorten(text: str) -> str:
    """A float32 that was written as a float64 in the fewest digits that give it back, and an f."""
    if _LONG.fullmatch(text):
        for digits in (6, 7, 8, 9):
            if _widen(short := f"{float(text):.{digits}g}f") == text:
                return short
    return text


def _widen(short: str) -> str:
    return repr(struct.unpack("f", struct.pack("f", float(short[:-1])))[0])
