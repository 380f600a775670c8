"""Corpora: the protocol of each, and the user's own files of text and of rows."""

import glob
import json
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from transformer_norms.errors import ConfigError, InputError
from transformer_norms.kinds import Text, Texts
from transformer_norms.names import Registry, suggestion
from transformer_norms.storage.files import sha256
from transformer_norms.storage.formats import ICONV, binary_format, source_format
from transformer_norms.storage.reading import open_file, real_path

CORPORA = Registry("corpus")
SLICE = 2**25  # bytes of text that one process encodes at once


@runtime_checkable
class Slice(Protocol):
    """A part of a corpus that another process can read. It can be pickled."""

    def documents(self) -> Iterator[str]: ...


@runtime_checkable
class Corpus(Protocol):
    """`identity` identifies the text in hashes; `floor` is in nats per UTF-8 byte, or None.

    A large corpus can also have `size`, about how many bytes its text has, and `slices()`, which
    yields Slices in order. One with a `validation`, another corpus, gives all its text to
    train. One with `keep_documents_separate` has documents even if they are few. `notes()` are for
    the record.
    """

    @property
    def floor(self) -> float | None: ...
    def identity(self) -> dict: ...
    def documents(self) -> Iterator[str]: ...


def find_files(patterns: Sequence[str], key: str) -> list[Path]:
    """The files that a key names, globs in sorted order. Raises InputError."""
    if not patterns:
        raise InputError(f"{key} is empty: name a file, {key}=FILE_OR_GLOB")
    files: dict[Path, Path] = {}  # by the real path
    for pattern in patterns:
        path = Path(pattern).expanduser()
        # A file may be called a[1].txt, so an existing file wins over a glob.
        matching = [] if path.exists() else map(Path, sorted(glob.glob(str(path), recursive=True)))
        named = [path] if path.exists() else [file for file in matching if not file.is_dir()]
        if not named:
            raise InputError(f"{key}: there is no file {pattern}")
        for file in named:
            try:
                with open_file(real_path(file)) as stream:
                    # A read of a file of the system, which says the same, may wait: /proc/kmsg.
                    empty = os.fstat(stream.fileno()).st_size == 0
            except ConfigError as error:
                reason = str(error).removeprefix(f"{real_path(file)}: ")
                hint = "; name files, e.g. FOLDER/*.txt" if file.is_dir() else ""
                raise InputError(f"{key}: {file}: {reason}{hint}") from None
            if empty:
                raise InputError(f"{key}: {file} is empty")
            if real_path(file) in files:
                # The same text twice would be on both sides of a split by position.
                raise InputError(f"{key}: {file} is named twice; name each file once")
            files[real_path(file)] = file
    return [*files.values()]


class _Files:
    """Files of a corpus. `validation` is the corpus of `data.val_paths`, or None if val is cut off
    the text of `data.paths`. `keep_documents_separate` holds for documents however few."""

    type: str
    key = "data.paths"  # that names the files
    floor = None
    keep_documents_separate = False
    validation: Any = None

    def __init__(self, paths: Sequence[str], val_paths: Sequence[str]) -> None:
        self.files = find_files(paths, self.key)
        if not val_paths:
            return
        self.validation = copy(self)
        self.validation.key = "data.val_paths"
        self.validation.files = find_files(val_paths, "data.val_paths")
        known = dict(zip(self._hashes(), self.files, strict=True))
        for digest, file in zip(self.validation._hashes(), self.validation.files, strict=True):
            if digest in known:
                raise InputError(
                    f"data.val_paths: {file} has the content of {known[digest]} in data.paths; "
                    "a loss on text that was trained on is not a validation loss"
                )

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def _hashes(self) -> list[str]:
        return [sha256(real_path(file)) for file in self.files]

    def identity(self) -> dict:
        validation = {"val_sha256": self.validation._hashes()} if self.validation else {}
        return {"type": self.type, "sha256": self._hashes(), **validation}


@CORPORA("text")
class TextFiles(_Files):
    """Each file is a document of exactly its bytes: no newline is translated, no mark left out.

    A `separator` cuts each file into several documents, and belongs to none of them. In it, \\n is
    a new line, LF or CRLF, \\t a tab, \\r a carriage return and \\\\ a backslash.
    """

    type = "text"

    def __init__(self, *, paths: Texts, val_paths: Texts, separator: Text) -> None:
        self.separator = "" if separator == "none" else unescape(separator)
        self.keep_documents_separate = bool(self.separator)
        super().__init__(paths, val_paths)

    def identity(self) -> dict:
        return super().identity() | ({"separator": self.separator} if self.separator else {})

    def documents(self) -> Iterator[str]:
        return chain.from_iterable(map(self._cut, self.files))

    def _cut(self, file: Path) -> list[str]:
        data, text = file.read_bytes(), ""
        words = binary_format(data)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            words = words or f"is not UTF-8 at byte {error.start}; {ICONV}"
        if words:
            raise InputError(f"{self.key}: {file} {words}")
        pattern = re.escape(self.separator.replace("\r\n", "\n")).replace("\\\n", "\r?\n")
        return re.split(pattern, text) if pattern else [text]

    def notes(self) -> Iterator[str]:
        """Lines for the record about files that are probably not what the user means."""
        for words, file in {source_format(file): file for file in reversed(self.files)}.items():
            if words:
                yield f"{self.key}: {file} {words}; data=text trains on the source"
        lone = [file for file in self.files if self.separator and len(self._cut(file)) == 1]
        if lone:
            yield f"data.separator is not in {len(lone)} of {len(self.files)} files: {lone[0]}"
        yield from self.validation.notes() if self.validation else ()


_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}


def unescape(separator: str) -> str:
    """Returns the text of a typed separator. Raises InputError for an unknown escape."""

    def replace(escape: re.Match[str]) -> str:
        if escape[0] not in _ESCAPES:
            raise InputError(f"data.separator: {escape[0]} is none of {' '.join(_ESCAPES)}")
        return _ESCAPES[escape[0]]

    if not separator:
        raise InputError('data.separator: is empty; type what separates documents, as "\\n\\n"')
    return re.sub(r"\\.?", replace, separator)


class _RowFiles(_Files):
    """Files of rows; the column `field` of each row is a document."""

    def __init__(self, *, paths: Texts, val_paths: Texts, field: Text) -> None:
        self.field = field
        super().__init__(paths, val_paths)
        self.keep_documents_separate = self.validation is not None

    def identity(self) -> dict:
        return super().identity() | {"field": self.field}


@CORPORA("jsonl")
class JsonLines(_RowFiles):
    """Files with one JSON object a line, or with one array of objects. They may be compressed."""

    type = "jsonl"

    def documents(self) -> Iterator[str]:
        for file in self.files:
            yield from read_json_lines(file, self.field, self.key)


def read_json_lines(file: Path | str, field: str, key: str) -> Iterator[str]:
    """Yields the string `field` of each JSON object in a file, or at an address: one a line, or all
    in one array. Of a key that occurs twice, the last one counts. Raises InputError."""
    import datasets
    import fsspec

    decode = json.JSONDecoder(parse_int=float).decode  # an int has a limited number of digits
    at, line, manager = f"{file}", b"", datasets.StreamingDownloadManager()
    try:
        for name in manager.iter_files(manager.extract(str(file))):
            with fsspec.open(name, "rb") as stream:
                begun = False
                for number, line in enumerate(stream, start=1):
                    at, bare = f"{file}, line {number}", line.lstrip(b"\xef\xbb\xbf \t\r\n")
                    array, begun = bare.startswith(b"[") and not begun, begun or bool(bare)
                    text = (line + stream.read() if array else line).decode("utf-8-sig").strip()
                    rows = decode(text) if array else [decode(text)] if text else []
                    for item, row in enumerate(rows, start=1):
                        found = text_of(row, field, f"{file}, item {item}" if array else at)
                        found.encode()  # half a surrogate pair is not text
                        yield found
    except Exception as error:  # the libraries that decompress have errors of many kinds
        if isinstance(error, InputError):
            raise
        cause = getattr(error, "msg", root_cause(error))
        words = binary_format(line) or f"cannot be read as JSON: {cause}"
        raise InputError(f"{key}: {at} {words}") from None


@CORPORA("parquet")
class Parquet(_RowFiles):
    """Parquet files."""

    type = "parquet"

    @property
    def size(self) -> int:
        return sum(column_size(file, self.field) for file in self.files)

    def slices(self) -> Iterator["ParquetRows"]:
        for file in self.files:
            yield from cut_parquet(file, self.field)

    def documents(self) -> Iterator[str]:
        return (document for rows in self.slices() for document in rows.documents())


@dataclass(frozen=True)
class ParquetRows:
    """The documents in `count` rows of a Parquet file, from row `first`."""

    file: Path | str
    field: str
    first: int
    count: int

    def documents(self) -> Iterator[str]:
        with _open_parquet(self.file) as table:
            groups = [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)]
            starts = [0, *accumulate(groups)]
            stop = self.first + self.count
            needed = range(bisect_right(starts, self.first) - 1, bisect_left(starts, stop))
            batches = table.iter_batches(1024, row_groups=list(needed), columns=[self.field])
            values = chain.from_iterable(batch.column(0) for batch in batches)
            skip = self.first - starts[needed[0]]  # a row group may be a whole file, of many slices
            for number, value in enumerate(islice(values, skip, skip + self.count), self.first):
                yield text_of({self.field: value.as_py()}, self.field, f"{self.file}, row {number}")


def cut_parquet(file: Path | str, field: str) -> Iterator[ParquetRows]:
    """Cuts the rows of a file into slices of about SLICE bytes of text."""
    string = re.compile("(dictionary<values=)?(large_)?string")
    with _open_parquet(file) as table:
        names = [one.name for one in table.schema_arrow if string.match(str(one.type))]
        text_of(dict.fromkeys(names, ""), field, str(file))
        rows = table.metadata.num_rows
    count = min(-(-column_size(file, field) // SLICE), rows)
    for at in range(count):
        first, last = (rows * place // count for place in (at, at + 1))
        yield ParquetRows(file, field, first, last - first)


def column_size(file: Path | str, field: str) -> int:
    """The bytes of a column of text, not compressed."""
    with _open_parquet(file) as table:
        groups = map(table.metadata.row_group, range(table.num_row_groups))
        columns = (group.column(i) for group in groups for i in range(group.num_columns))
        chosen = (column for column in columns if column.path_in_schema == field)
        return sum(column.total_uncompressed_size for column in chosen)


@contextmanager
def _open_parquet(file: Path | str) -> Iterator[Any]:
    """Opens a file, or an address, during a `with`. Raises InputError if it cannot be read."""
    import fsspec
    import pyarrow.parquet

    try:
        with fsspec.open(str(file), "rb") as stream:
            # A buffer reads a column of rows piece by piece, and not at once.
            yield pyarrow.parquet.ParquetFile(stream, buffer_size=2**20)
    except (OSError, UnicodeError, pyarrow.ArrowException) as error:
        raise InputError(f"data: {file} cannot be read as parquet ({root_cause(error)})") from None


def text_of(row: Any, field: str, where: str) -> str:
    """Returns the string under a key of a row. Raises InputError, which names those with one."""
    columns = row if isinstance(row, dict) else {}
    if isinstance(text := columns.get(field), str):
        return text
    names = [name for name, value in columns.items() if isinstance(value, str)]
    words = f"; strings are under {', '.join(names)}" if names else ""
    raise InputError(
        f"data.field={field}: {suggestion(field, names)}{where} has no such string{words}"
    )


def root_cause(error: BaseException) -> str:
    """The first line of the innermost cause: `datasets` wraps it in words that name nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


@contextmanager
def hide_bars() -> Iterator[None]:
    """Hides the progress bars and the log of `datasets` during a `with`."""
    import datasets

    were_hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # our own line says what is wrong
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if not were_hidden:
            datasets.enable_progress_bars()
