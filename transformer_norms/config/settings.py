"""The keys that no axis's class owns: their kinds and ranges. Values stand in configs/, not here.

Each class names a node of the config; the door checks what was typed against its fields.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from transformer_norms.kinds import (
    Auto,
    Flag,
    Nothing,
    Number,
    Positive,
    Seed,
    Size,
    Text,
)
from transformer_norms.registry import Registry

# The names of modules, as initialization.BIASED has them.
Biased = Literal["query", "key", "value", "output", "up", "gate", "down", "head"]
Base = Number | Text  # a formula of i, l and N
Cap = Nothing | Annotated[Number, Field(gt=0, le=1e4)]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """`model.*`. Unless typed, kv_heads are heads, head_dim is width / heads, and mlp_width is
    4 x width, or 8/3 x width rounded up to a multiple of 8 where the mlp is gated."""

    width: Size
    depth: Annotated[Positive, Field(le=10_000)]
    heads: Annotated[Positive, Field(le=4096)]
    kv_heads: Auto | Annotated[Positive, Field(le=4096)]
    head_dim: Auto | Annotated[Positive, Field(le=8192)]
    mlp_width: Auto | Size
    context: Annotated[Positive, Field(le=2**24)]
    dropout: Annotated[Number, Field(ge=0, lt=1)]

    def resolve(self, *, gated: bool, rotary: bool) -> dict[str, Any]:
        """The sizes with every auto as a number; ValueError where they do not fit together."""
        sizes = asdict(self)
        if self.kv_heads == "auto":
            sizes["kv_heads"] = self.heads
        if self.head_dim == "auto":
            if self.width % self.heads:
                raise ValueError(
                    f"model.heads: {self.heads} heads do not divide model.width, {self.width}; "
                    f"type model.head_dim, or heads among {_divisors(self.width)}"
                )
            sizes["head_dim"] = self.width // self.heads
        if self.mlp_width == "auto":
            sizes["mlp_width"] = -(-8 * self.width // 24) * 8 if gated else 4 * self.width
        if self.heads % sizes["kv_heads"]:
            raise ValueError(
                f"model.kv_heads: {sizes['kv_heads']} does not divide model.heads, {self.heads}; "
                f"allowed are {_divisors(self.heads)}"
            )
        if rotary and sizes["head_dim"] % 2:
            raise ValueError(
                f"model.head_dim: {sizes['head_dim']} is odd, and position=rope turns pairs; "
                "type an even head_dim or position=learned"
            )
        return sizes


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


@dataclass(frozen=True, kw_only=True)
class MLPKeys:
    """`mlp.*`: the names of a class and of its activation; its sizes are the model's."""

    type: Text
    activation: Text


@dataclass(frozen=True, kw_only=True)
class PositionKeys:
    """`position.*`: the name of a class; its sizes are the model's and the architecture's."""

    type: Text


@dataclass(frozen=True, kw_only=True)
class About:
    """`about.*`: where a preset is published, and what of it could not be verified."""

    source: Text
    unverified: Text


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """`architecture.*`: what a preset sets and no axis owns."""

    bias: Flag | Annotated[list[Biased], Field(min_length=1)]  # all in the blocks, none, or those
    tied: Flag
    embed_scale: Any  # a coefficient: number, formula, or learned; auto and none are resolved
    attention_scale: Any  # likewise: what q k^T is multiplied by
    logit_scale: Any
    attention_cap: Cap
    logit_cap: Cap
    qk_norm_order: Literal["before", "after"]  # before the rotation of q and k, or after it
    rope_base: Base | list[Base]  # for all blocks or one for each; 0 turns nothing
    rope_interleaved: Flag  # pairs (2j, 2j + 1), else (j, j + r/2)
    rope_fraction: Annotated[Number, Field(gt=0, le=1)]


TRACKING = Registry("tracking")


@TRACKING("none")
@dataclass(frozen=True, kw_only=True)
class NoTracking:
    """`tracking=none`: the run folder is all there is."""


@TRACKING("wandb")
@dataclass(frozen=True, kw_only=True)
class WandbTracking:
    """`tracking=wandb`: W&B mirrors the run folder."""

    mode: Literal["auto", "online", "offline"]


@dataclass(frozen=True, kw_only=True)
class PlainKeys:
    """The keys of no group."""

    seed: Seed
    study: Text
    again: Flag
    continue_from: Text
    plugins: Text
