from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from pydantic import Field

from transformer_norms.data.registries import TOKENIZERS
from transformer_norms.data.tokenizer import RankTokenizer, Tokenizer, stretches
from transformer_norms.errors import InputError
from transformer_norms.kinds import Integer
from transformer_norms.progress import Tell, untold

FEWEST = 257  # the bytes, and the end of a document


@TOKENIZERS("bpe")
class BytePairs:
    """Byte pairs learned from train alone. `vocab_size` counts all ids; an end comes last."""

    def __init__(self, *, vocab_size: Annotated[Integer, Field(ge=FEWEST, le=2**20)]) -> None:
        if vocab_size < FEWEST:
            raise InputError(f"tokenizer.vocab_size={vocab_size}: at least {FEWEST} are needed")
        self.vocab_size = vocab_size

    def identity(self) -> dict:
        return {"type": "bpe", "vocab_size": self.vocab_size}

    def fit(
        self,
        train: Sequence[str],
        separated: bool,
        say: Callable[[str], None],
        tell: Tell = untold,
    ) -> Tokenizer:
        wanted = self.vocab_size - separated
        ranks = learn(train, wanted, tell)
        if len(ranks) < wanted:
            most = len(ranks) + separated
            raise InputError(
                f"tokenizer.vocab_size={self.vocab_size}: the train text is too small, it allows "
                f"{most} at most; use tokenizer.vocab_size={most} or tokenizer=byte"
            )
        end = wanted if separated else None
        return RankTokenizer("bpe", "r50k", ranks, self.vocab_size, end)


def learn(texts: Sequence[str], size: int, tell: Tell = untold) -> list[bytes]:
    """At most `size` byte strings, first the 256 bytes, then pairs in the order of merging."""
    from tokenizers import Tokenizer as Trained
    from tokenizers import models, pre_tokenizers, trainers

    trained = Trained(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(_told(texts, tell), trainer)
    spelled = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    byte_of = alphabet()
    return [bytes(byte_of[letter] for letter in word) for word, _ in spelled]


def _told(texts: Sequence[str], tell: Tell) -> Iterator[str]:
    """Stretches of the texts; their words are counted as they come, and merged afterwards."""
    done, total = 0, sum(map(len, texts))
    for text in texts:
        for part in stretches(text):
            yield part
            done += len(part)
            tell("data: words of {:.0f}/{:.0f} million characters", done / 1e6, total / 1e6)
    tell("data: learning byte pairs", 0, 0)


def alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in printable]
    letters = {chr(value): value for value in printable}
    return letters | {chr(256 + place): value for place, value in enumerate(hidden)}
