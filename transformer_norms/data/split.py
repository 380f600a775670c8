"""Splits documents into train, val and test, before anything else sees them."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

FEWEST_DOCUMENTS = 100


@dataclass(frozen=True)
class Split:
    """The parts of a corpus: whole documents by `hash`, one stretch of text by `position`, `tail`.

    `separated` says that one end-of-document token follows each document. `note` is a line for the
    user, or empty.
    """

    rule: str
    train: list[str]
    val: list[str]
    test: list[str] = field(default_factory=list)
    separated: bool = False
    note: str = ""

    def parts(self) -> dict[str, list[str]]:
        return {"train": self.train, "val": self.val, "test": self.test}


def split_by_hash(documents: list[str], val_fraction: float, test_fraction: float = 0) -> Split:
    """Puts each document where its own content sends it, so that equal documents stay together.

    u = SHA-256(document as UTF-8) as a number in [0, 1): test if u < f, val if u < 2 f, else train.
    Within a part, documents stand in the order of u. So the first tokens of val are a fair sample
    of val, and the order of reading has no effect. Few documents are split by position. The test
    part is as large as val, so that there is no `test_fraction`.
    """
    assert test_fraction == 0
    if len(documents) < FEWEST_DOCUMENTS:
        return _split_by_position(documents, val_fraction)
    parts: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for number, document in sorted((content_number(text), text) for text in documents):
        if number < val_fraction:
            parts["test"].append(document)
        elif number < 2 * val_fraction:
            parts["val"].append(document)
        else:
            parts["train"].append(document)
    return Split("hash", parts["train"], parts["val"], parts["test"], separated=True)


def split_by_tail(documents: list[str], val_fraction: float, test_fraction: float = 0) -> Split:
    """val = the last share of the characters, as nanoGPT's text[int(n * (1 - f)):]. If there is a
    test part, it is the share of the characters before val, which train would have without it."""
    text = "".join(documents)
    val = int(len(text) * (1 - val_fraction))
    if test_fraction == 0:
        return Split(rule="tail", train=[text[:val]], val=[text[val:]])
    test = int(len(text) * (1 - val_fraction - test_fraction))
    return Split(rule="tail", train=[text[:test]], val=[text[val:]], test=[text[test:val]])


def content_number(document: str) -> float:
    """SHA-256 of the document's UTF-8 bytes, its first 53 bits as a number in [0, 1)."""
    digest = hashlib.sha256(document.encode("utf-8")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def _split_by_position(documents: list[str], val_fraction: float) -> Split:
    text = "".join(documents)
    first = int(len(text) * (1 - 2 * val_fraction))
    second = int(len(text) * (1 - val_fraction))
    note = (
        f"data: {len(documents)} document(s), fewer than {FEWEST_DOCUMENTS}: split by position, "
        f"train first, then val, then test, each {val_fraction:g} of the text"
    )
    return Split("position", [text[:first]], [text[first:second]], [text[second:]], note=note)


SPLITS = {"hash": split_by_hash, "tail": split_by_tail}


def repeated_share(train: Iterable[str], val: list[str]) -> float:
    """The share of val's documents that are also in train, but for case and white space."""
    known = {_normalized_hash(text) for text in val}
    shared = known & {_normalized_hash(text) for text in train}
    return sum(_normalized_hash(text) in shared for text in val) / max(len(val), 1)


def _normalized_hash(text: str) -> int:
    # 64 bits of Python's own hash serve for counting in this process alone.
    return hash(" ".join(text.split()).casefold())
