"""A matrix inside a norm."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.norms.parts.analytic import needs_formula


class Matrix(nn.Linear):
    """W x, in the dtype of x, also under autocast

    The init of a model draws W, as it draws the weights of a sub-layer, and the optimizer takes W
    for one of them. Before that, and in a norm outside of a model, W is zero.
    """

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows, bias=False)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch rows"]:
        weight = self.weight.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            if needs_formula():
                return F.linear(x, weight)
            y: Tensor = _Product.apply(x, weight)  # type: ignore[no-untyped-call]
            return y


class _Product(torch.autograd.Function):
    """F.linear, whose gradient autocast does not round either"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            tokens, grads = (t.reshape(-1, t.shape[-1]) for t in (x, grad))
            return grad @ weight, grads.mT @ tokens
