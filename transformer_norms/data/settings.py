"""The settings that every corpus shares; a corpus adds its own. No torch here."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from transformer_norms.kinds import Mark, OpenShare, Positive, Seed, Share, node

# The sizes of published vocabularies. A byte vocabulary has one more where documents are kept
# apart, which only the data can tell.
VOCABULARIES = {"byte": 256, "gpt2": 50257, "cl100k": 100277}
UNKNOWN = 256


def expected_vocab_size(tokenizer: Mapping[str, Any]) -> int:
    """Returns the size of a tokenizer's vocabulary, as far as its config tells it."""
    size: int = tokenizer.get("vocab_size", VOCABULARIES.get(tokenizer["type"], UNKNOWN))
    return size


@node
class DataSettings:
    """`data.*`: how a corpus is split, how much of val is read, what order the batches come in.

    `test_fraction` is for `split=tail`: the share of the text that is its test part. Another split
    has a test part as large as val.
    """

    split: Literal["hash", "tail"]
    val_fraction: Annotated[OpenShare, Field(le=0.4)]
    test_fraction: Annotated[Share, Field(le=0.4)]
    val_tokens: Positive
    seed: Annotated[Seed, Mark.AUTO]
