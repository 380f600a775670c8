"""The settings that every corpus shares; a corpus adds its own. No torch here."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from transformer_norms.errors import InputError
from transformer_norms.kinds import Mark, OpenShare, Positive, Seed, Share, node
from transformer_norms.progress import say, tell_nobody

# The sizes of published vocabularies. A byte vocabulary has one more where documents are kept
# apart, which only the data can tell.
VOCABULARIES = {"byte": 256, "gpt2": 50257, "cl100k": 100277}
UNKNOWN = 256
MOST_VAL_TOKENS = 2**17  # where data.val_tokens is auto


def expected_vocab_size(tokenizer: Mapping[str, Any]) -> int:
    """Returns the size of a tokenizer's vocabulary, as far as its config tells it."""
    if "path" in tokenizer:
        from transformer_norms.data.vocabularies import TokenizerFile

        try:
            file = TokenizerFile(path=tokenizer["path"], end="auto")
            return file.fit([], False, say, tell_nobody).vocab_size
        except InputError:
            return UNKNOWN
    size: int = tokenizer.get("vocab_size", VOCABULARIES.get(tokenizer["type"], UNKNOWN))
    return size


def affordable_val_tokens(trained: int) -> int:
    """Returns `data.val_tokens` where it is auto, for a run that trains on so many tokens.

    The final evaluation reads val and test. A token that is only read costs about a third of one
    that is trained on, because the backward pass takes twice the forward pass. So the evaluation
    takes a tenth of the run at most if 2/3 x val_tokens <= trained/10. The number is a power of
    two: runs of nearly the same length are evaluated on the same tokens.
    """
    most = max(trained * 3 // 20, 1)
    return min(MOST_VAL_TOKENS, 1 << most.bit_length() - 1)


@node
class DataSettings:
    """`data.*`: how a corpus is split, how much of val is read, what order the batches come in.

    `test_fraction` is for `split=tail`: the share of the text that is its test part. Another split
    has a test part as large as val. `val_tokens` is how many tokens of val, and of test, a run is
    evaluated on at most.
    """

    split: Literal["hash", "tail"]
    val_fraction: Annotated[OpenShare, Field(le=0.4)]
    test_fraction: Annotated[Share, Field(le=0.4)]
    val_tokens: Annotated[Positive, Mark.AUTO]
    seed: Annotated[Seed, Mark.AUTO]
