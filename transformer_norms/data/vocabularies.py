"""The tokenizers that a config may choose, and how each is made: learned from train, downloaded, or
read from a file."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from transformer_norms.data.downloads import fetch
from transformer_norms.data.tokenizer import (
    SCHEMA,
    ByteTokenizer,
    FileTokenizer,
    RankTokenizer,
    Tokenizer,
    byte_letters,
    load_tokenizer,
    stretches,
)
from transformer_norms.errors import InputError
from transformer_norms.kinds import Integer, Text
from transformer_norms.names import Registry, unknown
from transformer_norms.progress import Say, Tell
from transformer_norms.storage.files import sha256
from transformer_norms.storage.reading import parse_json, read_text, real_path

TOKENIZERS = Registry("tokenizer")
FEWEST_IDS = 257  # the bytes, and the end of a document
# The end of a document, where a file has none and in an export of ours. Its blank is not a letter
# of a byte, so no text spells it.
END = "<| end |>"
ENDS = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    END,
)  # fmt: skip


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


class _Vocabulary:
    """A published vocabulary, which tiktoken downloads or has in its cache."""

    type: str
    encoding: str
    pattern: str

    def identity(self) -> dict:
        return {"type": self.type}

    def fit(self, train: Iterable[str], separated: bool, say: Say, tell: Tell) -> Tokenizer:
        instead = (
            "use tokenizer=bpe, tokenizer=byte, or TIKTOKEN_CACHE_DIR=FOLDER of tiktoken's files"
        )
        encoding = fetch(f"tokenizer={self.type}: its vocabulary", instead, self._load)
        # tiktoken has no public way to all of its ranks at once.
        numbered = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
        ranks = [piece for piece, _ in numbered]
        return RankTokenizer(self.type, self.pattern, ranks, encoding.n_vocab, encoding.eot_token)

    def _load(self) -> Any:
        import tiktoken

        return tiktoken.get_encoding(self.encoding)


@TOKENIZERS("gpt2")
class Gpt2(_Vocabulary):
    """GPT-2's byte pairs; Radford et al. 2019."""

    type, encoding, pattern = "gpt2", "gpt2", "r50k"


@TOKENIZERS("cl100k")
class Cl100k(_Vocabulary):
    """The byte pairs of GPT-3.5 and GPT-4."""

    type, encoding, pattern = "cl100k", "cl100k_base", "cl100k"


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
        except ModuleNotFoundError:
            raise
        except Exception as error:  # the library raises nothing narrower
            line = " ".join(str(error).split())
            raise InputError(f"tokenizer.path={self.path}: {line}") from None


def _ours(tokenizer: Tokenizer, separated: bool) -> Tokenizer:
    """A tokenizer of a run of ours. It gets an end if that run's text had no documents."""
    if tokenizer.end is not None or not separated:
        return tokenizer
    if isinstance(tokenizer, FileTokenizer):
        return _with_end(tokenizer.text, "auto", separated)
    size = tokenizer.vocab_size
    return load_tokenizer(tokenizer.save() | {"vocab_size": size + 1, "end": size})


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
