"""A tokenizer that was made elsewhere: a tokenizer.json, as the tokenizers library writes it.

A tokenizer has to give each id its bytes, so that bits per byte can be told. Byte-level BPE does
(GPT-2, Llama 3, Qwen), and so do the pieces of SentencePiece (Llama 2, Gemma). A normalizer may
change a text before it is encoded; then the tokens spell another text, which the preparation of a
corpus says. Only documents have an end; a beginning is never put before a text.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from transformer_norms.data.downloads import fetch
from transformer_norms.data.tokenizer import (
    LOADERS,
    MOST_IDS,
    SCHEMA,
    TOKENIZERS,
    ByteTokenizer,
    RankTokenizer,
    Tokenizer,
    byte_letters,
    load_tokenizer,
    refusal,
)
from transformer_norms.errors import InputError
from transformer_norms.kinds import Text
from transformer_norms.names import unknown
from transformer_norms.progress import Say, Tell
from transformer_norms.storage.files import sha256
from transformer_norms.storage.reading import parse_json, read_text, real_path

# The end of a document, where a file has none and in an export of ours. Its blank is no letter of a
# byte: no text spells it.
END = "<| end |>"
ENDS = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    END,
)  # fmt: skip


class FileTokenizer(Tokenizer):
    """`text` is the content of a tokenizer.json. What a text spells is never special to it. A model
    may have a larger `vocab_size`: no text has the ids after those of the file."""

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
        return self._encode_batch([text])[0]

    def encode_all(self, texts: list[str], threads: int | None) -> Iterable[np.ndarray]:
        # A batch of several texts takes all cores.
        return map(self.encode, texts) if threads == 1 else self._encode_batch(texts)

    def _encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        encoded = self.theirs.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(one.ids, dtype=np.uint32) for one in encoded]

    def save(self) -> dict:
        return {**super().save(), "json": self.text}


def spell_pieces(content: Mapping[str, Any], theirs: Any) -> list[bytes]:
    """The bytes of each id. A special token has none, nor has an id without a token. Raises
    InputError if the pieces of a vocabulary are no bytes of a text, or two of them have one id."""
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
        f"its decoder {', '.join(sorted(kinds))} does not say which bytes a token stands for, so "
        "that there are no bits per byte; byte-level BPE and SentencePiece with bytes do"
    )


LOADERS["file"] = lambda saved: FileTokenizer(saved["json"], saved["end"], saved["vocab_size"])


def _with_end(theirs_json: str, end: str, separated: bool) -> FileTokenizer:
    """The tokenizer of a tokenizer.json. `end` is the word that ends a document, or auto."""
    ours = FileTokenizer(theirs_json, None)
    added = ours.theirs.get_added_tokens_decoder()
    special = {token.content: id for id, token in added.items() if token.special}
    if end != "auto" and end not in special:
        raise InputError(f"tokenizer.end={end}: {unknown('special token', end, list(special))}")
    word = end if end != "auto" else next((one for one in ENDS if one in special), None)
    if word is None and separated:
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Theirs

        theirs = Theirs.from_str(theirs_json)
        if theirs.get_vocab_size() < ours.vocab_size:  # the library would give it a word's id
            return FileTokenizer(theirs_json, ours.vocab_size, ours.vocab_size + 1)
        theirs.add_special_tokens([AddedToken(END, special=True, normalized=False)])
        return FileTokenizer(theirs.to_str(), theirs.token_to_id(END))
    ours.end = None if word is None else special[word]
    return ours


@TOKENIZERS("file")
class TokenizerFile:
    """`tokenizer=file tokenizer.path=PATH`: a tokenizer.json, of a run of ours too, or a folder
    with one. Its content is in a run's identity, and its name is not."""

    def __init__(self, *, path: Text, end: Text) -> None:
        file = Path(path).expanduser()
        file = file / "tokenizer.json" if file.is_dir() else file
        self.file = real_path(file)  # the user has named it, also where it is a link
        self.path, self.end = path, end

    def identity(self) -> dict:
        if self.path == "none":
            raise InputError(
                "tokenizer.path is missing: name a tokenizer.json, or a folder with one"
            )
        if not self.file.is_file():
            raise InputError(f"tokenizer.path={self.path}: there is no file {self.file}")
        return {"type": "file", "sha256": sha256(self.file), "end": self.end}

    def fit(self, train: Iterable[str], separated: bool, say: Say, tell: Tell) -> Tokenizer:
        try:
            text = read_text(self.file)
            content = parse_json(text.encode(), str(self.file))
            if isinstance(content, dict) and content.get("schema") == SCHEMA:
                return _ours(load_tokenizer(content), separated)
            return _with_end(text, self.end, separated)
        except Exception as error:  # the library raises nothing narrower
            line = " ".join(str(error).split())
            raise InputError(f"tokenizer.path={self.path}: {line}") from None


def _ours(tokenizer: Tokenizer, separated: bool) -> Tokenizer:
    """A tokenizer of a run of ours. It gets an end if that run's text had no documents."""
    if tokenizer.end is not None or not separated:
        return tokenizer
    if isinstance(tokenizer, RankTokenizer):
        size = tokenizer.vocab_size
        return RankTokenizer(tokenizer.type, tokenizer.pattern, tokenizer.ranks, size + 1, size)
    if isinstance(tokenizer, FileTokenizer):
        return _with_end(tokenizer.text, "auto", separated)
    return ByteTokenizer(separated)


@TOKENIZERS("hub")
class HubTokenizer:
    """`tokenizer=hub tokenizer.name=NAME`: the tokenizer.json of a model on Hugging Face's hub."""

    def __init__(self, *, name: Text, revision: Text, end: Text) -> None:
        self.name, self.revision, self.end = name, revision, end

    def identity(self) -> dict:
        if self.name == "none":
            raise InputError("tokenizer.name is missing, such as tokenizer.name=Qwen/Qwen3-0.6B")
        return {"type": "hub", "name": self.name, "revision": self.revision, "end": self.end}

    def fit(self, train: Iterable[str], separated: bool, say: Say, tell: Tell) -> Tokenizer:
        from tokenizers import Tokenizer as Theirs

        instead = "use tokenizer=file tokenizer.path=tokenizer.json, or tokenizer=bpe"
        read = partial(Theirs.from_pretrained, self.name, revision=self.revision)
        theirs = fetch(f"tokenizer.name={self.name}", instead, read)
        return _with_end(theirs.to_str(), self.end, separated)
