"""Slices of a corpus: as much text as one process holds, so that many processes share a corpus.

A corpus that fits into one slice is read once and kept in memory, and so is running text. A larger
corpus of documents is read as often as it is needed. A corpus may cut itself (`slices`), so that
each process reads its own part of it; else one process reads it and hands the texts out. How a
corpus is cut depends on nothing but the corpus, so that a preparation that was stopped goes on with
the same slices.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice

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
MOST_RUNNING = 10**9  # characters of running text, which is read whole
MOST_LEARNED = 2**28  # characters of train that a tokenizer is fitted to

Numbered = tuple[int, str]  # a text with its content number as an integer


@dataclass(frozen=True)
class ReadTexts:
    """Texts in memory: a slice that was read already, or a whole corpus."""

    texts: list[str]
    keep_documents_separate: bool = False
    validation: "ReadTexts | None" = None

    @property
    def size(self) -> int:
        own = sum(len(text.encode()) for text in self.texts)
        return own + (self.validation.size if self.validation else 0)

    def documents(self) -> Iterator[str]:
        return iter(self.texts)


def read_corpus(corpus: Corpus, split: str, tell: Tell) -> ReadTexts | None:
    """Returns the corpus read into memory, without empty documents. None if it is too large for
    one slice, and its documents are split one by one. Running text is read whole: raises InputError
    if it is longer than MOST_RUNNING."""
    texts, characters = [], 0
    separate = getattr(corpus, "keep_documents_separate", False)
    running = split == "tail"
    tell("data: reading", 0, 0)
    for document in corpus.documents():
        characters += len(document)
        if document:
            texts.append(document)
        running = split == "tail" or (len(texts) < FEWEST_DOCUMENTS and not separate)
        if characters > MOST_CHARACTERS and not running:
            return None
        if characters > MOST_RUNNING:
            raise InputError(
                f"data: running text has {MOST_RUNNING:,} characters at most; cut it into documents"
            )
        tell("data: reading, {:.0f} million characters", characters / 1e6, 0)
    validation = getattr(corpus, "validation", None)
    held = read_corpus(validation, "tail" if running else split, tell) if validation else None
    if validation and held is None:
        return None
    return ReadTexts(texts, separate, held)


def split_into_slices(corpus: Corpus | ReadTexts) -> Iterator[Slice]:
    """The slices of a corpus, in order."""
    if isinstance(corpus, ReadTexts):
        return iter([ReadTexts(corpus.texts)])
    own = corpus.slices() if hasattr(corpus, "slices") else None
    return _gather(corpus.documents()) if own is None else own


def _gather(documents: Iterable[str]) -> Iterator[Slice]:
    texts, characters = [], 0
    for document in documents:
        texts.append(document)
        characters += len(document)
        if characters >= MOST_CHARACTERS:
            yield ReadTexts(texts)
            texts, characters = [], 0
    if texts:
        yield ReadTexts(texts)


@dataclass(frozen=True)
class Documents:
    """A slice of whole documents. All are in `part`; if it is empty, their content splits them."""

    slice: Slice
    val_fraction: float
    part: str = ""


Work = Documents | Placed  # a part of running text is placed already


def placed_texts(work: Work) -> list[Placed]:
    """The texts of a slice as the split places them; in a part, in the order of their places."""
    if isinstance(work, Placed):
        return [work]
    return split_by_hash(filter(None, work.slice.documents()), work.val_fraction, work.part)


def train_texts(work: Work, below: int) -> list[Numbered]:
    """The texts of train whose content number is less than `below`; running text is cut."""
    texts = [text for text in placed_texts(work) if text.part == "train"]
    numbered = [(text.place, text.text) for text in texts]
    if isinstance(work, Placed):
        cut = (own for text in texts for own in stretches(text.text))
        numbered = [(place_of(content_number(own)), own) for own in cut]
    return [(number, text) for number, text in numbered if number < below]


@dataclass(frozen=True)
class Split:
    """A split of a corpus: `work()` yields its slices, as often as it is called.

    `separated` says that one end-of-document token follows each document. `sizes` are the
    characters of each part of running text. `note` is a line for the user, or empty.
    """

    rule: str
    separated: bool
    work: Callable[[], Iterator[Work]]
    sizes: dict[str, int] = field(default_factory=dict)
    note: str = ""


def split_corpus(
    corpus: Corpus | ReadTexts, split: str, val_fraction: float, test_fraction: float
) -> Split:
    """Splits whole documents by `hash`, and one stretch of text by `position` or `tail`. Few
    documents are running text, split by position where the hash was asked for. Where the corpus has
    a `validation`, all of its own text is train, and there is no test part."""
    validation = getattr(corpus, "validation", None)
    parts = [(corpus, "train"), (validation, "val")] if validation else [(corpus, "")]
    separate = getattr(corpus, "keep_documents_separate", False)

    def whole_documents() -> Iterator[Work]:
        for part, name in parts:
            yield from (Documents(one, val_fraction, name) for one in split_into_slices(part))

    def running_text(rule: str, text: str, ends: dict[str, int], note: str = "") -> Split:
        placed = split_by_position(text, ends)
        sizes = dict.fromkeys(ends, 0) | {one.part: len(one.text) for one in placed}
        return Split(rule, False, lambda: iter(placed), sizes, note)

    if split == "tail":
        text = "".join(corpus.documents())
        return running_text("tail", text, tail_ends(len(text), val_fraction, test_fraction))
    assert test_fraction == 0, "the test part of a split by hash is as large as val"
    count = sum(1 for _ in islice(filter(None, corpus.documents()), FEWEST_DOCUMENTS))
    if count == FEWEST_DOCUMENTS or (separate and validation):
        return Split("files" if validation else "hash", True, whole_documents)
    if separate:
        raise InputError(
            f"data.separator: the text has {count} document(s) with it, and val and test are drawn "
            f"from {FEWEST_DOCUMENTS} at least; leave it out, or name data.val_paths"
        )
    text = "".join(corpus.documents())
    if validation:
        whole = text + "".join(validation.documents())
        return running_text("files", whole, {"train": len(text), "val": len(whole)})
    note = (
        f"data: {count} document(s), fewer than {FEWEST_DOCUMENTS}: split by position, "
        f"train first, then val, then test, each {val_fraction:g} of the text"
    )
    return running_text("position", text, position_ends(len(text), val_fraction), note)


class LowestTexts:
    """The texts of lowest number: MOST_LEARNED characters of them, or all if there are no more.

    The number is a hash of the text. So they are a fair sample, and the same one in any order
    of the texts. A text whose number is not less than `below` is not among them.
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
