"""The settings that a model is built from, with their types and ranges. No torch here."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from transformer_norms.formula import Formula, numbers_of_blocks
from transformer_norms.kinds import (
    Flag,
    Mark,
    Nothing,
    Number,
    Positive,
    Seed,
    Text,
    Values,
    node,
)
from transformer_norms.model.placement import Placement
from transformer_norms.model.sites import INSIDE
from transformer_norms.model.sizes import (
    BlockSizes,
    Sizes,
    block_sizes,
    block_values,
    whole_or_even,
)

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


class PerBlock(NamedTuple):
    """Declares a key of `architecture` with a number for each block: one for all, a formula, or a
    list. `what` the numbers are called, which of them the key `allows`, as `wanted` says, and what
    the model reads: `of` makes it from a number and the context. none is the formula `unset`, or is
    not allowed. `allows` has a number, the index of its block, and the numbers of all blocks. A
    formula may have the `names`."""

    what: str
    wanted: str
    allows: Callable[[float, int, list[float]], bool]
    of: Callable[[float, int], Any] = lambda number, context: number
    unset: str | None = "0"
    names: Collection[str] = ("i", "l", "N", "L")


def _is_count(number: float, *_: Any) -> bool:
    return 0 <= number <= 2**24 and number == int(number)


def _window(number: float, context: int) -> int:
    return int(number) if number < context else 0


def _is_source(number: float, i: int, numbers: list[float]) -> bool:
    """Whether block i, or an earlier one, has the keys and values that block i uses."""
    return number == int(number) and 0 <= number <= i and numbers[int(number)] == number


def _is_size(number: float, *_: Any) -> bool:
    return 1e-9 < number <= 2**24


_TOKENS = "is a whole number of tokens from 1 on, or 0 for"
_SOURCE = "it is i where the block has its own keys and values, else the i of an earlier block"
_MARK = "it is 1 where values are what W_k computes, else 0"
_BASE = "a base is above 1 and at most 1e9, or 0 where nothing is to turn"
_SHARE = "a share of a head is above 0 and at most 1"
_HIDDEN = "a share of hidden units is at least 0, which is none of them, and below 1"
_OF_SIZES = ("N", "R", "d", "H", "dh", "m", "L")
_SIZE = PerBlock("sizes", "a size is above 0, up to 2^24", _is_size, whole_or_even, names=_OF_SIZES)
# The keys of `architecture` that have a number for each block.
PER_BLOCK = {
    "value_embedding": PerBlock(
        "factors", "any number", lambda *_: True, names=(*_OF_SIZES, "i", "l")
    ),
    **dict.fromkeys(("q_rank", "kv_rank", "rope_dim"), _SIZE),
    "value_dim": _SIZE._replace(unset="dh"),
    "sliding_window": PerBlock("windows", f"a window {_TOKENS} all", _is_count, _window),
    "attention_chunk": PerBlock("chunks", f"a chunk {_TOKENS} all", _is_count, _window),
    "temperature_floor": PerBlock("floors", f"a floor {_TOKENS} none", _is_count, whole_or_even),
    "rope_base": PerBlock("bases", _BASE, lambda base, *_: base == 0 or 1 < base <= 1e9),
    "rope_fraction": PerBlock("shares", _SHARE, lambda share, *_: 0 < share <= 1, unset=None),
    "values_from_keys": PerBlock(
        "marks", _MARK, lambda mark, *_: mark in (0, 1), lambda mark, _: bool(mark)
    ),
    "kv_from_block": PerBlock("blocks", _SOURCE, _is_source, whole_or_even, unset="i"),
    "activation_sparsity": PerBlock("shares", _HIDDEN, lambda share, *_: 0 <= share < 1),
}


def _check_rms(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not isinstance(value, str) and not (number and 0 < value <= 1e6):
        raise ValueError("it should be none, a number above 0, or a formula such as 1/sqrt(d)")
    return value


def _check_size(value: float) -> float:
    if value % 1 or not 1 <= value <= 2**24:
        raise ValueError("it is none or a whole number from 1 to 2^24")
    return value


Stream = Annotated[Any, AfterValidator(_check_rms)]
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
    value_scale: Scale  # of a block's own values, beside value_residual
    value_residual: Scale  # what the first block's values are multiplied by in the others, or none
    value_embedding: Base  # what a block's table of values is multiplied by; none and 0: no table
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


def numbers_of(key: str, spec: Any, values: Sequence[Mapping[str, float]]) -> list[Any]:
    """Returns what a key of PER_BLOCK is in each block, of which `values` has what formulas may
    name. ValueError where a number is not allowed."""
    own, context = PER_BLOCK[key], int(values[0]["L"])
    values = [{name: here[name] for name in here.keys() & {*own.names}} for here in values]
    if spec == "none" and own.unset is not None:
        numbers = [float(Formula(own.unset)(here)) for here in values]
    else:
        numbers = numbers_of_blocks(spec, values, own.what, own.wanted, own.allows)
    return [own.of(number, context) for number in numbers]


@dataclass(frozen=True)
class BlockChoices:
    """The sizes of block i, the `values` that formulas may name in it, and its number of each key
    of PER_BLOCK."""

    i: int
    sizes: BlockSizes
    values: Mapping[str, float]
    value_embedding: float
    q_rank: int
    kv_rank: int
    rope_dim: int
    value_dim: int
    sliding_window: int
    attention_chunk: int
    temperature_floor: int
    rope_base: float
    rope_fraction: float
    values_from_keys: bool
    kv_from_block: int
    activation_sparsity: float

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


@node
class NormFile:
    """The keys of a norm's file besides the settings of its class. `unverified` says what could not
    be read in the paper or its code."""

    formula: Annotated[Text, Mark.ASIDE] = ""
    source: Annotated[Text, Mark.ASIDE] = ""
    unverified: Annotated[Text, Mark.ASIDE] = ""
    brings: Annotated[Mapping[str, Any], Mark.ASIDE] = field(default_factory=dict)


@node
class InitFile:
    """The keys of an init besides its rule. `stream` is the rms of the embedded tokens that enter
    the first block, before positions are added; it is reached by the embedding table or by the
    scale of the embedded tokens (`stream_by`). `brings` are choices that hold unless the user, a
    preset, the placement or the norm made them; `tied_logit_scale` is the logit_scale of a tied
    head. `unverified` says what could not be read in the authors' code or paper. `lr_factor` is
    what optimizer.lr_factor comes to where it is auto, for the groups of parameters that it names.
    `otherwise` is the rule that auto comes to where nothing brings one."""

    otherwise: Annotated[Text, Mark.ASIDE] = ""
    stream: Stream = "none"
    stream_by: Literal["table", "scale"] = "table"
    source: Annotated[Text, Mark.ASIDE] = ""
    unverified: Annotated[Text, Mark.ASIDE] = ""
    lr_factor: Annotated[Mapping[str, Number | Text], Mark.ASIDE] = field(default_factory=dict)
    brings: Annotated[Mapping[str, Any], Mark.ASIDE] = field(default_factory=dict)


@node
class MLPFile:
    """The keys of an mlp's file besides the settings of its class."""

    activation: Text


@node
class AttentionFile:
    """The keys of an attention's file besides the settings of its class."""

    source: Annotated[Text, Mark.ASIDE] = ""
    unverified: Annotated[Text, Mark.ASIDE] = ""


@node
class ModelConfig:
    """The part of a config that `build_model` reads. A `Values` node holds the `type` of a
    registered class, its settings, and what the class beside it in the annotation declares."""

    norm: Annotated[Values, NormFile]
    norms: Annotated[Values, NormFile, Mark.EACH, Mark.DERIVED]  # the others that stand somewhere
    placement: Annotated[Values, Placement]
    init: Annotated[Values, InitFile]
    position: Values
    attention: Annotated[Values, AttentionFile]
    mlp: Annotated[Values, MLPFile]
    embed: Text  # the norm on the embedded tokens: none, fixnorm, norm, or a name of `norms`
    final_norm: Text  # likewise, before the head
    qk_norm: Text  # none, a share of gains, l2, or a name of `norms`
    v_norm: Text  # likewise
    qkv: Annotated[Text, Mark.DERIVED]  # what stands where q, k or v have the run's norm
    architecture: Architecture
    model: Sizes
    seed: Seed

    @property
    def blocks(self) -> list[BlockChoices]:
        """Returns the plain numbers of each block. ValueError where one is not allowed."""
        sizes = self.model
        values = [block_values(sizes, i) for i in range(sizes.depth)]
        each = {key: numbers_of(key, getattr(self.architecture, key), values) for key in PER_BLOCK}
        return [
            BlockChoices(i, block_sizes(sizes, i), here, **{key: each[key][i] for key in each})
            for i, here in enumerate(values)
        ]
