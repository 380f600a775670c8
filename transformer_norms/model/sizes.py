"""The sizes of a model, `auto` as numbers, and what formulas in YAML may name. `PerBlock` turns a
value into a number for each block. No torch here."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from transformer_norms.formula import Formula
from transformer_norms.kinds import Mark, Number, Positive, Size, Text, node, refusal_text

Heads = Annotated[Positive, Field(le=4096)]
HeadDim = Annotated[Positive, Field(le=8192)]
OF_BLOCKS = ("kv_heads", "head_dim")  # the sizes in which blocks may differ


class Range(NamedTuple):
    """Numbers that are allowed. A refusal calls them `what`, and says which are `wanted`. `allows`
    has a number, the index of its block, and the numbers of all blocks. The model reads `of` a
    number and the context."""

    what: str
    wanted: str
    allows: Callable[[float, int, list[float]], bool]
    of: Callable[[float, int], Any] = lambda number, context: number


@dataclass(frozen=True)
class PerBlock:
    """Declares a value with a number for each block: one for all, a formula, or a list of both.

    none is the formula `unset`, or is not allowed. A formula may name `names`. explain `says` what
    a number does, `inside` a sub-layer, where none would be another number. The sentence is filled
    in with the `number`, the block's `own` numbers and the `config`. With `of_keys`, the number
    plays no part in a block that uses the keys of another.
    """

    range: Range
    says: str = ""
    unset: str | None = "0"
    names: Collection[str] = ("i", "l", "N", "L")
    inside: str = "attention"
    of_keys: bool = False

    def numbers(self, spec: Any, values: Sequence[Mapping[str, float]]) -> list[Any]:
        """Returns the number of each block, of which `values` has what formulas may name.
        ValueError where `spec` is not a number, a formula or a list of them, or a number is not
        allowed."""
        context = int(values[0].get("L", 0))
        values = [{name: here[name] for name in here.keys() & {*self.names}} for here in values]
        listed = isinstance(spec, Sequence) and not isinstance(spec, str)
        if listed and len(spec) != len(values):
            raise ValueError(f"there are {len(spec)} {self.range.what} for {len(values)} blocks")
        absent = spec == "none" and self.unset is not None
        each = spec if listed else [self.unset if absent else spec] * len(values)
        numbers = [float(Formula(one)(here)) for one, here in zip(each, values, strict=True)]
        for i, number in enumerate(numbers):
            if not absent and not self.range.allows(number, i, numbers):
                raise ValueError(f"in block i={i} it is {number:g}; {self.range.wanted}")
        return [self.range.of(number, context) for number in numbers]


def in_blocks(depth: int, **values: float) -> list[dict[str, float]]:
    """Returns what formulas may name in each block: i, l and N, and the `values`."""
    return [{**values, "i": i, "l": i + 1, "N": depth} for i in range(depth)]


@node
class Sizes:
    """`model.*`. Unless chosen, kv_heads are heads, head_dim is width / heads, and mlp_width is
    4 x width, or 8/3 x width rounded up to a multiple of 8 where the mlp is gated.

    kv_heads and head_dim may be a formula of i, l, N, R, d, H and L, or a list of numbers and
    formulas. They are resolved to a number, or to one for each block where blocks differ.
    A fraction is rounded up: kv_heads to a divisor of heads, head_dim to an even number."""

    width: Size
    depth: Annotated[Positive, Field(le=10_000)]
    heads: Heads
    kv_heads: Annotated[Heads | Text | tuple[Heads | Text, ...], Mark.AUTO]
    head_dim: Annotated[HeadDim | Text | tuple[HeadDim | Text, ...], Mark.AUTO]
    mlp_width: Annotated[Size, Mark.AUTO]
    context: Annotated[Positive, Field(le=2**24)]
    dropout: Annotated[Number, Field(ge=0, lt=1)]


@node
class BlockSizes(Sizes):
    """The sizes of one block, all of them numbers."""

    kv_heads: Heads
    head_dim: HeadDim


def formula_values(sizes: Sizes) -> dict[str, float]:
    """Returns the numbers that formulas in YAML may name, besides i and l of a block. There is no
    dh where blocks have heads of several sizes."""
    return {
        "N": sizes.depth,
        "R": 2 * sizes.depth,
        "d": sizes.width,
        "H": sizes.heads,
        **({"dh": sizes.head_dim} if isinstance(sizes.head_dim, int) else {}),
        "m": sizes.mlp_width,
        "L": sizes.context,
    }


def block_sizes(sizes: Sizes, i: int) -> BlockSizes:
    """Returns the sizes of block i."""
    each = {one.name: getattr(sizes, one.name) for one in fields(sizes)}
    own = {key: size[i] for key, size in each.items() if isinstance(size, tuple)}
    return BlockSizes(**{**each, **own})


def block_values(sizes: Sizes, i: int) -> dict[str, float]:
    """Returns the numbers that formulas may name in block i."""
    return {**formula_values(block_sizes(sizes, i)), "i": i, "l": i + 1}


def resolve_sizes(chosen: Mapping[str, Any], *, gated: bool, rotary: bool) -> dict[str, Any]:
    """The sizes with every auto as a number; ValueError where they do not fit together."""
    sizes, width, heads = dict(chosen), chosen["width"], chosen["heads"]
    if sizes["kv_heads"] == "auto":
        sizes["kv_heads"] = heads
    if sizes["head_dim"] == "auto":
        if width % heads:
            fitting = _divisors(width, 2 if rotary else 1)
            among = f", or heads among {fitting}" if fitting else ", or an even model.width"
            raise ValueError(
                f"model.heads: {heads} heads do not divide model.width, {width}; "
                f"type model.head_dim{among}"
            )
        sizes["head_dim"] = width // heads
    if sizes["mlp_width"] == "auto":
        sizes["mlp_width"] = -(-8 * width // 24) * 8 if gated else 4 * width
    for key in OF_BLOCKS:
        sizes[key] = _size_of_blocks(key, sizes)
    for kv_heads, where in _each(sizes["kv_heads"]):
        if heads % kv_heads:
            raise ValueError(
                f"model.kv_heads: {kv_heads}{where} does not divide model.heads, {heads}; "
                f"allowed are {_divisors(heads)}"
            )
    for head_dim, where in _each(sizes["head_dim"]):
        if rotary and head_dim % 2:
            raise ValueError(
                f"model.head_dim: {head_dim}{where} is odd, and position=rope turns pairs; "
                "type an even head_dim or position=learned"
            )
    return sizes


def _size_of_blocks(key: str, sizes: Mapping[str, Any]) -> int | tuple[int, ...]:
    """Returns kv_heads or head_dim as a number, or as one for each block where blocks differ."""
    spec, heads = sizes[key], sizes["heads"]
    if isinstance(spec, int):
        return spec
    most = {"kv_heads": heads, "head_dim": 8192}[key]
    names = {"R": 2 * sizes["depth"], "d": sizes["width"], "H": heads, "L": sizes["context"]}
    wanted, allows = f"it is above 0, up to {most}", lambda size, *_: 1e-9 < size <= most
    size = PerBlock(Range("sizes", wanted, allows), unset=None, names=("i", "l", "N", *names))
    try:
        numbers = size.numbers(spec, in_blocks(sizes["depth"], **names))
    except ValueError as error:
        raise ValueError(f"model.{key}: {refusal_text(spec, error)}") from None
    if key == "kv_heads":  # a number that is whole, and divides nothing, is refused
        dividing = [count for count in range(1, heads + 1) if heads % count == 0]
        each = [int(n) if n % 1 == 0 else next(d for d in dividing if d >= n) for n in numbers]
    else:
        each = [whole_or_even(number) for number in numbers]
    return each[0] if len(set(each)) == 1 else tuple(each)


def _each(size: int | tuple[int, ...]) -> list[tuple[int, str]]:
    """Returns each of several sizes, and the block that a message names it by."""
    if isinstance(size, int):
        return [(size, "")]
    return [(each, f" in block i={i}") for i, each in enumerate(size)]


def _divisors(number: int, of_quotient: int = 1) -> str:
    """The divisors whose quotient is a multiple of `of_quotient`, such as an even head."""
    return ", ".join(str(n) for n in range(1, number + 1) if number % (n * of_quotient) == 0)


def whole_or_even(number: float, *_: Any) -> int:
    return int(number) if number % 1 == 0 else 2 * math.ceil(number / 2)
