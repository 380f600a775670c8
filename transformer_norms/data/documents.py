"""Corpora: the protocol of each, and the user's own files of text and of rows."""

import glob
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from transformer_norms.errors import InputError
from transformer_norms.files import sha256
from transformer_norms.kinds import Text, Texts
from transformer_norms.names import Registry, hint

CORPORA = Registry("corpus")


@runtime_checkable
class Slice(Protocol):
    """A part of a corpus that another process can read. It can be pickled."""

    def documents(self) -> Iterator[str]: ...


@runtime_checkable
class Corpus(Protocol):
    """`identity` stands for the text in hashes; `floor` is in nats per UTF-8 byte, or None.

    A corpus that may be large can also have `size`, about how many bytes its text has, and
    `slices()`, which yields Slices in order.
    """

    @property
    def floor(self) -> float | None: ...
    def identity(self) -> dict: ...
    def documents(self) -> Iterator[str]: ...


def find_files(patterns: Sequence[str]) -> list[Path]:
    """The files that `data.paths` names, globs in sorted order. Raises InputError."""
    files = [file for pattern in patterns for file in _match(pattern)]
    if not files:
        raise InputError("data.paths is empty: name a file, data.paths=FILE_OR_GLOB")
    seen: set[Path] = set()
    for file in files:
        _check(file)
        if file.resolve() in seen:
            # The same text twice would be on both sides of a split by position.
            raise InputError(f"data.paths: {file} is named twice; name each file once")
        seen.add(file.resolve())
    return files


def _match(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.exists():  # a file may be called a[1].txt, so an existing file wins over a glob
        return [path]
    if not glob.has_magic(pattern):
        raise InputError(f"data.paths: there is no file {pattern}")
    names = sorted(glob.glob(str(path), recursive=True))
    files = [Path(name) for name in names if not Path(name).is_dir()]
    if not files:
        raise InputError(f"data.paths: no file matches {pattern}")
    return files


def _check(file: Path) -> None:
    if file.is_dir():
        raise InputError(f"data.paths: {file} is a directory; name files, e.g. {file}/*.txt")
    if not file.is_file():
        raise InputError(f"data.paths: {file} is not a regular file")
    try:
        with file.open("rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        raise InputError(f"data.paths: {file} cannot be read ({error.strerror})") from None
    if empty:
        raise InputError(f"data.paths: {file} is empty")


@CORPORA("text")
class TextFiles:
    """Each file is a document of exactly its bytes: no newline is translated, no mark left out."""

    floor = None

    def __init__(self, *, paths: Texts) -> None:
        self.files = find_files(paths)

    def identity(self) -> dict:
        return {"type": "text", "sha256": [sha256(file) for file in self.files]}

    def documents(self) -> Iterator[str]:
        for file in self.files:
            try:
                yield file.read_bytes().decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"data.paths: {file} is not UTF-8 at byte {error.start}; convert it first, "
                    f"e.g. iconv -f LATIN1 -t UTF-8"
                ) from None


class _RowFiles:
    """Files of rows, read through `datasets`; the column `field` of each row is a document."""

    type: str
    builder: str
    floor = None

    def __init__(self, *, paths: Texts, field: Text) -> None:
        self.files = find_files(paths)
        self.field = field

    def identity(self) -> dict:
        hashes = [sha256(file) for file in self.files]
        return {"type": self.type, "sha256": hashes, "field": self.field}

    def documents(self) -> Iterator[str]:
        import datasets

        names = ", ".join(str(file) for file in self.files)
        # The usual cache of `datasets` is keyed by modification times and keeps a second copy.
        with tempfile.TemporaryDirectory() as cache, hide_bars():
            try:
                rows = datasets.load_dataset(
                    self.builder,
                    data_files=[str(file.resolve()) for file in self.files],
                    split="train",
                    cache_dir=cache,
                )
            except (datasets.exceptions.DatasetsError, ValueError) as error:
                raise InputError(
                    f"data.paths: {names} cannot be read as {self.type} ({root_cause(error)})"
                ) from None
            check_field(self.field, rows.features, names)
            yield from read_column(rows, self.field, names)


@CORPORA("jsonl")
class JsonLines(_RowFiles):
    """Files with one JSON object a line."""

    type, builder = "jsonl", "json"


@CORPORA("parquet")
class Parquet(_RowFiles):
    """Parquet files."""

    type, builder = "parquet", "parquet"


def read_column(rows: Any, field: str, where: str) -> Iterator[str]:
    """The documents in one column of a data set. Raises InputError for a row without text."""
    for number, row in enumerate(rows):
        document = row.get(field)
        if not isinstance(document, str):
            raise InputError(f"{where}: row {number} has no text in data.field={field}")
        yield document


def check_field(field: str, features: Any, where: str) -> None:
    """Raises InputError, which names the columns and the nearest, unless `field` holds text."""
    if features is None:  # a stream need not say its columns beforehand; its rows are checked
        return
    columns = list(features)
    if field not in columns:
        raise InputError(
            f"data.field={field}: {where} has no such column. "
            f"Columns are {', '.join(columns)}{hint(field, columns)}."
        )
    kind = getattr(features[field], "dtype", type(features[field]).__name__)
    if kind not in ("string", "large_string", "string_view"):
        raise InputError(f"data.field={field}: in {where} this column holds {kind} and no text")


def root_cause(error: BaseException) -> str:
    """The first line of the innermost cause: `datasets` wraps it in words that name nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


@contextmanager
def hide_bars() -> Iterator[None]:
    """Hides the progress bars of `datasets` during a `with`."""
    import datasets

    were_hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_hidden:
            datasets.enable_progress_bars()
