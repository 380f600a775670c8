"""Text <-> ids: tokenizers of bytes, of byte pairs, and of a file that was made elsewhere.

A tokenizer has to give each id its bytes, so that bits per byte can be told. A saved one is JSON
that holds all it needs, published vocabularies included. So the folder of a run can be mailed, and
works without a network.
"""

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

import numpy as np

from transformer_norms.errors import InputError, describe_error
from transformer_norms.storage.reading import parse_json

SCHEMA = 1
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
    `can_cut` says that the stretches of a text have the ids of the whole. Many threads call
    `encode` at once only where `threaded` says that they may.
    """

    can_cut = True
    threaded = False

    def __init__(
        self, type: str, pieces: list[bytes], end: int | None, exact: bool = False
    ) -> None:
        self.type = type
        self.pieces = pieces
        self.end = end
        self.exact = exact
        self.vocab_size = len(pieces)
        self.byte_lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)

    def __deepcopy__(self, memo: Any) -> "Tokenizer":
        return self  # nothing changes it, and a copied model shares it

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, unsigned. Raises UnicodeEncodeError for half a surrogate pair."""

    def encode_documents(
        self, documents: Iterable[str], separated: bool, threads: int | None = None
    ) -> Iterator[np.ndarray]:
        """The ids of all documents in order, part by part; with `end` after each if separated.
        Where `threaded`, they are encoded on so many threads; None is as many as there are cores,
        and some more."""
        closing = np.array([self.end] * separated, dtype=np.uint32)
        cut = stretches if self.can_cut else lambda text: iter([text])
        parts = chain.from_iterable(chain(cut(document), [None]) for document in documents)

        def encode(part: str | None) -> np.ndarray:
            return closing if part is None else self.encode(part)

        with ThreadPoolExecutor(threads) as pool:  # the libraries release Python's lock meanwhile
            run = pool.map if self.threaded and threads != 1 else map
            while group := list(islice(parts, _GROUP)):
                yield from run(encode, group)

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

    threaded = True

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

    def save(self) -> dict:
        ranks = [base64.b64encode(piece).decode("ascii") for piece in self.ranks]
        return {**super().save(), "pattern": self.pattern, "ranks": ranks}


class FileTokenizer(Tokenizer):
    """`text` is the content of a tokenizer.json, as the tokenizers library writes it.

    Byte-level BPE gives each id its bytes (GPT-2, Llama 3, Qwen), and so do the pieces of
    SentencePiece (Llama 2, Gemma). A normalizer may change a text before it is encoded; then the
    tokens spell another text, which the preparation of a corpus says. Only documents have an end; a
    beginning is never put before a text. A special token in a text is plain text. A model
    may have a larger `vocab_size`: no text has the ids after those of the file."""

    threaded = True

    def __init__(self, text: str, end: int | None, vocab_size: int = 0) -> None:
        from tokenizers import Tokenizer as Theirs

        try:
            self.theirs = Theirs.from_str(text)
            content = parse_json(text.encode(), "its json")
        except Exception as error:  # the library raises nothing narrower
            raise refusal(f"the tokenizers library cannot read it ({error})") from None
        self.theirs.encode_special_tokens = True
        self.theirs.no_truncation()
        self.theirs.no_padding()
        pieces = spell_pieces(content, self.theirs)
        super().__init__("file", pieces + [b""] * (vocab_size - len(pieces)), end)
        self.text = text
        whole = self.encode("the cat sat on the mat").tolist()
        parts = [self.encode(part).tolist() for part in ("the cat", " sat on the", " mat")]
        self.can_cut = whole == sum(parts, [])  # a blank begins a token

    def encode(self, text: str) -> np.ndarray:
        text.encode("utf-8")  # a lone surrogate raises
        (encoded,) = self.theirs.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoded.ids, dtype=np.uint32)

    def save(self) -> dict:
        return {**super().save(), "json": self.text}


def spell_pieces(content: Mapping[str, Any], theirs: Any) -> list[bytes]:
    """The bytes of each id. A special token has none, nor has an id without a token. Raises
    InputError if the pieces of a vocabulary are not bytes of a text, or two of them have one id."""
    spell, vocabulary = _speller(content), theirs.get_vocab()
    words = {id: word for word, id in vocabulary.items()}
    if not 0 <= (most := max(words, default=-1)) < MOST_IDS:
        raise refusal(f"its ids go up to {most}")
    if twice := [word for word, id in vocabulary.items() if words[id] != word]:
        raise refusal(f"two of its tokens have one id, {vocabulary[twice[0]]}")
    pieces = [spell(words[id]) if id in words else b"" for id in range(most + 1)]
    for id, token in theirs.get_added_tokens_decoder().items():
        pieces[id] = b"" if token.special else token.content.encode()
    return pieces


def _speller(content: Mapping[str, Any]) -> Callable[[str], bytes]:
    decoder = content.get("decoder") or {"type": "none"}
    decoders = decoder.get("decoders") or [decoder]
    kinds = {str(one.get("type")) for one in decoders}
    if "ByteLevel" in kinds:
        byte_of = byte_letters()

        def spell(word: str) -> bytes:
            letters = [byte_of.get(letter) for letter in word]
            known = bytes(letter for letter in letters if letter is not None)
            return known if len(known) == len(word) else word.encode()

        return spell
    if kinds & {"ByteFallback", "Metaspace"}:
        return lambda word: (
            bytes([int(word[3:5], 16)])
            if re.fullmatch(r"<0x[0-9A-F]{2}>", word)
            else word.replace("\u2581", " ").encode()
        )
    raise refusal(
        f"its decoder {', '.join(sorted(kinds))} does not say which bytes a token has, so "
        "that there are no bits per byte; byte-level BPE and SentencePiece with bytes do"
    )


def byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 is itself, the rest begins at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in printable]
    letters = {chr(value): value for value in printable}
    return letters | {chr(256 + place): value for place, value in enumerate(hidden)}


def load_tokenizer(saved: Any) -> Tokenizer:
    """Returns the tokenizer that `save` described. Raises InputError for anything else.

    The file may come from anybody. Nothing in it is run or imported.
    """
    try:
        if saved["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        if not saved["vocab_size"] <= MOST_IDS + _MOST_GAPS:
            raise ValueError("its vocab_size is not plausible")
        tokenizer = _load(saved)
        end = tokenizer.end
        fits = end is None or (end in range(tokenizer.vocab_size) and not tokenizer.pieces[end])
    except InputError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise refusal(describe_error(error)[:100]) from None
    if not fits or tokenizer.save() != saved:
        raise refusal("its keys do not fit each other")
    return tokenizer


def _load(saved: Mapping[str, Any]) -> Tokenizer:
    match saved["type"]:
        case "byte":
            return ByteTokenizer(separated=saved["end"] is not None)
        case "file":
            return FileTokenizer(saved["json"], saved["end"], saved["vocab_size"])
        case "bpe" | "gpt2" | "cl100k":
            ranks = [base64.b64decode(piece, validate=True) for piece in saved["ranks"]]
            single = {bytes([value]) for value in range(256)}
            if not all(ranks) or len({*ranks}) != len(ranks) or not single <= {*ranks}:
                raise ValueError("its ranks lack a byte, or two are the same")  # tiktoken panics
            size, end = saved["vocab_size"], saved["end"]
            return RankTokenizer(saved["type"], saved["pattern"], ranks, size, end)
    raise ValueError("its type is unknown")


def refusal(reason: str) -> InputError:
    return InputError(f"tokenizer.json is not a tokenizer of this program: {reason}")
