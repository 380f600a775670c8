import itertools
import os
from collections.abc import Iterator
from typing import Any, Literal

from transformer_norms.data.network import answers, within
from transformer_norms.data.registries import CORPORA
from transformer_norms.data.rows import cause, check_field, column, quiet
from transformer_norms.errors import InputError
from transformer_norms.kinds import Nothing, Positive, Text

METADATA_SECONDS = 60.0


@CORPORA("hub")
class Hub:
    """A data set on Hugging Face's hub; a row is a document, and rows without text are left out.

    `part` is the hub's own split, or several joined by +. A number of `documents` is streamed, so
    that a sample of a large corpus does not download the whole.
    """

    floor = None

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
        where = f"data.name={self.name}"
        offline = _offline()
        if not offline and not answers(_endpoint()):
            raise InputError(f"{where}: {_endpoint()} does not answer; {_instead()}")
        with quiet():
            try:
                rows = self._open(offline)
            except (OSError, ValueError, RuntimeError) as error:  # what `datasets` raises is these
                raise InputError(
                    f"{where} cannot be opened ({cause(error)}); {_instead()}"
                ) from None
            check_field(self.field, rows.features, where)
            texts = column(rows, self.field, where)
            yield from (text for text in itertools.islice(texts, self.limit) if text)

    def _open(self, offline: bool) -> Any:
        import datasets

        def metadata() -> Any:
            return datasets.load_dataset_builder(
                self.name, self.subset, revision=None if offline else self.revision
            )

        builder = within(METADATA_SECONDS, metadata)
        if self.limit is not None and not offline:
            return builder.as_streaming_dataset(self.part)
        builder.download_and_prepare()
        return builder.as_dataset(self.part)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _offline() -> bool:
    """The user says so in the way of `datasets`: only what is cached, no network asked."""
    words = (os.environ.get(key, "") for key in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"))
    return any(word.upper() in {"1", "ON", "YES", "TRUE"} for word in words)


def _instead() -> str:
    return (
        "without the hub use data=pydocs, or data=text data.paths=FILE, "
        "or HF_DATASETS_OFFLINE=1 for a copy that was cached before"
    )
