"""Texts and vocabularies from a network, which may be absent, or accept and never answer.

On such a network `datasets` waits for minutes and `tiktoken` for ever. So every request here has a
limited time.
"""

import hashlib
import itertools
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from transformer_norms.data.documents import (
    CORPORA,
    check_field,
    hide_bars,
    read_column,
    root_cause,
)
from transformer_norms.data.tokenizer import TOKENIZERS, RankTokenizer, Tokenizer
from transformer_norms.errors import InputError
from transformer_norms.kinds import Nothing, Positive, Text
from transformer_norms.progress import Say, Tell, tell_nobody

PATIENCE = 3.0  # seconds for a first answer
METADATA_SECONDS = 60.0
VOCABULARY_SECONDS = 120.0
HOST = "https://openaipublic.blob.core.windows.net"


def answers(url: str) -> bool:
    """Whether anything answers an HTTP HEAD there, through a proxy if the environment names one."""
    request = urllib.request.Request(url, method="HEAD")

    def ask() -> None:
        # The opener that urllib shares keeps the proxies of its first use.
        urllib.request.build_opener().open(request, timeout=PATIENCE).close()

    try:
        # The timeout of a socket limits neither the look-up of the name nor a slow drip of bytes.
        call_within(PATIENCE + 1, ask)
    except urllib.error.HTTPError:
        return True  # a refusal is an answer
    except (OSError, ValueError):  # TimeoutError is an OSError
        return False
    return True


def call_within(seconds: float, call: Callable[[], Any]) -> Any:
    """Returns the result of `call` or raises its exception. Raises TimeoutError after `seconds`,
    while the call goes on in a thread."""
    from pebble import concurrent

    try:
        return concurrent.thread(daemon=True)(call)().result(seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


@CORPORA("hub")
class Hub:
    """A data set on Hugging Face's hub. A row is a document; rows without text are left out.

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
        endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        instead = (
            "without the hub use data=pydocs, or data=text data.paths=FILE, "
            "or HF_DATASETS_OFFLINE=1 for a copy that was cached before"
        )
        offline = _offline()
        if not offline and not answers(endpoint):
            raise InputError(f"{where}: {endpoint} does not answer; {instead}")
        with hide_bars():
            try:
                rows = self._open(offline)
            except (OSError, ValueError, RuntimeError) as error:  # which `datasets` raises
                raise InputError(
                    f"{where} cannot be opened ({root_cause(error)}); {instead}"
                ) from None
            check_field(self.field, rows.features, where)
            texts = read_column(rows, self.field, where)
            yield from (text for text in itertools.islice(texts, self.limit) if text)

    def _open(self, offline: bool) -> Any:
        import datasets

        builder = call_within(
            METADATA_SECONDS,
            lambda: datasets.load_dataset_builder(
                self.name, self.subset, revision=None if offline else self.revision
            ),
        )
        if self.limit is not None and not offline:
            return builder.as_streaming_dataset(self.part)
        builder.download_and_prepare()
        return builder.as_dataset(self.part)


def _offline() -> bool:
    """Whether the user tells `datasets` to use only its cache and no network."""
    words = (os.environ.get(key, "") for key in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"))
    return any(word.upper() in {"1", "ON", "YES", "TRUE"} for word in words)


class _Vocabulary:
    """A published vocabulary, which tiktoken downloads or has in its cache."""

    type: str
    encoding: str
    pattern: str
    # Addresses and SHA-256, as in tiktoken_ext/openai_public.py.
    files: ClassVar[dict[str, str]]

    def identity(self) -> dict:
        return {"type": self.type}

    def fit(
        self, train: Iterable[str], separated: bool, say: Say, tell: Tell = tell_nobody
    ) -> Tokenizer:
        missing = [url for url, digest in self.files.items() if not _in_cache(url, digest, say)]
        if missing and not answers(HOST):
            raise InputError(self._unavailable(f"{HOST} does not answer"))
        try:
            encoding = call_within(VOCABULARY_SECONDS, self._load)
        except (OSError, ValueError) as error:  # requests' errors and TimeoutError are OSErrors
            raise InputError(self._unavailable(str(error).split("\n")[0][:200])) from None
        # tiktoken has no public way to all of its ranks at once.
        numbered = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
        ranks = [piece for piece, _ in numbered]
        return RankTokenizer(self.type, self.pattern, ranks, encoding.n_vocab, encoding.eot_token)

    def _load(self) -> Any:
        import tiktoken

        return tiktoken.get_encoding(self.encoding)

    def _unavailable(self, why: str) -> str:
        return (
            f"tokenizer={self.type}: its vocabulary is not at hand ({why}); use tokenizer=bpe or "
            f"tokenizer=byte, or TIKTOKEN_CACHE_DIR=FOLDER with tiktoken's files"
        )


@TOKENIZERS("gpt2")
class Gpt2(_Vocabulary):
    """GPT-2's byte pairs; Radford et al. 2019."""

    type, encoding, pattern = "gpt2", "gpt2", "r50k"
    files: ClassVar = {
        f"{HOST}/gpt-2/encodings/main/vocab.bpe": (
            "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
        ),
        f"{HOST}/gpt-2/encodings/main/encoder.json": (
            "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
        ),
    }


@TOKENIZERS("cl100k")
class Cl100k(_Vocabulary):
    """The byte pairs of GPT-3.5 and GPT-4."""

    type, encoding, pattern = "cl100k", "cl100k_base", "cl100k"
    files: ClassVar = {
        f"{HOST}/encodings/cl100k_base.tiktoken": (
            "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
        ),
    }


def _in_cache(url: str, digest: str, say: Say) -> bool:
    """Whether tiktoken's cache has the published file. tiktoken deletes a file with other content,
    so a copy of that file is kept."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder == "":  # which tells tiktoken to use no cache
        return False
    place = Path(folder or Path(tempfile.gettempdir(), "data-gym-cache"))
    file = place / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    if not file.is_file():
        return False
    if hashlib.sha256(file.read_bytes()).hexdigest() == digest:
        return True
    copy = file.with_name(file.name + ".unexpected")
    shutil.copyfile(file, copy)
    say(f"tokenizer: {file} is not {url.rsplit('/', 1)[1]} as published; a copy stays in {copy}")
    return False
