"""Text <-> ids: tokenizers of bytes and of byte pairs, how they are fitted, saved and loaded.

A saved tokenizer is JSON that holds all it needs, published vocabularies included. So the folder of
a run can be mailed, and works without a network.
"""

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from transformer_norms.errors import InputError, describe_error
from transformer_norms.kinds import Integer
from transformer_norms.names import Registry
from transformer_norms.progress import Say, Tell

TOKENIZERS = Registry("tokenizer")
SCHEMA = 1
FEWEST_IDS = 257  # the bytes, and the end of a document
MOST_IDS = 2**20
_MOST_GAPS = 1024  # ids beyond the ranks: separators, and unused ids of published vocabularies
_STRETCH = 2**17  # characters that are encoded between two reports of progress
_GROUP = 64  # stretches that are encoded at once, on all cores

# Patterns are named, since a pattern from somebody else's folder could take for ever to match.
# r50k is GPT-2's own; both are OpenAI's, as tiktoken has them.
PATTERNS = {
    "r50k": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
}


class Tokenizer(ABC):
    """`pieces[id]` is the bytes of an id; `end` closes a document and has no bytes.

    decode(encode(text)) returns any valid UTF-8 text, one that spells a special token included:
    nothing in a text is special. One that is not `exact` may change a text before it encodes it.
    `can_cut` says that the stretches of a text have the ids of the whole.
    """

    can_cut = True

    def __init__(
        self, type: str, pieces: list[bytes], end: int | None, exact: bool = False
    ) -> None:
        self.type = type
        self.pieces = pieces
        self.end = end
        self.exact = exact
        self.vocab_size = len(pieces)
        self.byte_lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, unsigned. Raises UnicodeEncodeError for half a surrogate pair."""

    def encode_documents(
        self, documents: Iterable[str], separated: bool, threads: int | None = None
    ) -> Iterator[np.ndarray]:
        """The ids of all documents in order, part by part; with `end` after each if separated."""
        closing = np.array([self.end] * separated, dtype=np.uint32)
        cut = stretches if self.can_cut else lambda text: iter([text])
        parts = chain.from_iterable(chain(cut(document), [None]) for document in documents)
        while group := list(islice(parts, _GROUP)):
            encoded = iter(self.encode_all([part for part in group if part is not None], threads))
            yield from (closing if part is None else next(encoded) for part in group)

    def encode_all(self, texts: list[str], threads: int | None) -> Iterable[np.ndarray]:
        """The ids of each text, on so many threads; None is one a core."""
        return map(self.encode, texts)

    def decode(self, ids: Any) -> str:
        """The text of ids. Bytes that are not UTF-8 become U+FFFD. Ids without bytes are left
        out."""
        pieces = self.pieces
        return b"".join(pieces[id] for id in ids).decode("utf-8", errors="replace")

    def save(self) -> dict:
        """Returns what can be written as JSON and read by `load_tokenizer`."""
        return {"schema": SCHEMA, "type": self.type, "vocab_size": self.vocab_size, "end": self.end}


_BETWEEN_WORDS = re.compile(r"(?<=[a-zA-Z])(?= [a-zA-Z])")


def stretches(text: str, length: int = _STRETCH) -> Iterator[str]:
    """The text in parts of about `length` characters, cut only where no token can reach across.

    Under every pattern above, a blank between two letters begins a token, after any text.
    """
    start = 0
    while start < len(text):
        cut = _BETWEEN_WORDS.search(text, start + length)
        end = cut.start() if cut else len(text)
        yield text[start:end]
        start = end


class ByteTokenizer(Tokenizer):
    """id = byte. Where documents are separated, `end` is the id after the bytes."""

    def __init__(self, separated: bool) -> None:
        pieces = [bytes([value]) for value in range(256)]
        super().__init__("byte", pieces + [b""] * separated, 256 if separated else None, exact=True)

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


class RankTokenizer(Tokenizer):
    """Byte-pair encoding: ids are ranks; of all neighbours, the pair of lowest rank joins first.

    tiktoken encodes. Sennrich et al. 2016, arXiv:1508.07909; over bytes, Radford et al. 2019.
    """

    def __init__(
        self, type: str, pattern: str, ranks: list[bytes], vocab_size: int, end: int | None
    ) -> None:
        import tiktoken

        super().__init__(type, ranks + [b""] * (vocab_size - len(ranks)), end, exact=True)
        self.pattern = pattern
        self.ranks = ranks
        numbered = {piece: rank for rank, piece in enumerate(ranks)}
        self.encoding = tiktoken.Encoding(
            type, pat_str=PATTERNS[pattern], mergeable_ranks=numbered, special_tokens={}
        )

    def encode(self, text: str) -> np.ndarray:
        text.encode("utf-8")  # a lone surrogate raises; tiktoken would replace it
        try:
            return self.encoding.encode_to_numpy(text, disallowed_special=())
        except ValueError:
            # Its matcher cannot hold a word after very much white space, so the text is halved.
            middle = len(text) // 2
            return np.concatenate([self.encode(text[:middle]), self.encode(text[middle:])])

    def encode_all(self, texts: list[str], threads: int | None) -> Iterable[np.ndarray]:
        with ThreadPoolExecutor(threads) as pool:  # tiktoken releases Python's lock meanwhile
            return list(pool.map(self.encode, texts))

    def save(self) -> dict:
        ranks = [base64.b64encode(piece).decode("ascii") for piece in self.ranks]
        return {**super().save(), "pattern": self.pattern, "ranks": ranks}


def load_tokenizer(saved: Any) -> Tokenizer:
    """Returns the tokenizer that `save` described. Raises InputError for anything else.

    The file may come from anybody. What does not fit is refused; nothing in it is run or imported.
    """
    try:
        if saved["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        if not saved["vocab_size"] <= MOST_IDS + _MOST_GAPS:
            raise ValueError("its vocab_size is no plausible number")
        tokenizer = LOADERS[saved["type"]](saved)
        end = tokenizer.end
        ends = end is None or (end in range(tokenizer.vocab_size) and not tokenizer.pieces[end])
    except InputError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise refusal(describe_error(error)[:100]) from None
    if not ends or tokenizer.save() != saved:
        raise refusal("its keys do not fit each other")
    return tokenizer


def _load_ranks(saved: Mapping[str, Any]) -> Tokenizer:
    if saved["pattern"] not in [*PATTERNS]:
        raise ValueError(f"its pattern is none of {', '.join(PATTERNS)}")
    ranks = [base64.b64decode(piece, validate=True) for piece in saved["ranks"]]
    single = {bytes([value]) for value in range(256)}
    if not all(ranks) or len({*ranks}) != len(ranks) or not single <= {*ranks}:
        raise ValueError("its ranks lack a byte, or two are the same")  # tiktoken would panic
    return RankTokenizer(saved["type"], saved["pattern"], ranks, saved["vocab_size"], saved["end"])


# Each type of tokenizer has a loader. Vocabularies of files add theirs.
LOADERS: dict[str, Callable[[Mapping[str, Any]], Tokenizer]] = {
    "byte": lambda saved: ByteTokenizer(separated=saved["end"] is not None),
    **dict.fromkeys(("bpe", "gpt2", "cl100k"), _load_ranks),
}


def refusal(reason: str) -> InputError:
    return InputError(f"tokenizer.json is no tokenizer of this program: {reason}")


@TOKENIZERS("byte")
class Bytes:
    """`tokenizer=byte`: nothing is trained and nothing is downloaded."""

    def identity(self) -> dict:
        return {"type": "byte"}

    def fit(self, train: Iterable[str], separated: bool, say: Say, tell: Tell) -> Tokenizer:
        return ByteTokenizer(separated)


@TOKENIZERS("bpe")
class BytePairs:
    """`tokenizer=bpe`: byte pairs learned from train alone.

    `vocab_size` counts all ids; an end comes last.
    """

    def __init__(self, *, vocab_size: Annotated[Integer, Field(ge=FEWEST_IDS, le=2**20)]) -> None:
        self.vocab_size = vocab_size

    def identity(self) -> dict:
        return {"type": "bpe", "vocab_size": self.vocab_size}

    def fit(self, train: Iterable[str], separated: bool, say: Say, tell: Tell) -> Tokenizer:
        wanted = self.vocab_size - separated
        ranks = learn_pairs(list(train), wanted, tell)
        if len(ranks) < wanted:
            most = len(ranks) + separated
            raise InputError(
                f"tokenizer.vocab_size={self.vocab_size}: the train text is too small, it allows "
                f"{most} at most; use tokenizer.vocab_size={most} or tokenizer=byte"
            )
        end = wanted if separated else None
        return RankTokenizer("bpe", "r50k", ranks, self.vocab_size, end)


def learn_pairs(texts: Sequence[str], size: int, tell: Tell) -> list[bytes]:
    """Returns at most `size` byte strings: the 256 bytes, then pairs in the order of merging."""
    from tokenizers import Tokenizer as Learner
    from tokenizers import models, pre_tokenizers, trainers

    learner = Learner(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(_tell_stretches(texts, tell), trainer)
    spelled = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    byte_of = byte_letters()
    return [bytes(byte_of[letter] for letter in word) for word, _ in spelled]


def _tell_stretches(texts: Sequence[str], tell: Tell) -> Iterator[str]:
    """Yields the texts in stretches, and tells how far the trainer is. It counts words while it
    reads, and merges pairs after the last stretch."""
    done, total = 0, sum(map(len, texts))
    for text in texts:
        for part in stretches(text):
            yield part
            done += len(part)
            tell("data: words of {:.0f}/{:.0f} million characters", done / 1e6, total / 1e6)
    tell("data: learning byte pairs", 0, 0)


def byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 is itself, the rest begins at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in printable]
    letters = {chr(value): value for value in printable}
    return letters | {chr(256 + place): value for place, value in enumerate(hidden)}
