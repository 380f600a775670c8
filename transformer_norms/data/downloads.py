"""Texts and vocabularies from a network, which may be absent, or accept and never answer.

On such a network `datasets` waits for minutes and `tiktoken` for ever. So every request here has a
limited time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from transformer_norms.data.documents import (
    CORPORA,
    ParquetRows,
    Slice,
    column_size,
    cut_parquet,
    hide_bars,
    read_json_lines,
    root_cause,
    text_of,
)
from transformer_norms.errors import InputError
from transformer_norms.kinds import Nothing, Positive, Text
from transformer_norms.storage.files import as_storage_error

SECONDS = 60.0  # for an answer
_INSTEAD = (
    "without the hub use data=pydocs, or data=text data.paths=FILE, "
    "or HF_DATASETS_OFFLINE=1 for a copy that was cached before"
)


@contextmanager
def refusals(what: str, instead: str) -> Iterator[None]:
    """Turns the errors of libraries, each of which has its own kinds, into InputErrors."""
    try:
        yield
    except (InputError, ModuleNotFoundError):
        raise
    except Exception as error:
        if refusal := as_storage_error(error):
            raise refusal from None
        raise InputError(f"{what} ({root_cause(error)}); {instead}") from None


def fetch(what: str, instead: str, call: Callable[[], Any]) -> Any:
    """Returns the result of `call`, which asks a network. Raises InputError where it fails, or has
    no answer after SECONDS; then it goes on in a thread."""
    from pebble import concurrent

    with refusals(f"{what} is not at hand", instead):
        try:
            return concurrent.thread(daemon=True)(call)().result(SECONDS)
        except TimeoutError:
            raise TimeoutError(f"no answer within {SECONDS:g} s") from None


@CORPORA("hub")
class Hub:
    """A data set on Hugging Face's hub. A row is a document; rows without text are left out.

    `part` is the hub's own split, or several joined by +. A number of `documents` is streamed, so
    that a sample of a large corpus does not download the whole. `all` downloads file by file into
    Hugging Face's own cache.
    """

    floor = None
    size = 0  # bytes of text, about, as soon as a file of a large data set is there

    def __init__(
        self,
        *,
        name: Text,
        subset: Nothing | Text,
        revision: Text,
        field: Text,
        part: Text,
        documents: Literal["all"] | Positive,
    ) -> None:
        self.name = name
        self.subset = None if subset == "none" else subset
        self.revision = revision
        self.field = field
        self.part = part
        self.limit = None if documents == "all" else documents

    def identity(self) -> dict:
        keys = ("name", "subset", "revision", "field", "part", "limit")
        return {"type": "hub"} | {key: getattr(self, key) for key in keys}

    def documents(self) -> Iterator[str]:
        texts = self._rows()
        if files := self._files("Parquet"):
            texts = chain.from_iterable(rows.documents() for rows in self._cut(files))
        elif files := self._files("Json"):
            read = partial(read_json_lines, field=self.field, key=f"data.name={self.name}")
            texts = chain.from_iterable(map(read, self._open(files)))
        yield from filter(None, islice(texts, self.limit))

    def _rows(self) -> Iterator[str]:
        """The texts as `datasets` reads them. It casts columns to the types of their first rows."""
        with hide_bars(), refusals(f"data.name={self.name} cannot be read", _INSTEAD):
            if self.limit is not None and not self._offline:
                rows = self._builder.as_streaming_dataset(self.part)
            else:
                self._builder.download_and_prepare()
                rows = self._builder.as_dataset(self.part)
            for number, row in enumerate(rows):
                yield text_of(row, self.field, f"data.name={self.name}, row {number}")

    def slices(self) -> Iterator[Slice] | None:
        """The slices of a data set that is stored as Parquet and wanted as a whole."""
        files = self._files("Parquet") if self.limit is None else []
        return self._cut(files) if files else None

    @property
    def _offline(self) -> bool:
        """Whether the user tells `datasets` to use only its cache and no network."""
        import datasets

        return bool(datasets.config.HF_HUB_OFFLINE)

    @cached_property
    def _builder(self) -> Any:
        """The builder of `datasets`, which knows the files of the data set."""
        import datasets

        revision = None if self._offline else self.revision
        load = partial(datasets.load_dataset_builder, self.name, self.subset, revision=revision)
        with hide_bars():
            return fetch(f"data.name={self.name}", _INSTEAD, load)

    def _files(self, kind: str) -> list[str]:
        """The addresses of the data set's files, if it is stored as `kind` and no rows are cut out.
        Offline, `datasets` finds what it has prepared before."""
        parts, kinds = self.part.split("+"), {base.__name__ for base in type(self._builder).__mro__}
        config = self._builder.config
        known = kind in kinds and not self._offline and not getattr(config, "field", None)
        files = config.data_files if known else {}
        return [file for part in parts for file in files[part]] if set(parts) <= set(files) else []

    def _cut(self, addresses: list[str]) -> Iterator[ParquetRows]:
        bytes_so_far = 0
        for count, file in enumerate(self._open(addresses), start=1):
            bytes_so_far += column_size(file, self.field)
            whole = bytes_so_far * len(addresses) // count  # as if all files were like these
            self.size = whole if self.limit is None else 0
            yield from cut_parquet(file, self.field)

    def _open(self, addresses: list[str]) -> Iterator[Path | str]:
        """Yields the files, in Hugging Face's cache. A download that was stopped goes on where it
        was. A number of documents is read at the addresses."""
        import datasets

        download = datasets.DownloadManager().download
        for address in addresses:
            file: Path | str = address
            if self.limit is None:
                with hide_bars(), refusals(f"data.name={self.name} cannot be downloaded", _INSTEAD):
                    file = Path(download(address))
            yield file
