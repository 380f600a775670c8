"""The settings that every corpus shares; a corpus adds its own. No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from transformer_norms.kinds import Mark, OpenShare, Positive, Seed, Share, node


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
