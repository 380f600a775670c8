"""Corpora of rows, one document a row, read through Hugging Face's `datasets`."""

import difflib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformer_norms.data.files import find_files, sha256_of
from transformer_norms.data.registries import CORPORA
from transformer_norms.errors import InputError
from transformer_norms.kinds import Text, Texts


class _RowFiles:
    """Files of rows; the column `field` of each row is a document."""

    type: str
    builder: str
    floor = None

    def __init__(self, *, paths: Texts, field: Text) -> None:
        self.files = find_files(paths)
        self.field = field

    def identity(self) -> dict:
        hashes = [sha256_of(file) for file in self.files]
        return {"type": self.type, "sha256": hashes, "field": self.field}

    def documents(self) -> Iterator[str]:
        import datasets

        names = ", ".join(str(file) for file in self.files)
        # Its own cache is keyed by modification times and keeps a second copy: a passing one here.
        with tempfile.TemporaryDirectory() as cache, quiet():
            try:
                rows = datasets.load_dataset(
                    self.builder,
                    data_files=[str(file.resolve()) for file in self.files],
                    split="train",
                    cache_dir=cache,
                )
            except (datasets.exceptions.DatasetsError, ValueError) as error:
                raise InputError(
                    f"data.paths: {names} cannot be read as {self.type} ({cause(error)})"
                ) from None
            check_field(self.field, rows.features, names)
            yield from column(rows, self.field, names)


@CORPORA("jsonl")
class JsonLines(_RowFiles):
    """Files with one JSON object a line."""

    type, builder = "jsonl", "json"


@CORPORA("parquet")
class Parquet(_RowFiles):
    """Parquet files."""

    type, builder = "parquet", "parquet"


def column(rows: Any, field: str, where: str) -> Iterator[str]:
    """One column of a data set as documents; a row without text is an InputError."""
    for number, row in enumerate(rows):
        document = row.get(field)
        if not isinstance(document, str):
            raise InputError(f"{where}: row {number} has no text in data.field={field}")
        yield document


def check_field(field: str, features: Any, where: str) -> None:
    """InputError naming the columns, and the nearest, unless `field` is a column of text."""
    if features is None:  # a stream need not say its columns beforehand; its rows are checked
        return
    columns = list(features)
    if field not in columns:
        near = difflib.get_close_matches(field, columns, n=1, cutoff=0)
        meant = f" (did you mean '{near[0]}'?)" if near else ""
        raise InputError(
            f"data.field={field}: {where} has no such column. "
            f"Columns are {', '.join(columns)}{meant}."
        )
    kind = getattr(features[field], "dtype", type(features[field]).__name__)
    if kind not in ("string", "large_string", "string_view"):
        raise InputError(f"data.field={field}: in {where} this column holds {kind} and no text")


def cause(error: BaseException) -> str:
    """The first line of the innermost reason: `datasets` wraps it in words that name nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of `datasets` within; afterwards as before."""
    import datasets

    before = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            datasets.enable_progress_bars()
