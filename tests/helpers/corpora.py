"""Corpora made up for tests, their tokens with bytes as ids, and damage to what is stored."""

import hashlib
import json
import resource
from contextlib import contextmanager

import pyarrow.parquet

from transformer_norms.data import TOKENIZERS, prepare
from transformer_norms.data.split import ReadTexts

TEXTS = [f"number {n} is {'even' if n % 2 == 0 else 'odd'}, " * (1 + n % 5) for n in range(200)]
BYTE = TOKENIZERS["byte"]()


class Listed:
    """A corpus of given texts that counts how often it is read."""

    floor = 0.5

    def __init__(self, texts=TEXTS, name="listed"):
        self.texts, self.name, self.reads = texts, name, 0

    def identity(self):
        digest = hashlib.sha256("\0".join(self.texts).encode()).hexdigest()
        return {"type": self.name, "sha256": digest}

    def documents(self):
        self.reads += 1
        yield from self.texts


class Branch(Listed):
    """A corpus that cuts itself, under a name that may mean other texts tomorrow."""

    size = 0

    def identity(self):
        return {"type": "branch", "revision": "main"}

    def slices(self):
        for at in range(0, len(self.texts), 50):
            yield ReadTexts([])  # some slices hold nothing
            yield ReadTexts(self.texts[at : at + 50])


def ready(
    corpus=None, tokenizer=BYTE, split="hash", shares=(0.1, 0), say=lambda line: None, **more
):
    """The tokens of a corpus, which is a Listed where none is given."""
    return prepare(corpus or Listed(), tokenizer, split, *shares, say, **more)


def learn_pairs(file, texts, vocab_size, special_tokens, normalizer=None):
    """Writes a tokenizer of the library `tokenizers`, and returns it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder, theirs.normalizer = decoders.ByteLevel(), normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special_tokens, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    theirs.train_from_iterator(texts, trainer)
    theirs.save(str(file))
    return theirs


def stop_at(phrase, count=1):
    """A `tell` that stops the preparation at the `count`-th news of a kind."""
    news = []

    def tell(what, done, total):
        news.extend([what] * (phrase in what))
        if len(news) == count:
            raise KeyboardInterrupt

    return tell


def write_rows(file, rows, **how):
    """Writes rows as Parquet or, where the file's name says so, as lines of JSON."""
    if file.suffix in (".json", ".jsonl"):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, **how)


DAMAGES = ["flip", "cut", "gone"]


def damage(file, how="flip"):
    """Flips a bit in the middle of a file, cuts its last byte off, or deletes it."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(data if how == "flip" else data[:-1])


@contextmanager
def files_of_at_most(size):
    """A disk that refuses files of more bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
