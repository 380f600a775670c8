"""The keys of `architecture`: types and ranges of what was typed, and the plain numbers that each
block is built from. No torch here.

A key that may differ between blocks is declared twice: with the others in `Architecture`, and as a
plain number of `BlockChoices`, with its range and the sentence by which explain tells it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, Field

from transformer_norms.kinds import Flag, Mark, Nothing, Number, Positive, Text, marks_of, node
from transformer_norms.model.sites import INSIDE
from transformer_norms.model.sizes import BlockSizes, PerBlock, Range, whole_or_even

# The names of the modules that hold a drawn weight.
ROLES = (
    "embedding position smear_gate head query_down kv_down rope_key query key value attention_gate "
    "value_gate value_embedding output up gate down"
).split()
# The roles that may have a bias.
Biased = Literal[
    "query_down", "kv_down", "rope_key", "query", "key", "value", "attention_gate", "output", "up",
    "gate", "down", "head",
]  # fmt: skip
# The key of `architecture` without which a model has no such matrix.
MADE_BY = {
    "query_down": "q_rank",
    "kv_down": "kv_rank",
    "rope_key": "rope_dim",
    "attention_gate": "attention_gate",
}
# The keys by which attention reads more than the stream in a pass.
GIVEN = ("value_residual", "value_embedding", "kv_from_block")
Base = Number | Text  # a formula
Bases = Base | tuple[Base, ...]
Cap = Nothing | Annotated[Number, Field(gt=0, le=1e4)]


def _check_size(value: float) -> float:
    if value % 1 or not 1 <= value <= 2**24:
        raise ValueError("it is none or a whole number from 1 to 2^24")
    return value


Rank = Annotated[Number, AfterValidator(_check_size)] | Text
# A number, a formula, or the mapping of a learned one; `check_formulas` works each of them out.
Scale = Any


@node
class Architecture:
    """`architecture.*`: what a preset sets and no axis owns."""

    bias: Flag | Annotated[tuple[Biased, ...], Field(min_length=1)]  # all, none, or these
    tied: Annotated[Flag, Mark.AUTO]
    embed_scale: Annotated[Scale, Mark.AUTO]
    embed_scale_order: Annotated[Literal["before", "after"], Mark.AUTO]  # positions are added
    smear: Nothing | Positive  # channels of a token that gate the one before it, which is added
    attention_scale: Annotated[Scale, Mark.AUTO]  # q k^T is multiplied by it
    logit_scale: Annotated[Scale, Mark.AUTO]
    qk_norm_order: Annotated[Literal["before", "after"], Mark.AUTO]  # the rotation of q and k
    attention_cap: Annotated[Cap, Mark.AUTO]
    value_scale: Scale  # of a block's own values, with value_residual
    value_residual: Scale  # what the first block's values are multiplied by in the others, or none
    value_embedding: Base  # the factor of a block's table of values; none and 0: no table
    value_gate: Nothing | Positive  # the channels of x that a gate of the table's rows reads
    attention_gate: Literal["none", "elementwise", "per_head"]  # on heads, before W_o
    q_rank: Rank  # the width of a latent that queries are made of; none: they are made of x
    kv_rank: Rank  # likewise for keys and values
    rope_dim: Rank  # the dimensions of a head that rope turns, whose key all heads share; none
    value_dim: Rank  # the dimensions of a head's values; none: model.head_dim
    logit_cap: Cap
    sliding_window: Bases  # tokens that a query sees; none or 0 is all
    attention_chunk: Bases  # tokens of a chunk, outside of which a query sees none
    temperature_floor: Bases  # tokens of a step of the temperature; 0: no steps
    temperature_scale: Annotated[Number, Field(ge=-1e3, le=1e3)]
    rope_base: Bases  # 0 turns nothing
    rope_interleaved: Flag  # pairs (2j, 2j + 1), else (j, j + r/2)
    rope_fraction: Bases  # the share of a head that turns
    rope_proportional: Flag  # the share is that of the pairs of the whole head
    values_from_keys: Bases  # 1 in a block without W_v, whose values are W_k x
    kv_from_block: Bases  # the block i whose keys and values a block uses
    activation_sparsity: Bases  # the share of hidden units below a threshold


def _is_count(number: float, *_: Any) -> bool:
    return 0 <= number <= 2**24 and number == int(number)


def _window(number: float, context: int) -> int:
    return int(number) if number < context else 0


def _is_source(number: float, i: int, numbers: list[float]) -> bool:
    """Whether block i, or an earlier one, has the keys and values that block i uses."""
    return number == int(number) and 0 <= number <= i and numbers[int(number)] == number


_TOKENS = "is a whole number of tokens from 1 on, or 0 for"
_OF_SIZES = ("N", "R", "d", "H", "dh", "m", "L")
ANY = Range("factors", "any number", lambda *_: True)
SIZE = Range("sizes", "a size is above 0, up to 2^24", lambda n, *_: 1e-9 < n <= 2**24,
             whole_or_even)  # fmt: skip
WINDOW = Range("windows", f"a window {_TOKENS} all", _is_count, _window)
CHUNK = Range("chunks", f"a chunk {_TOKENS} all", _is_count, _window)
FLOOR = Range("floors", f"a floor {_TOKENS} none", _is_count, whole_or_even)
BASE = Range("bases", "a base is above 1 and at most 1e9, or 0 where nothing is to turn",
             lambda base, *_: base == 0 or 1 < base <= 1e9)  # fmt: skip
OF_HEAD = Range("shares", "a share of a head is above 0 and at most 1", lambda n, *_: 0 < n <= 1)
OF_HIDDEN = Range("shares", "a share of hidden units is at least 0, which is none of them, and "
                  "below 1", lambda share, *_: 0 <= share < 1)  # fmt: skip
MARK = Range("marks", "it is 1 where k and v share W_k, else 0",
             lambda mark, *_: mark in (0, 1), lambda mark, _: bool(mark))  # fmt: skip
SOURCE = Range("blocks", "it is i where the block has its own keys and values, else the i of an "
               "earlier block", _is_source, whole_or_even)  # fmt: skip
# The sentences of explain.
_LATENT = "q = W_q c; c = q_latent(W_dq x), a latent of {number} numbers"
_LATENTS = "k, v = W_k c, W_v c; c = kv_latent(W_dkv x), a latent of {number} numbers"
_SHARED = "k begins with W_kr x, {number} numbers that all heads share; rope turns these alone"
_CHUNK = "a query sees its own chunk of {number} tokens"
_TEMPERATURE = (
    "q at position t * (1 + {config.architecture.temperature_scale:g}*log(1 + floor((t + 1)/"
    "{number})))"
)
_SPARSE = (
    "{config.mlp.activation}(max(z - mean(z) - {own.sparse_quantile:.4g} * std(z), 0)), z its "
    "input: of normal numbers {number:.3g} are below the threshold"
)


@dataclass(frozen=True)
class BlockChoices:
    """The sizes of block i, the `values` that formulas may name in it, and its number of each key
    of PER_BLOCK."""

    i: int
    sizes: BlockSizes
    values: Mapping[str, float]
    value_embedding: Annotated[float, PerBlock(ANY, names=(*_OF_SIZES, "i", "l"))]
    q_rank: Annotated[int, PerBlock(SIZE, _LATENT, names=_OF_SIZES)]
    kv_rank: Annotated[int, PerBlock(SIZE, _LATENTS, names=_OF_SIZES, of_keys=True)]
    rope_dim: Annotated[int, PerBlock(SIZE, _SHARED, names=_OF_SIZES, of_keys=True)]
    value_dim: Annotated[int, PerBlock(SIZE, "v has {number} numbers a head", "dh", _OF_SIZES)]
    kv_from_block: Annotated[int, PerBlock(SOURCE, "k, v are those of block {number}", "i")]
    values_from_keys: Annotated[
        bool, PerBlock(MARK, "k and v share W_k; there is no W_v", of_keys=True)
    ]
    sliding_window: Annotated[int, PerBlock(WINDOW, "a query sees the last {number} tokens")]
    attention_chunk: Annotated[int, PerBlock(CHUNK, _CHUNK)]
    temperature_floor: Annotated[int, PerBlock(FLOOR, _TEMPERATURE)]
    rope_base: Annotated[float, PerBlock(BASE)]
    rope_fraction: Annotated[float, PerBlock(OF_HEAD, unset=None)]
    activation_sparsity: Annotated[float, PerBlock(OF_HIDDEN, _SPARSE, inside="the mlp")]

    @property
    def sparse_quantile(self) -> float:
        """The quantile of the normal distribution below which an activation is 0."""
        return NormalDist().inv_cdf(self.activation_sparsity)

    @property
    def source(self) -> int | None:
        """The other block whose keys and values the block uses, or None."""
        return None if self.kv_from_block == self.i else self.kv_from_block

    @property
    def latent_ranks(self) -> dict[str, int]:
        """The width of the latent that a role's matrix reads, of the roles that read one."""
        ranks = {"query": self.q_rank, "key": self.kv_rank, "value": self.kv_rank}
        return {role: rank for role, rank in ranks.items() if rank}

    def heads_at(self, site: str) -> tuple[int, int]:
        """Returns how many heads a site holds, and their dimensions: 0 and 0 where it has none."""
        sizes, values = self.sizes, self.value_dim
        return {
            "q": (sizes.heads, sizes.head_dim),
            "k": (sizes.kv_heads, sizes.head_dim),
            "v": (sizes.kv_heads, values),
            "head_norm": (sizes.heads, values),
        }.get(site, (0, 0))

    def width_at(self, site: str, share: str) -> int:
        """Returns how many features the norm at a site acts on."""
        count, dimensions = self.heads_at(site)
        if count:
            return dimensions * (count if share == "full" else 1)
        widths = {
            **dict.fromkeys(INSIDE["mlp"], self.sizes.mlp_width),
            "q_latent": self.q_rank,
            "kv_latent": self.kv_rank,
            "ctx": self.sizes.heads * self.value_dim,
        }
        return widths.get(site, self.sizes.width)


# The keys of `architecture` that have a number for each block.
PER_BLOCK: dict[str, PerBlock] = {
    key: marks[0]
    for key, kind in get_type_hints(BlockChoices, include_extras=True).items()
    if (marks := marks_of(kind))
}
