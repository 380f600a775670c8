"""The stream of a residual network, less a part of what a block in the middle has left."""

import torch
from torch import nn

from transformer_norms.model.coefficient import SCALAR
from transformer_norms.model.connections import CONNECTIONS, Connection, Leave, Scale, Stream
from transformer_norms.model.connections.two_streams import Twice

Kept = tuple[Stream, Stream]  # the stream, and m


class Begin(Twice):
    """x = m = x0"""


class LessKept(Leave):
    """final(x - m)"""

    def forward(self, streams: Kept) -> Stream:
        x, kept = streams
        return self.norm(x - kept)


@CONNECTIONS("backout")
class Backout(Connection):
    """x, and from block N // 2 on (the first is 0) m = s * x as that block leaves it; s is learned
    from `scale` on      backout of nanochat, Karpathy 2025; code karpathy/nanochat, commit 92d63d4,
    gpt.py

    No block reads m, which is x0 until then: blocks before and after are one function.
    """

    enter, leave = Begin, LessKept

    def __init__(self, index: int, depth: int, *, scale: Scale) -> None:
        super().__init__()
        keeps = index == depth // 2
        self.scale = nn.Parameter(torch.full(SCALAR, float(scale))) if keeps else None

    def read(self, streams: Kept) -> Stream:
        """x"""
        return streams[0]

    def write(self, streams: Kept, u: Stream) -> Kept:
        """X = (u, s * u) in block N // 2, X = (u, m) in the others"""
        return u, streams[1] if self.scale is None else self.scale.to(u.dtype) * u
