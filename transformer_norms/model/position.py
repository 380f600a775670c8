"""How a token knows its position: added to the stream, turned into q and k, added to logits, or
not at all.

A position has three ends. `forward(x, start)` acts on the embedded tokens; `angles(start, time)`
gives what `rotation(i)` turns the queries and keys of block i by; `bias(i, heads)` is added to its
logits. `start` is the position of the first token, above 0 only when generating from a cache.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.formula import Formula
from transformer_norms.kinds import Flag, Nothing, Number, Size, Text
from transformer_norms.model.attentions.kernels import PositionBias
from transformer_norms.model.initialization import Embedding
from transformer_norms.model.sizes import PerBlock, Range, in_blocks
from transformer_norms.names import Registry
from transformer_norms.norms import Layer, nothing

POSITIONS, SCALINGS = Registry("position"), Registry("scaling")
Stream = Float[Tensor, "batch time width"]


@POSITIONS("none")
class NoPosition(nn.Module):
    """No positions: only the causal mask tells the past from the future."""

    bounded = False  # whether there is nothing for a position beyond the context

    def __init__(self, **sizes: Any) -> None:
        super().__init__()

    def forward(self, x: Stream, start: int) -> Stream:
        return x

    def angles(self, start: int, time: int) -> Any:
        return None

    def rotation(self, i: int) -> Callable[..., Any]:
        return nothing

    def bias(self, i: int, heads: int) -> PositionBias | None:
        return None


@POSITIONS("learned")
class LearnedPositions(NoPosition):
    """x + P[t], a vector for each position up to the context      GPT-1, GPT-2"""

    bounded = True

    def __init__(self, *, width: int, context: int, **sizes: Any) -> None:
        super().__init__()
        self.position = Embedding(context, width)

    def forward(self, x: Stream, start: int) -> Stream:
        return x + self.position.weight[start : start + x.shape[1]]


@POSITIONS("sinusoidal")
class Sinusoidal(NoPosition):
    """x + P[t], P[t, 2j] = sin(t / 10000^(2j/d)), P[t, 2j+1] = its cos      Vaswani et al. 2017

    As the paper has it, sines and cosines take turns; others put all sines first.
    """

    bounded = True

    def __init__(self, *, width: int, context: int, **sizes: Any) -> None:
        super().__init__()
        pairs = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = torch.outer(torch.arange(context, dtype=torch.float64), 10_000.0**-pairs)
        both = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, :width]
        self.register_buffer("table", both, persistent=False)
        self.table: Tensor

    def forward(self, x: Stream, start: int) -> Stream:
        return x + self.table[start : start + x.shape[1]].to(x.dtype)


def position_last(position: Layer, function: Layer, x: Tensor, given: Any) -> Tensor:
    return position(function(x), given)


def position_first(position: Layer, function: Layer, x: Tensor, given: Any) -> Tensor:
    return function(position(x, given))


# Whether a function comes before the position or after. It is the norm of q and k, with their
# rotation: the order is of no effect for a norm without a gain for each dimension, since a rotation
# keeps lengths. Or it is the scale of the embedded tokens, with the positions that are added:
# Fairseq and tensor2tensor scale tokens alone, DyT and Derf the sum.
ORDERS = {"before": position_last, "after": position_first}


Factor = Number | Text | tuple[Number | Text, ...]
Turns = Annotated[Number, Field(gt=0, le=1e6)]
Powers = Float[Tensor, " pairs"]  # base^(2j/dims), the inverse of the frequencies
Scaled = tuple[Float[Tensor, " pairs"], float]  # frequencies, and the factor of cos and sin


# Called with the number of a block. In float32, the order of operations is that of the models
# released with a scaling.
@SCALINGS("linear")
def interpolate(powers: Powers, *, factor: Factor, **plain: Any) -> Scaled:
    """frequency / factor      position interpolation, Chen et al. 2023, arXiv:2306.15595"""
    return 1.0 / powers / factor, 1.0  # type: ignore[operator]


@SCALINGS("llama3")
def interpolate_slow_pairs(
    powers: Powers, *, factor: Factor, original_context: Size, low_freq_factor: Turns,
    high_freq_factor: Turns, **plain: Any,
) -> Scaled:  # fmt: skip
    """frequency / factor for a pair with less than `low_freq_factor` turns in the original context,
    the frequency above `high_freq_factor` turns, between them a mean, linear in the turns
    Llama 3.1, Grattafiori et al. 2024, arXiv:2407.21783; code meta-llama/llama-models, model.py"""
    if low_freq_factor >= high_freq_factor:
        raise ValueError("low_freq_factor should be below high_freq_factor")
    frequencies = 1.0 / powers
    turns = original_context / (2 * math.pi / frequencies)
    kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return (1 - kept) * frequencies / factor + kept * frequencies, 1.0  # type: ignore[operator]


@SCALINGS("yarn")
def interpolate_by_parts(
    powers: Powers, base: float, dims: int, *, factor: Factor, original_context: Size,
    beta_fast: Turns, beta_slow: Turns, truncate: Flag, attention_factor: Number | Text,
) -> Scaled:  # fmt: skip
    """frequency / factor from the pair with `beta_slow` turns in the original context on, the
    frequency up to the pair with `beta_fast` turns, between them a mean, linear in the index, which
    `truncate` rounds outwards; cos and sin times `attention_factor`, a formula of `factor`
    YaRN, Peng et al. 2023, arXiv:2309.00071"""
    attention = float(Formula(attention_factor)({"factor": factor}))
    if beta_slow >= beta_fast or not 0 < attention <= 1e3:
        raise ValueError("beta_slow should be below beta_fast, attention_factor above 0, up to 1e3")
    low, high = (
        dims * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (beta_fast, beta_slow)
    )
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    low, high = max(low, 0), min(high, dims - 1)
    pairs = torch.arange(len(powers), dtype=powers.dtype, device=powers.device)
    kept = 1 - ((pairs - low) / (high - low or 0.001)).clamp(0, 1)
    return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept, attention  # type: ignore[operator]


@POSITIONS("rope")
class Rotary(NoPosition):
    """Rotary positions, pairs (j, j + r/2) of the first r dimensions of each head turned by the
    angle t / base^(2j/r)      Su et al. 2021, arXiv:2104.09864

    `interleaved` pairs are (2j, 2j + 1), as in the paper and in GPT-J. r is a share of `head_dim`,
    the dimensions of a head or the part of them that is to turn, rounded down to an even number, at
    least 2. `proportional`: r is the whole `head_dim`, and the share is that of its pairs, the
    first ones, that turn (Gemma 4). `bases` and `fractions` have one number a block, and so has
    `head_dim` where blocks differ; at the base 0 nothing turns. `scaling` changes the frequencies,
    for a longer context, in the blocks whose `factor` is not 1. Frequencies are computed in float32
    and angles in float32 at least.
    """

    def __init__(
        self,
        *,
        head_dim: int | Sequence[int],
        bases: Sequence[float],
        fractions: Sequence[float],
        interleaved: bool,
        proportional: bool,
        scaling: Nothing | Mapping[str, Any],
        **sizes: Any,
    ) -> None:
        super().__init__()
        self.axis = -1 if interleaved else -2  # of the two of a pair: [pairs, two] or [two, pairs]
        dims = [head_dim] * len(bases) if isinstance(head_dim, int) else head_dim
        each = [*zip(dims, fractions, strict=True)]
        counts = [max(1, int(whole * fraction) // 2) for whole, fraction in each]
        spans = [whole // 2 for whole in dims] if proportional else counts
        factors = scaling_factors(scaling, len(bases))
        self.turns = [*zip(bases, counts, spans, factors, strict=True)]
        self.distinct = list(dict.fromkeys(turn for turn in self.turns if turn[0]))
        self.attention_factors: list[float] = []
        table = torch.zeros(len(self.distinct), max(dims) // 2, dtype=torch.float32)
        for row, (base, count, span, factor) in zip(table, self.distinct, strict=True):
            # A range on the meta device would import the compiler, which takes seconds.
            evens = torch.arange(0, 2 * count, 2, dtype=torch.float32, device="cpu")
            powers = base ** (evens / (2 * span))
            row[:count], attention = 1.0 / powers, 1.0
            if factor != 1:
                scale = partial(SCALINGS.maker(scaling), base=base, dims=2 * span)  # type: ignore[arg-type]
                row[:count], attention = scale(powers, factor=factor)
            self.attention_factors.append(attention)
        self.register_buffer("frequencies", table, persistent=False)
        self.frequencies: Tensor

    def angles(self, start: int, time: int) -> tuple[Float[Tensor, "two 1 time 1 turned"], ...]:
        """Returns for each distinct turn cos and sin, times the factor of its scaling, the sine
        negative for the first of a pair: (x, y) -> (xc - ys, yc + xs)"""
        times = torch.arange(start, start + time, device=self.frequencies.device)
        times = times.to(self.frequencies.dtype)
        rows = zip(self.frequencies, self.distinct, self.attention_factors, strict=True)
        return tuple(
            self._angles(torch.outer(times, row[:span])) * attention
            for row, (_, _, span, _), attention in rows
        )

    def _angles(self, angle: Float[Tensor, "time pairs"]) -> Float[Tensor, "two 1 time 1 turned"]:
        cos, sin = angle.cos(), angle.sin()
        both = (torch.stack(two, self.axis).flatten(-2) for two in ((cos, cos), (-sin, sin)))
        return torch.stack([*both])[:, None, :, None]

    def rotation(self, i: int) -> Callable[..., Any]:
        """Returns the function of (x, angles) that turns the queries and keys of block i."""
        turn = self.turns[i]
        if not turn[0]:
            return nothing
        return partial(rotate, self.axis, self.distinct.index(turn))


def rotate(
    axis: int,
    which: int,
    x: Float[Tensor, "batch time heads head_dim"],
    angles: tuple[Float[Tensor, "two 1 time 1 turned"], ...],
) -> Float[Tensor, "batch time heads head_dim"]:
    cos, sin = angles[which].to(x.dtype)
    turned = cos.shape[-1]
    part = x[..., :turned]
    swapped = part.unflatten(-1, (2, -1) if axis == -2 else (-1, 2)).flip(axis).flatten(-2)
    rotated = part * cos + swapped * sin
    return rotated if turned == x.shape[-1] else torch.cat((rotated, x[..., turned:]), dim=-1)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """2^(-8 h / heads) for h = 1, 2, ..., where heads is a power of two. Else those of the power
    below it, then every second one of the power above it."""
    if heads & (heads - 1) == 0:
        return tuple(2.0 ** (-8 * h / heads) for h in range(1, heads + 1))
    below = 1 << (heads.bit_length() - 1)
    return alibi_slopes(below) + alibi_slopes(2 * below)[::2][: heads - below]


@dataclass(frozen=True)
class LinearBias:
    """-slope * (query - key), with a slope for each head"""

    slopes: tuple[float, ...]

    def on(self, device: torch.device, dtype: torch.dtype) -> Callable[..., Tensor]:
        slopes = torch.tensor(self.slopes, device=device, dtype=dtype)
        return lambda head, query, key: slopes[head] * (key - query)


@POSITIONS("alibi")
class ALiBi(NoPosition):
    """softmax(scale * q k^T - slope * distance), a slope for each head and nothing learned
    Press et al. 2021, arXiv:2108.12409

    The slopes fall from 2^(-8/heads) to 2^-8 in equal ratios; `alibi_slopes` says what other
    numbers of heads than powers of two have, as the paper's code does. Neither the scale of the
    logits nor their cap acts on the bias.
    """

    def bias(self, i: int, heads: int) -> PositionBias:
        return LinearBias(alibi_slopes(heads))


_FACTOR = Range("factors", "a factor is from 1 to 1e4", lambda factor, *_: 1 <= factor <= 1e4)


def scaling_factors(scaling: Any, depth: int) -> list[float]:
    """Returns the factor of `position.scaling` as one number for each block, 1 where nothing is
    scaled. ValueError where one is not from 1 to 1e4."""
    spec = scaling["factor"] if isinstance(scaling, Mapping) else 1
    return PerBlock(_FACTOR, unset=None).numbers(spec, in_blocks(depth))
