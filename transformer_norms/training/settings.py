"""The settings of a trainer: their types and ranges. This module imports no torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from transformer_norms.kinds import Auto, Count, Flag, Nonnegative, Positive


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """`trainer.*`: `steps` optimizer steps of `batch_size` sequences (over all devices and
    accumulation); the `*_every` are in steps, 0 is never; `keep` is in checkpoints."""

    steps: Positive
    batch_size: Annotated[Positive, Field(le=2**20)]
    accumulation: Annotated[Positive, Field(le=2**20)]
    clip: Nonnegative
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["fp32", "bf16", "fp64"]
    compile: Flag
    activation_checkpointing: Flag
    threads: Auto | Annotated[Positive, Field(le=4096)]
    replicas: Auto | Annotated[Positive, Field(le=4096)]
    eval_every: Count
    log_every: Positive
    probe_every: Count
    checkpoint_every: Count
    keep: Annotated[Positive, Field(le=10**6)]

    def __post_init__(self) -> None:
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"trainer.accumulation: {self.accumulation} does not divide "
                f"trainer.batch_size, {self.batch_size}"
            )
