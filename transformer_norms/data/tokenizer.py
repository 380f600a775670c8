"""Text <-> ids: what a fitted tokenizer is, of bytes or of byte pairs."""

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

SCHEMA = 1
STRETCH = 2**17  # characters encoded at a time: between two, there is news, and a way out
GROUP = 32  # stretches under way at once, for all cores

# By name, since a pattern from somebody else's folder could take for ever to match.
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

    Any valid UTF-8 text comes back from decode(encode(text)), one that spells a special token
    included: nothing in a text is special.
    """

    def __init__(self, type: str, pieces: list[bytes], end: int | None) -> None:
        self.type = type
        self.pieces = pieces
        self.end = end
        self.vocab_size = len(pieces)
        self.byte_lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, unsigned. Raises UnicodeEncodeError for half a surrogate pair."""

    def encode_documents(self, documents: Iterable[str], separated: bool) -> Iterator[np.ndarray]:
        """The ids of all documents in order, part by part; with `end` after each if separated."""
        closing = np.array([self.end] * separated, dtype=np.uint32)

        def encode(part: str | None) -> np.ndarray:
            return closing if part is None else self.encode(part)

        return self._spread(encode, _parts(documents))

    def _spread(self, encode: Callable, parts: Iterator[str | None]) -> Iterator[np.ndarray]:
        return map(encode, parts)

    def decode(self, ids: Any) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD, ids without bytes nothing."""
        pieces = self.pieces
        return b"".join(pieces[id] for id in ids).decode("utf-8", errors="replace")

    @abstractmethod
    def save(self) -> dict:
        """JSON-able; `load_tokenizer` reads it."""


class ByteTokenizer(Tokenizer):
    """id = byte; where documents are separated, `end` is the id after the bytes."""

    def __init__(self, separated: bool) -> None:
        pieces = [bytes([value]) for value in range(256)]
        super().__init__("byte", pieces + [b""] * separated, 256 if separated else None)

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)

    def save(self) -> dict:
        return {"schema": SCHEMA, "type": self.type, "vocab_size": self.vocab_size, "end": self.end}


class RankTokenizer(Tokenizer):
    """Byte-pair encoding: ids are ranks, and of two neighbours the pair of lowest rank joins first.

    Encoded by tiktoken. Sennrich et al. 2016, arXiv:1508.07909; over bytes, Radford et al. 2019.
    """

    def __init__(
        self, type: str, pattern: str, ranks: list[bytes], vocab_size: int, end: int | None
    ) -> None:
        import tiktoken

        super().__init__(type, ranks + [b""] * (vocab_size - len(ranks)), end)
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
            # A word after very much white space is more than its matcher can hold: in halves, then.
            middle = len(text) // 2
            return np.concatenate([self.encode(text[:middle]), self.encode(text[middle:])])

    def _spread(self, encode: Callable, parts: Iterator[str | None]) -> Iterator[np.ndarray]:
        with ThreadPoolExecutor() as pool:  # tiktoken lets go of the interpreter while it encodes
            while group := list(islice(parts, GROUP)):
                yield from pool.map(encode, group)

    def save(self) -> dict:
        return {
            "schema": SCHEMA,
            "type": self.type,
            "vocab_size": self.vocab_size,
            "end": self.end,
            "pattern": self.pattern,
            "ranks": [base64.b64encode(piece).decode("ascii") for piece in self.ranks],
        }


_BETWEEN_WORDS = re.compile(r"(?<=[a-zA-Z])(?= [a-zA-Z])")


def stretches(text: str, length: int = STRETCH) -> Iterator[str]:
    """The text in parts of about `length` characters, cut only where no token can reach across.

    Under every pattern above, a blank between two letters begins a token, whatever stands before.
    """
    start = 0
    while start < len(text):
        cut = _BETWEEN_WORDS.search(text, start + length)
        end = cut.start() if cut else len(text)
        yield text[start:end]
        start = end


def _parts(documents: Iterable[str]) -> Iterator[str | None]:
    for document in documents:
        yield from stretches(document)
        yield None  # the document ends
