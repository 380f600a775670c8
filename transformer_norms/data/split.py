"""Splits a corpus into train, val and test, before anything else sees it.

A corpus that fits into one slice is read once and kept in memory, and so is running text. A larger
corpus of documents is read slice by slice, as often as it is needed, so that many processes share
it. A corpus may cut itself (`slices`), so that each process reads its own part of it; else one
process reads it and hands the texts out. How a corpus is cut has no effect on its split. It depends
on nothing but the corpus, so that a preparation that was stopped goes on with the same slices.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import NamedTuple

from transformer_norms.data.documents import Corpus, Slice
from transformer_norms.data.tokenizer import stretches
from transformer_norms.errors import InputError
from transformer_norms.progress import Tell

FEWEST_DOCUMENTS = 100
MOST_CHARACTERS = 2**25  # of a slice
MOST_RUNNING = 10**9  # characters of running text, which is read whole
MOST_LEARNED = 2**28  # characters of train that a tokenizer is fitted to
_BITS = 53  # of a hash: as many as a float holds exactly


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
    for document in filter(None, corpus.documents()):
        texts.append(document)
        characters += len(document)
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
    return None if validation and held is None else ReadTexts(texts, separate, held)


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
    yield ReadTexts(texts)


class Placed(NamedTuple):
    """A text, the part in which it is, and its place among the texts of that part."""

    part: str
    place: int
    text: str


@dataclass(frozen=True)
class Work:
    """A slice whose texts are to be placed. All are in `part`; if it is empty, their content splits
    them. A part of running text is one text."""

    slice: Slice
    part: str
    val_fraction: float

    def placed(self) -> list[Placed]:
        """Returns the texts in the order of their places. Equal texts are in one part.

        u = SHA-256(text as UTF-8) as a number in [0, 1): test if u < f, val if u < 2 f, else train.
        The test part is as large as val. Within a part, texts are in the order of u. So the first
        tokens of val are a fair sample of val, and the order of reading has no effect.
        """
        texts = filter(None, self.slice.documents())
        numbered = sorted((content_number(text), text) for text in texts)
        return [Placed(self.part or self._part_of(number), number, text)
                for number, text in numbered]  # fmt: skip

    def _part_of(self, number: int) -> str:
        u = number / 2**_BITS
        if u < self.val_fraction:
            return "test"
        return "val" if u < 2 * self.val_fraction else "train"


def content_number(text: str) -> int:
    """Returns the first 53 bits of the SHA-256 of a text as UTF-8."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") >> 64 - _BITS


@dataclass(frozen=True)
class Split:
    """A split of a corpus: `work()` yields its slices, as often as it is called.

    `separated` says that one end-of-document token follows each document. `sizes` are the
    characters of each part of running text. `note` is a line for the user, or empty.
    """

    rule: str
    separated: bool
    work: Callable[[], Iterator[Work]]
    sizes: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


def split_corpus(
    corpus: Corpus | ReadTexts, split: str, val_fraction: float, test_fraction: float
) -> Split:
    """Splits whole documents by `hash`, and one stretch of text by `position` or `tail`. Few
    documents are running text, split by position where the hash was asked for. Where the corpus has
    a `validation`, all other text is train, and there is no test part."""
    validation = getattr(corpus, "validation", None)
    parts = [(corpus, "train"), (validation, "val")] if validation else [(corpus, "")]
    separate = getattr(corpus, "keep_documents_separate", False)

    def whole_documents() -> Iterator[Work]:
        for part, name in parts:
            yield from (Work(one, name, val_fraction) for one in split_into_slices(part))

    def running_text(rule: str, text: str, ends: dict[str, int], note: str = "") -> Split:
        cut = [*zip(ends, [0, *ends.values()], ends.values(), strict=False)]
        work = [Work(ReadTexts([text[start:end]]), part, 0) for part, start, end in cut]
        sizes = {part: end - start for part, start, end in cut}
        return Split(rule, False, lambda: iter(work), sizes, note)

    if split == "tail":
        text = "".join(corpus.documents())
        # As nanoGPT's text[int(n * (1 - f)):]. A test part is cut off the end of train.
        first, second = (
            int(len(text) * (1 - val_fraction - share)) for share in (test_fraction, 0)
        )
        return running_text("tail", text, {"train": first, "test": second, "val": len(text)})
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
    first, second = (int(len(text) * (1 - times * val_fraction)) for times in (2, 1))
    return running_text("position", text, {"train": first, "val": second, "test": len(text)}, note)


Numbered = tuple[int, str]  # a text with its content number


def train_texts(work: Work, separated: bool, below: int) -> list[Numbered]:
    """Returns the texts of train whose content number is less than `below`; running text is cut."""
    texts = (one.text for one in work.placed() if one.part == "train")
    cut = texts if separated else chain.from_iterable(map(stretches, texts))
    return [(number, text) for text in cut if (number := content_number(text)) < below]


class LowestTexts:
    """The texts of lowest number: MOST_LEARNED characters of them, or all if there are no more.

    The number is a hash of the text. So they are a fair sample, and the same one in any order
    of the texts. A text whose number is not less than `below` is not among them.
    """

    def __init__(self) -> None:
        self.kept: list[Numbered] = []
        self.characters = 0
        self.below = 2**_BITS

    @property
    def left_out(self) -> bool:
        return self.below < 2**_BITS

    def add(self, texts: Iterable[Numbered]) -> None:
        for number, text in texts:
            self.kept.append((number, text))
            self.characters += len(text)
        if self.characters > 2 * MOST_LEARNED:
            self._leave_out()

    def texts(self) -> list[str]:
        """Returns the texts, and leaves out the rest."""
        self._leave_out()
        return [text for _, text in self.kept]

    def _leave_out(self) -> None:
        self.kept.sort()
        reached = list(accumulate(len(text) for _, text in self.kept))
        count = max(bisect_right(reached, MOST_LEARNED), 1)
        if count < len(self.kept):
            del self.kept[count:]
            self.characters = reached[count - 1]
            self.below = self.kept[-1][0] + 1
