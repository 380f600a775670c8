"""How a token knows where it stands: added to the stream, turned into q and k, or not at all.

A position has two ends. `forward(x, start)` acts on the embedded tokens; `angles(start, time)`
gives what `rotate` turns queries and keys by. `start` is the position of the first token, above 0
only when generating from a cache.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.initialization import Embedding
from transformer_norms.norms import nothing
from transformer_norms.registry import Registry

POSITIONS = Registry("position")
Stream = Float[Tensor, "batch time width"]


@POSITIONS("none")
class NoPosition(nn.Module):
    """No positions: only the causal mask tells the past from the future."""

    rotate: Callable[..., Any] = staticmethod(nothing)

    def __init__(self, **sizes: Any) -> None:
        super().__init__()

    def forward(self, x: Stream, start: int) -> Stream:
        return x

    def angles(self, start: int, time: int) -> Any:
        return None


@POSITIONS("learned")
class Learned(NoPosition):
    """x + P[t], a vector for each position up to the context      GPT-1, GPT-2"""

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

    def __init__(self, *, width: int, context: int, **sizes: Any) -> None:
        super().__init__()
        pairs = torch.arange(0, width, 2, dtype=torch.float64) / width
        angle = torch.outer(torch.arange(context, dtype=torch.float64), 10_000.0**-pairs)
        both = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, :width]
        self.register_buffer("table", both, persistent=False)
        self.table: Tensor

    def forward(self, x: Stream, start: int) -> Stream:
        return x + self.table[start : start + x.shape[1]].to(x.dtype)


@POSITIONS("rope")
class Rotary(NoPosition):
    """Rotary positions, pairs (j, j + r/2) of the first r dimensions of each head turned by the
    angle t / base^(2j/r)      Su et al. 2021, arXiv:2104.09864

    r is the share `fraction` of the head, rounded down to an even number, at least 2. Frequencies
    are computed in float32 and angles in float32 at least.
    """

    def __init__(
        self, *, context: int, head_dim: int, base: float, fraction: float, **sizes: Any
    ) -> None:
        super().__init__()
        turned = max(2, int(head_dim * fraction) // 2 * 2)
        frequencies = 1.0 / base ** (torch.arange(0, turned, 2, dtype=torch.float32) / turned)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.frequencies: Tensor

    def angles(self, start: int, time: int) -> Float[Tensor, "two 1 time 1 turned"]:
        """cos and sin, the sine negative for the first of a pair: (x, y) -> (xc - ys, yc + xs)"""
        frequencies = self.frequencies
        times = torch.arange(start, start + time, device=frequencies.device)
        angle = torch.outer(times.to(frequencies.dtype), frequencies)
        cos, sin = angle.cos(), angle.sin()
        both = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)))
        return both[:, None, :, None]

    @staticmethod
    def rotate(
        x: Float[Tensor, "batch time heads head_dim"], angles: Float[Tensor, "two 1 time 1 turned"]
    ) -> Float[Tensor, "batch time heads head_dim"]:
        cos, sin = angles.to(x.dtype)
        turned = cos.shape[-1]
        part = x[..., :turned]
        rotated = part * cos + part.roll(turned // 2, -1) * sin
        return rotated if turned == x.shape[-1] else torch.cat((rotated, x[..., turned:]), dim=-1)
