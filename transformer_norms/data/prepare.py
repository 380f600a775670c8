"""Corpus, tokenizer and split -> tokens, from the cache or built into it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from transformer_norms.data.entry import PARTS, Entry, dtype_for, write_ids, write_manifest
from transformer_norms.data.measures import repeated_share, uniform_entropy, unigram_entropy
from transformer_norms.data.registries import SPLITS
from transformer_norms.data.split import Split
from transformer_norms.data.store import key_of, open_or_build
from transformer_norms.data.tokenizer import Tokenizer
from transformer_norms.data.tokenizer_file import load_tokenizer
from transformer_norms.errors import InputError
from transformer_norms.progress import Tell, untold

Say = Callable[[str], None]


@runtime_checkable
class Corpus(Protocol):
    """`identity` stands for the text in hashes; `floor` is in nats per UTF-8 byte, or None."""

    @property
    def floor(self) -> float | None: ...
    def identity(self) -> dict: ...
    def documents(self) -> Iterator[str]: ...


@runtime_checkable
class TokenizerChoice(Protocol):
    """What a config names: `fit` makes the tokenizer, and may look at train alone."""

    def identity(self) -> dict: ...
    def fit(self, train: list[str], separated: bool, say: Say, tell: Tell) -> Tokenizer: ...


@dataclass(frozen=True)
class Tokens:
    """The ids of each part, read-only; test may be empty.

    `fingerprint` is a SHA-256 of the ids and the tokenizer. `facts`, JSON-able: corpus, split,
    separated, documents, bytes and tokens per part, uniform and unigram (nats per token), floor
    (nats per byte, or None), repeated (share of val's documents in train), notes.
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    tokenizer: Tokenizer
    fingerprint: str
    facts: dict[str, Any]

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def check(self, context: int) -> None:
        """InputError unless train fills two contexts and val predicts a token."""
        for part, needed in (("train", 2 * context), ("val", 2)):
            there = len(getattr(self, part))
            if there < needed:
                raise InputError(
                    f"data={self.facts['corpus']['type']}: {part} has {there} tokens after "
                    f"data.split={self.facts['split']}, model.context={context} needs {needed}; "
                    "use more text or a shorter model.context"
                )


def prepare(
    corpus: Corpus,
    tokenizer: TokenizerChoice,
    split: str,
    val_fraction: float,
    say: Say,
    tell: Tell = untold,
) -> Tokens:
    """The tokens of a corpus. Raises InputError for unusable input, OSError for an unusable cache.

    `tell` is called often while encoding, and while waiting for another process; what it raises
    ends the preparation and leaves no trace.
    """
    content = {
        "corpus": corpus.identity(),
        "tokenizer": tokenizer.identity(),
        "split": split,
        "val_fraction": val_fraction,
    }

    def build(folder: Path) -> None:
        _build(folder, corpus, tokenizer, content, say, tell)

    def poll() -> None:
        tell("data: waiting", 0, 0)

    entry = open_or_build(key_of(content), build, say, poll)
    return _tokens(entry)


def _tokens(entry: Entry) -> Tokens:
    tokenizer = load_tokenizer(entry.tokenizer)
    return Tokens(
        **entry.ids, tokenizer=tokenizer, fingerprint=entry.fingerprint, facts=entry.facts
    )


def _build(
    folder: Path,
    corpus: Corpus,
    choice: TokenizerChoice,
    content: dict,
    say: Say,
    tell: Tell,
) -> None:
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        say(line)

    say(f"data: reading {content['corpus']['type']}")
    documents = _read(corpus, tell)
    parts = SPLITS[content["split"]](documents, content["val_fraction"], note)
    _check_parts(parts, content)
    tokenizer = choice.fit(parts.train, parts.separated, note, tell)
    encoded = _Encoded(sum(map(_bytes, documents)), tell)
    facts: dict[str, Any] = content | {"split": parts.rule, "separated": parts.separated}
    for part, texts in parts.parts().items():
        ids = encoded(tokenizer.encode_documents(texts, parts.separated), tokenizer.byte_lengths)
        count = write_ids(folder / f"{part}.bin", ids, tokenizer.vocab_size)
        sizes = {"documents": len(texts), "bytes": sum(map(_bytes, texts)), "tokens": count}
        facts[part] = sizes
    tell("data: counting", 0, 0)
    facts |= _measures(folder, parts, tokenizer)
    if parts.separated and facts["repeated"]:
        note(f"data: {facts['repeated']:.1%} of val's documents also stand in train, nearly")
    facts |= {"floor": corpus.floor, "notes": notes}
    write_manifest(folder, dtype_for(tokenizer.vocab_size), tokenizer.save(), facts)


def _read(corpus: Corpus, tell: Tell) -> list[str]:
    documents, characters = [], 0
    tell("data: reading", 0, 0)
    for document in corpus.documents():
        characters += len(document)
        tell("data: reading, {:.0f} million characters", characters / 1e6, 0)
        if document:
            documents.append(document)
    return documents


def _measures(folder: Path, parts: Split, tokenizer: Tokenizer) -> dict[str, float]:
    dtype, size = dtype_for(tokenizer.vocab_size), tokenizer.vocab_size
    train, val = (np.fromfile(folder / f"{part}.bin", dtype) for part in PARTS[:2])
    return {
        "uniform": uniform_entropy(size),
        "unigram": unigram_entropy(train, val, size),
        "repeated": repeated_share(parts.train, parts.val),
    }


def _check_parts(parts: Split, content: dict) -> None:
    for part in ("train", "val"):
        if not any(parts.parts()[part]):
            raise InputError(
                f"data={content['corpus']['type']}: no text falls into {part} with "
                f"data.split={parts.rule} data.val_fraction={content['val_fraction']:g}; "
                "use more text or another data.val_fraction"
            )


class _Encoded:
    """Ids as they come, and how far encoding is."""

    def __init__(self, total: int, tell: Tell) -> None:
        self.done, self.total, self.tell = 0, total, tell

    def __call__(
        self, arrays: Iterable[np.ndarray], byte_lengths: np.ndarray
    ) -> Iterator[np.ndarray]:
        for ids in arrays:
            yield ids
            self.done += int(byte_lengths[ids].sum())
            self.tell("data: encoding {:.0f}/{:.0f} MB", self.done / 1e6, self.total / 1e6)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8"))
