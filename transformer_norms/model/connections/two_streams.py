"""Two streams, of which one is normed and the other is a plain sum."""

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from transformer_norms.model.coefficient import constant
from transformer_norms.model.connections import CONNECTIONS, Leave, Norm, Stream
from transformer_norms.norms import Layer

Pair = tuple[Stream, Stream]


class Twice:
    """x = r = x0"""

    def __call__(self, x0: Stream, *_: Any) -> Pair:
        return x0, x0


class Join(Leave):
    """x + norm(r), norm being the final one"""

    def forward(self, streams: Pair) -> Stream:
        x, r = streams
        return x + self.norm(r)


@CONNECTIONS("dual")
class Dual:
    """x is normed after every sub-layer, r is the plain sum      ResiDual, Xie et al. 2023,
    arXiv:2304.14802
    """

    enter, leave = Twice, Join

    def __init__(self, sub_layer: Any) -> None:
        self.sub_layer = sub_layer

    def read(self, streams: Pair) -> Stream:
        """x"""
        return streams[0]

    def write(self, streams: Pair, u: Stream) -> Pair:
        """x = post(x + u), r = r + u"""
        x, r = streams
        return self.sub_layer.post(x + u), r + u

    def parts(self, streams: Pair) -> Mapping[str, Stream]:
        return dict(zip("xr", streams, strict=True))


class NormedAndPlain(nn.Module):
    """x = norm(x0), r = x0"""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.norm = norm(width)

    def forward(self, x0: Stream, *_: Any) -> Pair:
        return self.norm(x0), x0


class JoinNormed(nn.Module):
    """final(x + norm(r))"""

    def __init__(self, width: int, norm: Norm, final: Layer) -> None:
        super().__init__()
        self.second, self.norm = norm(width), final

    def forward(self, streams: Pair) -> Stream:
        x, r = streams
        return self.norm(x + self.second(r))


@CONNECTIONS("siamese")
class Siamese(nn.Module):
    """x is a post-norm's stream, r a pre-norm's      SiameseNorm, Li et al. 2026, arXiv:2602.08064

    The authors' code norms x before a sub-layer, here it is normed after the one before: the same
    numbers.
    """

    enter, leave = NormedAndPlain, JoinNormed

    def __init__(self, width: int, l: float, norm: Norm) -> None:  # noqa: E741
        super().__init__()
        self.norm, self.post, self.divisor = norm(width), norm(width), constant(math.sqrt(2 * l))

    def read(self, streams: Pair) -> Stream:
        """x + norm(r)"""
        x, r = streams
        return x + self.norm(r)

    def write(self, streams: Pair, u: Stream) -> Pair:
        """x = norm(x + u / sqrt(2*l)), r = r + u"""
        x, r = streams
        return self.post(x + u / self.divisor), r + u

    parts = Dual.parts
