"""x divided by its own length: rmsnorm and all that is made of it, l2norm and scalenorm."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformer_norms.norms.parts.analytic import by_autograd, needs_formula


@dataclass(frozen=True)
class Length:
    """sqrt(max(sum(z**2), floor) / count + eps), z being the first `first` coordinates of x"""

    first: int
    count: int
    floor: float
    eps: float

    def inverse(self, square: Tensor) -> Tensor:
        """1 / length, from the sum of squares."""
        square = square.clamp(min=self.floor) if self.floor else square
        square = square if self.count == 1 else square / self.count
        return (square + self.eps if self.eps else square).rsqrt()


def root_mean_square(first: int, eps: float) -> Length:
    """sqrt(mean(z**2) + eps)"""
    return Length(first, first, floor=0, eps=eps)


def euclidean(width: int, eps: float) -> Length:
    """max(norm(x), eps)"""
    return Length(width, 1, floor=eps**2, eps=0)


def divide(x: Tensor, gain: Tensor | None, length: Length) -> Tensor:
    """gain * x / length(x). A gain has one number, or as many as x is wide, or is absent."""
    if needs_formula():  # a compiler fuses it and its gradient by itself
        return _formula(length, x, gain)
    return _Divide.apply(x, gain, length)  # type: ignore[no-untyped-call]


def _formula(length: Length, x: Tensor, gain: Tensor | None) -> Tensor:
    square = x[..., : length.first].square().sum(-1, keepdim=True)
    y = x * length.inverse(square)
    return y if gain is None else y * gain


class _Divide(torch.autograd.Function):
    """The formula with its gradient written out: a third of the passes over memory that autograd
    makes of it, with the same result to rounding.

    With r = length(x), h = gain * grad, and sums over the coordinates of a token:
        dx = h / r - z * sum(h * x) / (count * r^3)         dgain = sum of grad * x / r over tokens
    where z is x in the first coordinates and 0 elsewhere, and all 0 where the length is clamped.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None, length: Length) -> Tensor:
        square = torch.linalg.vector_norm(_first(x, length), dim=-1, keepdim=True).square_()
        inverse = length.inverse(square)
        free = square >= length.floor if length.floor else None  # not clamped
        ctx.save_for_backward(x, gain, inverse, free)
        ctx.length = length
        if gain is None or gain.numel() == 1:
            return x * (inverse if gain is None else inverse * gain)
        return (x * inverse).mul_(gain)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, gain, inverse, free = ctx.saved_tensors
        length, width = ctx.length, x.shape[-1]
        if torch.is_grad_enabled():
            dx, dgain = by_autograd(partial(_formula, length), (x, gain), grad)
            return dx, dgain, None
        product = grad * x  # whose memory dx takes over: fresh memory costs more than arithmetic
        if gain is None or gain.numel() == 1:
            along, scale, dgain = product.sum(-1, keepdim=True), inverse, None
            if gain is not None:
                dgain = (along * inverse).sum().view_as(gain)
                along, scale = along * gain, inverse * gain
            dx = torch.mul(grad, scale, out=product)
        else:
            tokens = product.reshape(-1, width)
            with exact(x.device.type):
                dgain = inverse.reshape(-1) @ tokens
                along = (tokens @ gain).view_as(inverse)
            dx = torch.mul(grad, gain, out=product).mul_(inverse)
        slope = along.mul_(inverse).mul_(inverse).mul_(inverse)
        slope = slope if free is None else slope * free
        _first(dx, length).addcmul_(_first(x, length), slope, value=-1 / length.count)
        return dx, dgain, None


def _first(x: Tensor, length: Length) -> Tensor:
    return x if length.first == x.shape[-1] else x[..., : length.first]


def exact(device: str) -> AbstractContextManager[Any]:
    """Autocast would take sums of products for matrix products."""
    autocast = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if autocast else nullcontext()
