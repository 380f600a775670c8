"""Slices of a corpus: as much text as one process holds, so that many processes share a corpus.

A corpus that fits into one slice is read once and kept in memory. A larger one is read as often as
it is needed. A corpus may cut itself (`slices`), so that each process reads its own part of it;
else one process reads it and hands the texts out. How a corpus is cut depends on nothing but the
corpus, so that a preparation that was stopped goes on with the same slices.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import Protocol, runtime_checkable

from transformer_norms.data.documents import Corpus, Slice
from transformer_norms.data.split import (
    FEWEST_DOCUMENTS,
    Placed,
    content_number,
    place_of,
    position_ends,
    split_by_hash,
    split_by_position,
    tail_ends,
)
from transformer_norms.data.tokenizer import stretches
from transformer_norms.errors import InputError
from transformer_norms.progress import Tell

MOST_CHARACTERS = 2**25  # of a slice
MOST_LEARNED = 2**28  # characters of train that a tokenizer is fitted to

Numbered = tuple[int, str]  # a text with its content number as an integer


@dataclass(frozen=True)
class ReadSlice:
    """A slice that was read already."""

    texts: list[str]

    def documents(self) -> Iterator[str]:
        return iter(self.texts)


class Held:
    """A corpus in memory: one slice."""

    def __init__(
        self, texts: list[str], apart: bool = False, validation: "Held | None" = None
    ) -> None:
        self.texts, self.apart, self.validation = texts, apart, validation
        self.size = sum(len(text.encode()) for text in texts)
        self.size += validation.size if validation else 0

    def documents(self) -> Iterator[str]:
        return iter(self.texts)


def hold(corpus: Corpus, tell: Tell) -> Held | None:
    """Returns the corpus read into memory, without empty documents. None if it is too large."""
    texts, characters = [], 0
    tell("data: reading", 0, 0)
    for document in corpus.documents():
        characters += len(document)
        if characters > MOST_CHARACTERS:
            return None
        tell("data: reading, {:.0f} million characters", characters / 1e6, 0)
        if document:
            texts.append(document)
    validation = getattr(corpus, "validation", None)
    held = hold(validation, tell) if validation else None
    if validation and held is None:
        return None
    return Held(texts, getattr(corpus, "apart", False), held)


def cut(corpus: Corpus | Held) -> Iterator[Slice]:
    """The slices of a corpus, in order."""
    if isinstance(corpus, Held):
        return iter([ReadSlice(corpus.texts)])
    own = corpus.slices() if hasattr(corpus, "slices") else None
    return _gather(corpus.documents()) if own is None else own


def _gather(documents: Iterable[str]) -> Iterator[Slice]:
    texts, characters = [], 0
    for document in documents:
        texts.append(document)
        characters += len(document)
        if characters >= MOST_CHARACTERS:
            yield ReadSlice(texts)
            texts, characters = [], 0
    if texts:
        yield ReadSlice(texts)


@runtime_checkable
class Work(Protocol):
    """The texts of a slice as the split places them; in a part, in the order of their places."""

    def placed(self) -> list[Placed]: ...
    def train_texts(self, below: int) -> list[Numbered]:
        """The texts of train whose content number is less than `below`."""


@dataclass(frozen=True)
class Hashed:
    """A slice of whole documents, which are split by their content."""

    slice: Slice
    val_fraction: float

    def placed(self) -> list[Placed]:
        documents = (text for text in self.slice.documents() if text)
        return split_by_hash(documents, self.val_fraction)

    def train_texts(self, below: int) -> list[Numbered]:
        return [(place, text) for part, place, text in self.placed()
                if part == "train" and place < below]  # fmt: skip


@dataclass(frozen=True)
class Whole:
    """A slice of whole documents of one part, in the order of their content numbers."""

    slice: Slice
    part: str

    def placed(self) -> list[Placed]:
        numbered = sorted((content_number(text), text) for text in self.slice.documents() if text)
        return [Placed(self.part, place_of(number), text) for number, text in numbered]

    def train_texts(self, below: int) -> list[Numbered]:
        if self.part != "train":
            return []
        return [(place, text) for _, place, text in self.placed() if place < below]


@dataclass(frozen=True)
class Stretch:
    """A slice of running text, which is split by position."""

    text: Placed

    def placed(self) -> list[Placed]:
        return [self.text]

    def train_texts(self, below: int) -> list[Numbered]:
        if self.text.part != "train":
            return []
        numbered = ((place_of(content_number(text)), text) for text in stretches(self.text.text))
        return [(number, text) for number, text in numbered if number < below]


@dataclass(frozen=True)
class Split:
    """A split of a corpus: `work()` yields its slices, as often as it is called.

    `separated` says that one end-of-document token follows each document. `ends` says where each
    part of running text ends, in characters. `note` is a line for the user, or empty.
    """

    rule: str
    separated: bool
    work: Callable[[], Iterator[Work]]
    ends: dict[str, int] = field(default_factory=dict)
    note: str = ""


def split_corpus(
    corpus: Corpus | Held, split: str, val_fraction: float, test_fraction: float
) -> Split:
    """Splits whole documents by `hash`, one stretch of text by `position` or `tail`. Few documents
    are split by position, where the hash was asked for."""

    if validation := getattr(corpus, "validation", None):
        return split_by_file(corpus, validation)

    def documents() -> Iterator[str]:
        return filter(None, corpus.documents())

    def hashed() -> Iterator[Work]:
        return (Hashed(slice, val_fraction) for slice in cut(corpus))

    def cut_at(ends: dict[str, int]) -> Callable[[], Iterator[Work]]:
        return lambda: map(Stretch, split_by_position(documents(), ends, MOST_CHARACTERS))

    if split == "tail":
        ends = tail_ends(sum(map(len, documents())), val_fraction, test_fraction)
        return Split("tail", False, cut_at(ends), ends)
    assert test_fraction == 0, "the test part of a split by hash is as large as val"
    count = sum(1 for _ in islice(documents(), FEWEST_DOCUMENTS))
    if count == FEWEST_DOCUMENTS:
        return Split("hash", True, hashed)
    if getattr(corpus, "apart", False):
        raise InputError(
            f"data.separator: the text has {count} document(s) with it, and val and test are drawn "
            f"from {FEWEST_DOCUMENTS} at least; leave it out, or name data.val_paths"
        )
    ends = position_ends(sum(map(len, documents())), val_fraction)
    note = (
        f"data: {count} document(s), fewer than {FEWEST_DOCUMENTS}: split by position, "
        f"train first, then val, then test, each {val_fraction:g} of the text"
    )
    return Split("position", False, cut_at(ends), ends, note)


def split_by_file(corpus: Corpus | Held, validation: Corpus | Held) -> Split:
    """All text of the corpus is train, and that of `validation` is val. There is no test part.
    A few files without a separator are running text, as in any other split."""

    def texts(part: Corpus | Held) -> Iterator[str]:
        return filter(None, part.documents())

    def whole() -> Iterator[Work]:
        for part, name in ((corpus, "train"), (validation, "val")):
            yield from (Whole(slice, name) for slice in cut(part))

    few = sum(1 for _ in islice(texts(corpus), FEWEST_DOCUMENTS)) < FEWEST_DOCUMENTS
    if getattr(corpus, "apart", False) or not few:
        return Split("files", True, whole)
    train, val = (sum(map(len, texts(part))) for part in (corpus, validation))
    ends = {"train": train, "val": train + val}

    def stretched() -> Iterator[Work]:
        both = chain(texts(corpus), texts(validation))
        return map(Stretch, split_by_position(both, ends, MOST_CHARACTERS))

    return Split("files", False, stretched, ends)


class LowestTexts:
    """The texts of lowest number: MOST_LEARNED characters of them, or all if there are no more.

    The number is a hash of the text. So they are a fair sample, and the same one in whatever order
    the texts come. A text whose number is not less than `below` is not among them.
    """

    def __init__(self) -> None:
        self.kept: list[Numbered] = []
        self.characters = 0
        self.below = 2**64
        self.left_out = False

    def add(self, texts: Iterable[Numbered]) -> None:
        for number, text in texts:
            self.kept.append((number, text))
            self.characters += len(text)
        if self.characters > 2 * MOST_LEARNED:
            self._leave_out()

    def texts(self) -> list[str]:
        self._leave_out()
        return [text for _, text in self.kept]

    def _leave_out(self) -> None:
        self.kept.sort()
        if self.characters > MOST_LEARNED:
            reached = list(accumulate(len(text) for _, text in self.kept))
            del self.kept[max(bisect_right(reached, MOST_LEARNED), 1) :]
            self.characters = reached[len(self.kept) - 1]
            self.below = self.kept[-1][0] + 1
            self.left_out = True
