"""What a gradient that is written out owes: second derivatives, and no rounding by autocast."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[[Any, Tensor], Any]


def by_autograd(
    formula: Callable[..., Tensor], inputs: tuple[Tensor | None, ...], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of formula(*inputs), made so that they can be differentiated again: for
    `backward` to return where torch.is_grad_enabled(), which is under create_graph.
    """
    # Views: where one input was computed from another, its gradient must not flow on into that.
    views = [None if t is None else t.view_as(t) for t in inputs]
    wanted = [t for t in views if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(formula(*views), wanted, grad, create_graph=True))
    return [next(found) if t is not None and t.requires_grad else None for t in views]


def never_autocast(backward: Backward) -> Backward:
    """Autocast would run the matrix products of a backward in bfloat16 if called inside of it."""

    @wraps(backward)
    def guarded(ctx: Any, grad: Tensor) -> Any:
        with torch.autocast(grad.device.type, enabled=False):
            return backward(ctx, grad)

    return guarded
