from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.kinds import Flag
from transformer_norms.norms import NORMS, Place
from transformer_norms.norms.parts.affine import Starts, start_at, wide
from transformer_norms.norms.parts.analytic import by_autograd, needs_formula


@NORMS("dyt")
class DyT(nn.Module):
    """gain * tanh(alpha * x) + bias      Zhu et al. 2025, arXiv:2503.10622

    alpha is one number; no coordinate knows of another. The paper's language models have no bias.
    """

    bias: nn.Parameter | None

    def __init__(
        self, width: int, *, alpha_init: Starts = 1.0, bias: Flag = True, place: Place = "attention"
    ) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.register_parameter("bias", nn.Parameter(torch.zeros(width)) if bias else None)
        self.alpha = nn.Parameter(torch.full((1,), start_at(alpha_init, place)))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        bias = torch.zeros_like(self.gain) if self.bias is None else self.bias
        own = (p.to(y.dtype) for p in (self.gain, bias, self.alpha))
        function = _formula if needs_formula() else _DyT.apply
        return function(y, *own).to(x.dtype)


def _formula(x: Tensor, gain: Tensor, bias: Tensor, alpha: Tensor) -> Tensor:
    # tanh(u) is 2 sigmoid(2u) - 1, which compiled for a processor takes half the time.
    return torch.addcmul(bias, gain, 2 * torch.sigmoid(2 * alpha * x) - 1)


class _DyT(torch.autograd.Function):
    """With its gradient written out: half of autograd's time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, alpha: Tensor) -> Tensor:
        bent = (alpha * x).tanh_()
        ctx.save_for_backward(x, gain, bias, alpha, bent)
        return torch.addcmul(bias, gain, bent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, gain, bias, alpha, bent = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(by_autograd(_formula, (x, gain, bias, alpha), grad))
        product = grad * bent
        dbias, dgain = (t.reshape(-1, len(gain)).sum(0) for t in (grad, product))
        slope = torch.addcmul(grad, product, bent, value=-1, out=product)  # tanh' is 1 - tanh^2
        slope.mul_(gain)
        dalpha = torch.dot(slope.reshape(-1), x.reshape(-1)).view_as(alpha)
        return slope.mul_(alpha), dgain, dbias, dalpha
