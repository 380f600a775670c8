from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from transformer_norms.kinds import Epsilon
from transformer_norms.norms import NORMS


@NORMS("rmsnorm")
class RMSNorm(nn.Module):
    """gain * x / sqrt(mean(x^2) + eps)      Zhang & Sennrich 2019, arXiv:1910.07467"""

    def __init__(self, width: int, *, eps: Epsilon) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = x.to(self.gain.dtype)  # float32 under autocast, float64 in a float64 model
        return _RMSNorm.apply(y, self.gain, self.eps).to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    """The formula with its gradient written out: a third of the passes over memory that autograd
    makes of it, with the same result to rounding.

    With n = x / r and r = sqrt(mean(x^2) + eps):
        dx = (g * gain - n * mean(g * gain * n)) / r        dgain = sum of g * n over tokens
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        width = x.shape[-1]
        inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = inverse.square_().div_(width).add_(eps).rsqrt_()
        ctx.save_for_backward(x, gain, inverse)
        return (x * inverse).mul_(gain)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain, inverse = ctx.saved_tensors
        width = x.shape[-1]
        normed = x * inverse
        product = grad * normed
        dgain = product.reshape(-1, width).sum(0)
        along = torch.mv(product.reshape(-1, width), gain).div_(width).view(inverse.shape)
        dx = (grad * gain).sub_(normed.mul_(along)).mul_(inverse)
        return dx, dgain, None
