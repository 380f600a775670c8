"""Prepares the tokens of a corpus: from the cache, or read, split, encoded and put there."""

import math
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from transformer_norms.data.documents import Corpus
from transformer_norms.data.split import SPLITS, Split, repeated_share
from transformer_norms.data.token_cache import (
    Tokens,
    dtype_for,
    entry_key,
    open_entry,
    open_or_build,
    pack_ids,
    seal_entry,
)
from transformer_norms.data.tokenizer import Tokenizer
from transformer_norms.errors import InputError
from transformer_norms.manifest import Draft
from transformer_norms.progress import Say, Tell, tell_nobody


@runtime_checkable
class TokenizerChoice(Protocol):
    """A tokenizer that a config names. `fit` makes it, and sees only the train part."""

    def identity(self) -> dict: ...
    def fit(self, train: list[str], separated: bool, say: Say, tell: Tell) -> Tokenizer: ...


def prepare(
    corpus: Corpus,
    tokenizer: TokenizerChoice,
    split: str,
    val_fraction: float,
    test_fraction: float,
    say: Say,
    tell: Tell = tell_nobody,
) -> Tokens:
    """Returns the tokens of a corpus. Raises InputError, or StorageError for an unusable cache.

    `tell` is called often while encoding, and while waiting for another process. If it raises an
    exception, the preparation ends and leaves no trace.
    """
    content = {
        "corpus": identity_of(corpus),
        "tokenizer": tokenizer.identity(),
        "split": split,
        "val_fraction": val_fraction,
        "test_fraction": test_fraction,
    }
    return open_or_build(
        "tokens",
        entry_key(content),
        build=lambda draft: _build(draft, corpus, tokenizer, content, say, tell),
        read=open_entry,
        say=say,
        poll=lambda: tell("data: waiting", 0, 0),
    )


def identity_of(corpus: Corpus) -> dict:
    """Returns what stands for the corpus in hashes. Raises InputError if the corpus, which may be a
    plugin's, has no `type` in its identity or no `floor`."""
    identity, name = corpus.identity(), type(corpus).__name__
    if not isinstance(identity, dict) or not isinstance(identity.get("type"), str):
        raise InputError(
            f"data: {name}.identity() returns {identity!r}; wanted is a dict with type"
        )
    if not hasattr(corpus, "floor"):
        raise InputError(f"data: {name}.floor is missing: nats per UTF-8 byte, or None")
    return identity


def _build(
    draft: Draft, corpus: Corpus, choice: TokenizerChoice, content: dict, say: Say, tell: Tell
) -> None:
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        say(line)

    say(f"data: reading {content['corpus']['type']}")
    documents = _read_documents(corpus, tell)
    shares = content["val_fraction"], content["test_fraction"]
    split = SPLITS[content["split"]](documents, *shares)
    if split.note:
        note(split.note)
    _check_parts(split, content)
    tokenizer = choice.fit(split.train, split.separated, note, tell)
    facts: dict[str, Any] = content | {"split": split.rule, "separated": split.separated}
    facts |= _write_parts(draft, split, tokenizer, tell)
    facts["uniform"] = math.log(tokenizer.vocab_size)
    facts["repeated"] = repeated_share(split.train, split.val)
    if split.separated and facts["repeated"]:
        note(f"data: {facts['repeated']:.1%} of val's documents also stand in train, nearly")
    facts |= {"floor": corpus.floor, "notes": notes}
    seal_entry(draft, tokenizer.vocab_size, tokenizer.save(), facts)


def _read_documents(corpus: Corpus, tell: Tell) -> list[str]:
    documents, characters = [], 0
    tell("data: reading", 0, 0)
    for document in corpus.documents():
        characters += len(document)
        tell("data: reading, {:.0f} million characters", characters / 1e6, 0)
        if document:
            documents.append(document)
    return documents


def _check_parts(split: Split, content: dict) -> None:
    test = content["test_fraction"]
    shares = f"data.val_fraction={content['val_fraction']:g}"
    shares += f" data.test_fraction={test:g}" if test else ""
    for part in ("train", "val", "test") if test else ("train", "val"):
        if not any(split.parts()[part]):
            raise InputError(
                f"data={content['corpus']['type']}: no text falls into {part} with "
                f"data.split={split.rule} {shares}; use more text or other shares"
            )


def _write_parts(
    draft: Draft, split: Split, tokenizer: Tokenizer, tell: Tell
) -> dict[str, dict[str, int]]:
    """Encodes each part into a file. Returns how many documents, bytes and tokens it has."""
    sizes = {
        part: sum(len(text.encode()) for text in texts) for part, texts in split.parts().items()
    }
    total, done, facts = sum(sizes.values()), 0, {}

    def encode(texts: list[str]) -> Iterator[bytes]:
        nonlocal done
        for ids in tokenizer.encode_documents(texts, split.separated):
            yield pack_ids(ids, tokenizer.vocab_size)
            done += int(tokenizer.byte_lengths[ids].sum())
            tell("data: encoding {:.0f}/{:.0f} MB", done / 1e6, total / 1e6)

    width = np.dtype(dtype_for(tokenizer.vocab_size)).itemsize
    for part, texts in split.parts().items():
        draft.write(f"{part}.bin", encode(texts))
        tokens = draft.files[f"{part}.bin"]["size"] // width
        facts[part] = {"documents": len(texts), "bytes": sizes[part], "tokens": tokens}
    return facts
