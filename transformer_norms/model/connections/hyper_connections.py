"""n streams, which a matrix of each sub-layer mixes: hyper-connections and mHC."""

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon, Positive
from transformer_norms.model.coefficient import SCALAR
from transformer_norms.model.connections import (
    CONNECTIONS,
    Connection,
    Leave,
    Scale,
    Stream,
    StreamCount,
    Streams,
    in_one_layout,
)
from transformer_norms.model.initialization import Linear, ZeroLinear
from transformer_norms.norms import Layer
from transformer_norms.norms.layernorm import LayerNorm
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.division import exact
from transformer_norms.norms.rmsnorm import RMSNorm

Iterations = Annotated[Positive, Field(le=1000)]


class Copies:
    """X_1 = .. = X_n = x0"""

    def __init__(self, streams: int) -> None:
        self.streams = streams

    def __call__(self, x0: Stream, *_: Any) -> Streams:
        return x0.unsqueeze(-2).expand(-1, -1, self.streams, -1)


class Sum(Leave):
    """final(sum_i X_i)"""

    def forward(self, streams: Streams) -> Stream:
        return self.norm(wide(streams).sum(-2).to(streams.dtype))


class Mixing(Connection):
    """n streams, each with its weights: `reading` gives a [.. n], `mixing` A [.. n n] and `writing`
    b [.. n], from the streams"""

    enter: Any = Copies
    leave: Any = Sum
    reading: Callable[[Tensor], Tensor]
    mixing: Callable[[Tensor], Tensor]
    writing: Callable[[Tensor], Tensor]

    def read(self, streams: Streams) -> Stream:
        """sum_i a_i X_i"""
        z = wide(streams)
        with exact(z.device.type):
            return torch.einsum("...i,...id->...d", self.reading(z), z).to(streams.dtype)

    def write(self, streams: Streams, u: Stream) -> Streams:
        """X_j = sum_i A_ij X_i + b_j u"""
        z = wide(streams)
        with exact(z.device.type):
            mixed = torch.einsum("...ij,...id->...jd", self.mixing(z), z)
            written = self.writing(z).unsqueeze(-1) * wide(u).unsqueeze(-2)
        return in_one_layout((mixed + written).to(streams.dtype))


@CONNECTIONS("hyper_connection")
class HyperConnection(Mixing):
    """a = e_(k mod n), A = 1, b = (1, .. 1) at the start, all learned; k is the number of the
    sub-layer      Hyper-Connections, Zhu et al. 2024, arXiv:2409.19606, static

    While all weights are what they start as, every stream is the
    stream of the residual block.
    """

    def __init__(self, width: int, index: int, *, streams: StreamCount) -> None:
        super().__init__()
        self.streams = streams
        self.read_weights = nn.Parameter(torch.eye(streams)[index % streams])
        self.mix_weights = nn.Parameter(torch.eye(streams))
        self.write_weights = nn.Parameter(torch.ones(streams))

    def reading(self, z: Tensor) -> Tensor:
        return self.read_weights

    def mixing(self, z: Tensor) -> Tensor:
        return self.mix_weights

    def writing(self, z: Tensor) -> Tensor:
        return self.write_weights


@CONNECTIONS("dynamic_hyper_connection")
class DynamicHyperConnection(HyperConnection):
    """a = e_(k mod n), A = 1, b = (1, .. 1) at the start, all learned, each + s * tanh(norm(X) W)
    with W = 0 at the start: one s for a and A, one for b; k is the sub-layer's number      Zhu et
    al. 2024, arXiv:2409.19606, dynamic

    The norm is a LayerNorm of each stream, with gain and bias.
    """

    def __init__(self, width: int, index: int, *, streams: StreamCount, scale: Scale) -> None:
        super().__init__(width, index, streams=streams)
        self.norm = LayerNorm(width)
        self.read_change = ZeroLinear(width, 1, bias=False)
        self.mix_change = ZeroLinear(width, streams, bias=False)
        self.write_change = ZeroLinear(width, 1, bias=False)
        self.read_scale = nn.Parameter(torch.full(SCALAR, scale))
        self.write_scale = nn.Parameter(torch.full(SCALAR, scale))

    def reading(self, z: Tensor) -> Tensor:
        change = self.read_change(self.norm(z)).squeeze(-1)
        return self.read_weights + self.read_scale * torch.tanh(change)

    def mixing(self, z: Tensor) -> Tensor:
        return self.mix_weights + self.read_scale * torch.tanh(self.mix_change(self.norm(z)))

    def writing(self, z: Tensor) -> Tensor:
        change = self.write_change(self.norm(z)).squeeze(-1)
        return self.write_weights + self.write_scale * torch.tanh(change)


class StreamGate(nn.Module):
    """scale * W z + bias, where z are the numbers of a token's streams, normed by their rms"""

    def __init__(self, width: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.projection = Linear(width, outputs, bias=False)
        self.scale = nn.Parameter(torch.full(SCALAR, scale))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * self.projection(z) + self.bias


class GatedSum(nn.Module):
    """final(sum_i a_i X_i), a = sigmoid(gate(X)) + eps"""

    def __init__(self, width: int, final: Layer, streams: int, scale: float, eps: float) -> None:
        super().__init__()
        self.rms = RMSNorm(streams * width, eps=eps, gain="none")
        self.gate, self.norm, self.eps = StreamGate(streams * width, streams, scale), final, eps

    def forward(self, streams: Streams) -> Stream:
        z = wide(streams)
        with exact(z.device.type):
            weights = torch.sigmoid(self.gate(self.rms(z.flatten(-2)))) + self.eps
            summed = torch.einsum("...i,...id->...d", weights, z)
        return self.norm(summed.to(streams.dtype))


@CONNECTIONS("manifold_hyper_connection")
class ManifoldHyperConnection(Mixing):
    """a = sigmoid(gate(X)) + eps, b = 2 * sigmoid(gate(X)), A = sinkhorn(exp(gate(X))), gate(X) =
    scale * W rms(X) + bias, rms over all streams of a token      mHC, Xie et al. 2025,
    arXiv:2512.24880

    The columns of A sum to 1, and its rows nearly, so that the streams together neither grow nor
    shrink. As DeepSeek-V4 has it, the streams leave as a sum with weights such as a.
    """

    leave = GatedSum

    def __init__(
        self,
        width: int,
        *,
        streams: StreamCount,
        iterations: Iterations,
        scale: Scale,
        eps: Epsilon,
    ) -> None:
        super().__init__()
        self.streams, self.iterations, self.eps = streams, iterations, eps
        self.rms = RMSNorm(streams * width, eps=eps, gain="none")
        self.read_gate = StreamGate(streams * width, streams, scale)
        self.mix_gate = StreamGate(streams * width, streams**2, scale)
        self.write_gate = StreamGate(streams * width, streams, scale)

    def reading(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.read_gate(self.rms(z.flatten(-2)))) + self.eps

    def mixing(self, z: Tensor) -> Tensor:
        """Returns A. Its rows are divided by their sums, then its columns, and so on."""
        logits = self.mix_gate(self.rms(z.flatten(-2)))
        matrix = logits.unflatten(-1, (self.streams, self.streams)).softmax(-1) + self.eps
        matrix = matrix / (matrix.sum(-2, keepdim=True) + self.eps)
        for _ in range(self.iterations - 1):
            matrix = matrix / (matrix.sum(-1, keepdim=True) + self.eps)
            matrix = matrix / (matrix.sum(-2, keepdim=True) + self.eps)
        return matrix

    def writing(self, z: Tensor) -> Tensor:
        return 2 * torch.sigmoid(self.write_gate(self.rms(z.flatten(-2))))
