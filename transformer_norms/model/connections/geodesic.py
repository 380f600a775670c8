"""One stream, which a sub-layer turns on its sphere, or moves at right angles to itself."""

import math
from typing import Any

import torch
from torch import nn

from transformer_norms.kinds import Epsilon
from transformer_norms.model.coefficient import SCALAR, constant
from transformer_norms.model.connections import CONNECTIONS, Connection, Leave, Stream
from transformer_norms.norms.parts.affine import wide


class Same:
    """X = x0"""

    def __call__(self, x0: Stream, *_: Any) -> Stream:
        return x0


class Final(Leave):
    """final(X)"""

    def forward(self, x: Stream) -> Stream:
        return self.norm(x)


class OneStream(Connection):
    """A sub-layer reads the stream as it is."""

    enter, leave = Same, Final

    def read(self, x: Stream) -> Stream:
        """X"""
        return x


@CONNECTIONS("geodesic")
class Geodesic(OneStream):
    """X turns on its sphere towards u by an angle t, and keeps its length |X|. s = 1 and c = 0 at
    the start, both learned      GeoNorm, Zheng et al. 2026, arXiv:2601.22095

    v is the part of u at right angles to X. Each length has eps added where it divides, so that
    u = 0 has a gradient.
    """

    largest = math.pi / 4  # the angle

    def __init__(self, l: float, *, eps: Epsilon) -> None:  # noqa: E741
        super().__init__()
        self.l, self.eps = constant(l), eps
        self.scale = nn.Parameter(torch.ones(SCALAR))
        self.bias = nn.Parameter(torch.zeros(SCALAR))

    def write(self, x: Stream, u: Stream) -> Stream:
        """X = cos(t) X + sin(t) |X| v / |v|, v = u - (u . X) X / |X|**2, t = min((s * min(|v|/|X|,
        pi/4) + c) / l, pi/4)
        """
        z, y = wide(x), wide(u)
        size = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
        divisor = size + self.eps
        across = y - (y * z).sum(-1, keepdim=True) / divisor.square() * z
        far = torch.linalg.vector_norm(across, dim=-1, keepdim=True) + self.eps
        angle = self.scale * (far / divisor).clamp(max=self.largest) + self.bias
        angle = (angle / self.l).clamp(max=self.largest)
        return (angle.cos() * z + angle.sin() * size * (across / far)).to(x.dtype)


@CONNECTIONS("orthogonal")
class Orthogonal(OneStream):
    """X moves by the part of u at right angles to X      the orthogonal residual update, Oh et al.
    2025, arXiv:2505.11881
    """

    def __init__(self, *, eps: Epsilon) -> None:
        super().__init__()
        self.eps = eps

    def write(self, x: Stream, u: Stream) -> Stream:
        """X = X + u - (u . X) / (|X|**2 + eps) X"""
        z, y = wide(x), wide(u)
        share = (y * z).sum(-1, keepdim=True) / (z.square().sum(-1, keepdim=True) + self.eps)
        return (z + y - share * z).to(x.dtype)
