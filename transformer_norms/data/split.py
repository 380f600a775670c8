"""Splits a corpus into train, val and test, before anything else sees it.

A corpus of documents may be larger than memory, so a split works on slices of it. It says of each
text in which part it is, and at which place of the part. How a corpus is sliced has no effect.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

FEWEST_DOCUMENTS = 100
_BITS = 53  # of a hash: as many as a float holds exactly


class Placed(NamedTuple):
    """A text, the part in which it is, and its place among the texts of that part."""

    part: str
    place: int
    text: str


def split_by_hash(documents: Iterable[str], val_fraction: float, part: str = "") -> list[Placed]:
    """Puts each document where its own content sends it, so that equal documents stay together.

    u = SHA-256(document as UTF-8) as a number in [0, 1): test if u < f, val if u < 2 f, else train.
    Within a part, documents are in the order of u. So the first tokens of val are a fair sample
    of val, and the order of reading has no effect. The test part is as large as val. If a `part` is
    given, all documents are in it.
    """
    numbered = sorted((content_number(text), text) for text in documents)
    return [Placed(part or _part_of(number, val_fraction), place_of(number), text)
            for number, text in numbered]  # fmt: skip


def _part_of(number: float, val_fraction: float) -> str:
    if number < val_fraction:
        return "test"
    return "val" if number < 2 * val_fraction else "train"


def content_number(document: str) -> float:
    """SHA-256 of the document's UTF-8 bytes, its first 53 bits as a number in [0, 1)."""
    digest = hashlib.sha256(document.encode("utf-8")).digest()
    return (int.from_bytes(digest[:8], "big") >> 64 - _BITS) / 2**_BITS


def place_of(number: float) -> int:
    """The number of a document as an integer, exactly."""
    return int(number * 2**_BITS)


def tail_ends(characters: int, val_fraction: float, test_fraction: float) -> dict[str, int]:
    """val = the last share of the characters, as nanoGPT's text[int(n * (1 - f)):]. If there is a
    test part, it is the share of the characters before val, which train would have without it.

    Returns where each part ends, in the order of the text.
    """
    val = int(characters * (1 - val_fraction))
    if test_fraction == 0:
        return {"train": val, "val": characters}
    test = int(characters * (1 - val_fraction - test_fraction))
    return {"train": test, "test": val, "val": characters}


def position_ends(characters: int, val_fraction: float) -> dict[str, int]:
    """train, then val, then test, each of the last two the same share of the characters."""
    first = int(characters * (1 - 2 * val_fraction))
    second = int(characters * (1 - val_fraction))
    return {"train": first, "val": second, "test": characters}


def split_by_position(text: str, ends: dict[str, int]) -> list[Placed]:
    """Cuts running text at the ends of its parts. A part has one text."""
    starts = [0, *ends.values()]
    cut = zip(ends, starts, ends.values(), strict=False)
    return [Placed(part, 0, text[start:end]) for part, start, end in cut if start < end]
