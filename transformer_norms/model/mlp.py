"""The position-wise network: W_down mid(activation(W_up x)), gated or not."""

from collections.abc import Callable, Collection
from math import pi, sqrt
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from transformer_norms.model.initialization import Linear
from transformer_norms.names import Registry
from transformer_norms.norms import Layer, nothing
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.analytic import needs_formula

MLPS = Registry("mlp")
ACTIVATIONS = Registry("activation")
Stream = Float[Tensor, "batch time width"]


@ACTIVATIONS("gelu")
def gelu(x: Tensor) -> Tensor:
    """x Phi(x)      Hendrycks & Gimpel 2016, arXiv:1606.08415"""
    return F.gelu(x)


@ACTIVATIONS("gelu_tanh")
def gelu_tanh(x: Tensor) -> Tensor:
    """GPT-2's gelu: x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2"""
    if torch.compiler.is_compiling():  # (1 + tanh(u)) / 2 is sigmoid(2u), for a processor cheaper
        return x * torch.sigmoid(sqrt(8 / pi) * (x + 0.044715 * x * x * x))
    return F.gelu(x, approximate="tanh")


@ACTIVATIONS("relu")
def relu(x: Tensor) -> Tensor:
    """max(x, 0)"""
    return F.relu(x)


@ACTIVATIONS("relu2")
def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2      So et al. 2021 (Primer), arXiv:2109.08668"""
    return F.relu(x).square() if needs_formula() else _ReLU2.apply(x)  # type: ignore[no-untyped-call]


class _ReLU2(torch.autograd.Function):
    """With its gradient 2 max(x, 0) written out: two passes over memory fewer than autograd's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (grad * positive).mul_(2)


@ACTIVATIONS("silu")
def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)"""
    return F.silu(x)


class SparseActivation:
    """activation(max(z - mean(z) - q std(z), 0)), q the quantile `share` of the normal distribution

    Of the hidden units of a token, so large a share falls below the threshold if they are normally
    distributed. std divides by the number of units. Gaussian top-k of Gemma 3n, 2025, code
    huggingface/transformers, modeling_gemma3n.py; statistical top-k of Spark Transformer, You et
    al. 2025, arXiv:2506.06644.
    """

    def __init__(self, activation: Callable[[Tensor], Tensor], share: float) -> None:
        self.activation, self.quantile = activation, NormalDist().inv_cdf(share)

    def __call__(self, z: Tensor) -> Tensor:
        exact = wide(z)
        threshold = exact.mean(-1, keepdim=True)
        threshold = threshold + self.quantile * exact.std(-1, correction=0, keepdim=True)
        return self.activation(F.relu(exact - threshold).to(z.dtype))


@MLPS("plain")
class MLP(nn.Module):
    """W_down mid(activation(scale * norm(W_up x)))

    The scale of each hidden unit is 1 but for nGPT, and its norm nothing but for SimpleNorm.
    `activation` is one of ACTIVATIONS, or a SparseActivation of one.
    """

    gated = False

    def __init__(
        self,
        *,
        width: int,
        mlp_width: int,
        bias: Collection[str],
        activation: Callable[[Tensor], Tensor],
        mid: Layer = nothing,
        up_norm: Layer = nothing,
        up_scale: Layer = nothing,
    ) -> None:
        super().__init__()
        self.up = Linear(width, mlp_width, bias="up" in bias)
        self.down = Linear(mlp_width, width, bias="down" in bias)
        self.activation, self.mid = activation, mid
        self.up_norm, self.up_scale = up_norm, up_scale

    def forward(self, x: Stream, *context: Any) -> Stream:
        return self.down(self.mid(self.activation(self.hidden(x))))

    def hidden(self, x: Stream) -> Float[Tensor, "batch time mlp_width"]:
        return self.up_scale(self.up_norm(self.up(x)))


@MLPS("gated")
class GatedMLP(MLP):
    """W_down mid(activation(scale * norm(W_gate x)) * scale * norm(W_up x))

    Shazeer 2020, arXiv:2002.05202
    """

    gated = True

    def __init__(
        self,
        *,
        width: int,
        mlp_width: int,
        bias: Collection[str],
        gate_norm: Layer = nothing,
        gate_scale: Layer = nothing,
        **rest: Any,
    ) -> None:
        super().__init__(width=width, mlp_width=mlp_width, bias=bias, **rest)
        self.gate = Linear(width, mlp_width, bias="gate" in bias)
        self.gate_norm, self.gate_scale = gate_norm, gate_scale

    def forward(self, x: Stream, *context: Any) -> Stream:
        gate = self.activation(self.gate_scale(self.gate_norm(self.gate(x))))
        return self.down(self.mid(gate * self.hidden(x)))
