"""The keys of `data.*` that every corpus shares."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from transformer_norms.kinds import Auto, OpenShare, Positive, Seed


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How a corpus is split, how much of val is read, and the order of batches.

    A corpus adds keys of its own.
    """

    split: Literal["hash", "tail"]
    val_fraction: Annotated[OpenShare, Field(le=0.4)]
    val_tokens: Positive
    seed: Auto | Seed
