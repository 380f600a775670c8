"""A small input of each block in addition to the stream: a row of a table, and a projection of the
embedded tokens. It gates the output of the block before that is written to a stream.

The streams X are followed by the inputs e_1 .. e_N of the N blocks. Each block takes the first of
them and puts it last, so that all blocks are one function of what they are given.

Gemma 3n, 2025, and Gemma 4, 2026 (Per-Layer Embeddings); code huggingface/transformers 5.23,
modeling_gemma3n.py and modeling_gemma4.py.
"""

import math
from collections.abc import Callable
from typing import Annotated

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.kinds import Positive
from transformer_norms.model.coefficient import SCALAR
from transformer_norms.model.connections import (
    CONNECTIONS,
    Connection,
    Leave,
    Norm,
    Scale,
    Stream,
    StreamCount,
)
from transformer_norms.model.connections.altup import MeanOfProjections, Projections, RoutedAltUp
from transformer_norms.model.initialization import Einsum, Embedding

Tokens = Int[Tensor, "batch time"]
Input = Float[Tensor, "batch time inputs"]
Followed = tuple[Tensor, ...]  # the streams, and the inputs of the blocks
InputWidth = Annotated[Positive, Field(le=65536)]


class WithInputs(nn.Module):
    """X = x0; e_l = (norm(W_l x0 / sqrt(d)) + sqrt(p) * E_l[tokens]) / sqrt(2), of p numbers, for
    each block l: one norm for all"""

    def __init__(self, width: int, count: int, vocab_size: int, norm: Norm, inputs: int) -> None:
        super().__init__()
        self.input_embedding = Embedding(vocab_size, count * inputs)
        self.input_embedding.std = Einsum.std
        self.input_projection = Einsum(width, count * inputs, bias=False)
        self.norm, self.width, self.inputs = norm(inputs), width, inputs

    def forward(self, x0: Stream, tokens: Tokens) -> Followed:
        return x0, *self.inputs_of(x0, tokens)

    def inputs_of(self, x0: Stream, tokens: Tokens) -> tuple[Input, ...]:
        projected = self.input_projection(x0) / math.sqrt(self.width)
        projected = self.norm(projected.unflatten(-1, (-1, self.inputs)))
        rows = self.input_embedding(tokens).view_as(projected).to(projected.dtype)
        return ((projected + math.sqrt(self.inputs) * rows) / math.sqrt(2)).unbind(-2)


class StreamAlone(Leave):
    """final(x)"""

    def forward(self, streams: Followed) -> Stream:
        return self.norm(streams[0])


class GatedInput(nn.Module):
    """norm(W_o (activation(W_g x) * e))"""

    def __init__(
        self, width: int, inputs: int, activation: Callable[[Tensor], Tensor], norm: Norm
    ) -> None:
        super().__init__()
        self.gate = Einsum(width, inputs, bias=False)
        self.output = Einsum(inputs, width, bias=False)
        self.activation, self.norm = activation, norm(width)

    def forward(self, x: Stream, e: Input) -> Stream:
        return self.norm(self.output(self.activation(self.gate(x)) * e))


@CONNECTIONS("layer_inputs")
class LayerInputs(Connection):
    """x, and e_1 .. e_N of p = inputs numbers; s is learned from `scale` on      Gemma 4, 2026;
    code huggingface/transformers, modeling_gemma4.py
    """

    enter, leave = WithInputs, StreamAlone

    def __init__(
        self,
        width: int,
        norm: Norm,
        activation: Callable[[Tensor], Tensor],
        *,
        inputs: InputWidth,
        scale: Scale,
    ) -> None:
        super().__init__()
        self.gated = GatedInput(width, inputs, activation, norm)
        self.scale = nn.Parameter(torch.full(SCALAR, float(scale)))

    def read(self, streams: Followed) -> Stream:
        """x"""
        return streams[0]

    def write(self, streams: Followed, u: Stream) -> Followed:
        """x = s * (u + norm(W_o (activation(W_g u) * e_l)))"""
        _, e, *others = streams
        return self.scale.to(u.dtype) * (u + self.gated(u, e)), *others, e


class ProjectionsWithInputs(WithInputs):
    """X_1 = x0; X_i = W_i x0, with the rms of x0, for the others; e_l = (norm(W_l x0 / sqrt(d)) +
    sqrt(p) * E_l[tokens]) / sqrt(2), of p numbers, for each block l: one norm for all"""

    def __init__(
        self, width: int, streams: int, count: int, vocab_size: int, norm: Norm, inputs: int
    ) -> None:
        super().__init__(width, count, vocab_size, norm, inputs)
        self.streams = Projections(width, streams)

    def forward(self, x0: Stream, tokens: Tokens) -> Followed:
        return self.streams(x0), *self.inputs_of(x0, tokens)


class MeanOfProjectionsAlone(MeanOfProjections):
    """final(mean of X_1 and the other W_i X_i, with the rms of X_1)"""

    def forward(self, streams: Followed) -> Stream:  # type: ignore[override]
        return super().forward(streams[0])


@CONNECTIONS("routed_altup_inputs")
class RoutedAltUpInputs(RoutedAltUp):
    """P = (1 + W_p m(X_1)) X, m(x) = tanh(W_m rmsnorm(x) / d), a = 1, g = 1 + W_g m(u), and e_1 ..
    e_N of p = inputs numbers; s is learned, for each feature, from 1 on      Gemma 3n, 2025; code
    huggingface/transformers, modeling_gemma3n.py
    """

    enter, leave = ProjectionsWithInputs, MeanOfProjectionsAlone  # type: ignore[assignment]

    def __init__(
        self,
        width: int,
        norm: Norm,
        activation: Callable[[Tensor], Tensor],
        *,
        streams: StreamCount,
        inputs: InputWidth,
    ) -> None:
        super().__init__(width, streams=streams)
        self.gated = GatedInput(width, inputs, activation, norm)
        self.scale = nn.Parameter(torch.ones(width))

    def read(self, streams: Followed) -> Stream:  # type: ignore[override]
        """P_1"""
        return super().read(streams[0])

    def write(self, streams: Followed, u: Stream) -> Followed:  # type: ignore[override]
        """X_i = P_i + g_i (u - P_1); then X_i = X_i + norm(W_o (activation(W_g (s * X_1)) * e_l))
        for all but the first"""
        before, e, *others = streams
        first, *rest = super().write(before, u).unbind(-2)
        gated = self.gated(self.scale.to(first.dtype) * first, e)
        return torch.stack([first, *(x + gated for x in rest)], -2), *others, e
