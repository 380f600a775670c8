"""n streams around a block: what becomes of them is predicted, and then corrected."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.model.connections import (
    CONNECTIONS,
    Connection,
    Stream,
    StreamCount,
    Streams,
    in_one_layout,
)
from transformer_norms.model.connections.hyper_connections import Copies, Sum
from transformer_norms.model.initialization import Einsum
from transformer_norms.norms import Layer
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.division import exact
from transformer_norms.norms.rmsnorm import RMSNorm

FLOOR = 1e-5  # below which Gemma 3n takes no mean square to divide by


@CONNECTIONS("altup")
class AltUp(Connection):
    """P_i = sum_j p_ij X_j, a = k mod n, p = 1 and g = (1, .. 1) at the start, all learned; k is
    the number of the block      AltUp, Baykal et al. 2023, arXiv:2301.13310

    The block k reads the stream a. Its output corrects all streams, by the
    difference to what was predicted for a. Copies enter and their sum leaves, as in Recycled-AltUp.
    """

    enter: Any = Copies
    leave: Any = Sum

    def __init__(self, index: int, *, streams: StreamCount) -> None:
        super().__init__()
        self.active = index % streams
        self.predict_weights = nn.Parameter(torch.eye(streams))
        self.correct_weights = nn.Parameter(torch.ones(streams))

    def read(self, streams: Streams) -> Stream:
        """X_a"""
        return streams[..., self.active, :]

    def write(self, streams: Streams, u: Stream) -> Streams:
        """X_i = P_i + g_i (u - P_a)"""
        z, y = wide(streams), wide(u)
        with exact(z.device.type):
            predicted = self.predicted(z)
            innovation = y - predicted[..., self.active, :]
            corrected = predicted + self.gains(y).unsqueeze(-1) * innovation.unsqueeze(-2)
        return in_one_layout(corrected.to(streams.dtype))

    def predicted(self, z: Tensor) -> Tensor:
        return torch.einsum("ij,...jd->...id", self.predict_weights, z)

    def gains(self, y: Tensor) -> Tensor:
        return self.correct_weights


def length(x: Tensor, floor: float = 0.0) -> Tensor:
    """sqrt(max(mean(x**2), floor)), over features"""
    return x.square().mean(-1, keepdim=True).clamp(min=floor).sqrt()


class Projections(nn.Module):
    """X_1 = x0; X_i = W_i x0, with the rms of x0, for the others"""

    def __init__(self, width: int, streams: int) -> None:
        super().__init__()
        linears = (Einsum(width, width, bias=False) for _ in range(streams - 1))
        self.projections = nn.ModuleList(linears)

    def projected(self, first: Stream, others: Iterable[Stream]) -> list[Tensor]:
        """The first stream, and W_i of each other, with the rms of the first."""
        x, pairs = wide(first), zip(self.projections, others, strict=True)
        made = [wide(projection(other)) for projection, other in pairs]
        return [x, *(y * (length(x) / length(y, FLOOR)) for y in made)]

    def forward(self, x0: Stream, *_: Any) -> Streams:
        copies = [x0] * len(self.projections)
        return torch.stack(self.projected(x0, copies), -2).to(x0.dtype)


class MeanOfProjections(Projections):
    """final(mean of X_1 and the other W_i X_i, with the rms of X_1)"""

    def __init__(self, width: int, streams: int, final: Layer) -> None:
        super().__init__(width, streams)
        self.norm = final

    def forward(self, streams: Streams) -> Stream:
        first, *rest = streams.unbind(-2)
        return self.norm(torch.stack(self.projected(first, rest)).mean(0).to(first.dtype))


@CONNECTIONS("routed_altup")
class RoutedAltUp(AltUp):
    """P = (1 + W_p m(X_1)) X, g = 1 + W_g m(u), m(x) = tanh(W_m rmsnorm(x) / d), a = 1      AltUp
    of Gemma 3n, 2025; code huggingface/transformers, modeling_gemma3n.py

    The block reads what is predicted for the first stream.
    """

    enter, leave = Projections, MeanOfProjections

    def __init__(self, width: int, *, streams: StreamCount) -> None:
        nn.Module.__init__(self)
        self.active, self.streams, self.width = 0, streams, width
        self.norm = RMSNorm(width)
        self.router = Einsum(width, streams, bias=False)
        self.predict_change = Einsum(streams, streams**2, bias=False)
        self.predict_change.std = 1e-4
        self.correct_change = Einsum(streams, streams, bias=False)

    def read(self, streams: Streams) -> Stream:
        """P_1"""
        z = wide(streams)
        with exact(z.device.type):
            return self.predicted(z)[..., 0, :].to(streams.dtype)

    def predicted(self, z: Tensor) -> Tensor:
        weights = self.predict_change(self.modalities(z[..., 0, :]))
        matrix = weights.unflatten(-1, (self.streams, self.streams))
        return z + torch.einsum("...ij,...jd->...id", matrix, z)

    def gains(self, y: Tensor) -> Tensor:
        return 1 + self.correct_change(self.modalities(y))

    def modalities(self, x: Tensor) -> Tensor:
        return torch.tanh(self.router(self.norm(x) / self.width))
