"""The settings of a trainer: their types and ranges. This module imports no torch."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from transformer_norms.kinds import (
    Auto,
    Count,
    Flag,
    Integer,
    Mark,
    Nonnegative,
    Nothing,
    Number,
    Positive,
    freeze,
    node,
)

# The groups of a model's parameters that an optimizer tells apart.
GROUPS = ("matrices", "embeddings", "head", "norms", "biases")
WEIGHTS = GROUPS[:3]  # each of their weights has a fan_in and a fan_out


def check_factor(factor: float) -> float:
    """Returns what a learning rate is multiplied by, or raises ValueError."""
    if not 0 < factor <= 1e6:
        raise ValueError("a factor of the learning rate is above 0, and at most 1e6")
    return factor


Horizons = tuple[Positive, ...]


def _is_horizon(value: Any) -> bool:
    return type(value) in (int, float) and 1 <= value <= 1e12 and value == int(value)


def _check_horizons(value: Any) -> Any:
    listed = value["tokens"] if isinstance(value, Mapping) and [*value] == ["tokens"] else value
    several = isinstance(listed, (list, tuple)) and len(listed) > 1
    if value != "none" and not (several and all(map(_is_horizon, listed))):
        raise ValueError(
            "it should be [300, 1200] (steps), {tokens: [1e8, 4e8]} or none; each number is whole, "
            "from 1 to 1e12"
        )
    return value


Branches = Annotated[
    Nothing | Horizons | Mapping[Literal["tokens"], Horizons], BeforeValidator(_check_horizons)
]
Clip = Nothing | Annotated[Number, Field(gt=0, le=1e6)]
Precision = Literal["fp32", "bf16", "fp64"]
Compile = Literal["auto", "none", "block", "whole"]


@node
class ParallelSettings:
    """`parallel=ddp`: each process that torchrun started has the whole model, and computes a share
    of a step's micro-batches. `parallel=fsdp`: each has a shard of every weight, too."""

    type: Literal["none", "ddp", "fsdp"]


@node
class TrainerSettings:
    """`trainer.*`: `steps` optimizer steps of `batch_size` sequences over all devices, read in
    `accumulation` micro-batches or a multiple of it, and the `tokens` that they read in all;
    `branches` are the horizons that share first steps; the `*_every` are in steps, 0 is never;
    `keep` is in checkpoints, and `keep_optimizer` is about finished runs of a sweep."""

    steps: Positive
    tokens: Annotated[Integer, Field(ge=1, le=10**15), Mark.AUTO, Mark.NOT_IN_IDENTITY]
    branches: Annotated[Branches, Mark.NOT_IN_IDENTITY]
    batch_size: Annotated[Positive, Field(le=2**20)]
    accumulation: Annotated[Positive, Field(le=2**20)]
    clip: Nonnegative
    qk_clip: Clip  # the largest logit of a head of attention that its weights may keep giving
    average: Annotated[Nothing | Mapping[str, Any], AfterValidator(freeze)]  # of averages.py
    device: Annotated[Literal["cpu", "cuda", "mps"], Mark.AUTO, Mark.NOT_IN_IDENTITY]
    precision: Precision
    compile: Annotated[Compile, Mark.NOT_IN_IDENTITY]
    activation_checkpointing: Annotated[Flag, Mark.NOT_IN_IDENTITY]
    threads: Annotated[Auto | Annotated[Positive, Field(le=4096)], Mark.NOT_IN_IDENTITY]
    replicas: Annotated[Auto | Annotated[Positive, Field(le=4096)], Mark.NOT_IN_IDENTITY]
    eval_every: Count
    log_every: Annotated[Positive, Mark.NOT_IN_IDENTITY]
    probe_every: Annotated[Count, Mark.NOT_IN_IDENTITY]
    checkpoint_every: Annotated[Count, Mark.NOT_IN_IDENTITY]
    keep: Annotated[Positive, Field(le=10**6), Mark.NOT_IN_IDENTITY]
    keep_optimizer: Annotated[Flag, Mark.NOT_IN_IDENTITY]

    @property
    def horizons(self) -> Horizons:
        """The steps of `branches`, from the shortest on."""
        return self.branches if isinstance(self.branches, tuple) else ()

    @property
    def averaging(self) -> tuple[int, int]:
        """How many copies `average` keeps, and how many steps apart: 1, 1 with an own __init__."""
        if self.average == "none":
            return 0, 1
        from transformer_norms.training.averages import AVERAGES, WindowAverage  # torch

        windowed = AVERAGES[self.average["type"]].__init__ is WindowAverage.__init__
        return (self.average["count"], self.average["every"]) if windowed else (1, 1)

    def __post_init__(self) -> None:
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"trainer.accumulation: {self.accumulation} does not divide "
                f"trainer.batch_size, {self.batch_size}"
            )
