"""Where a gradient is written out: whether it can be, and how autograd differentiates it."""

from collections.abc import Callable

import torch
from torch import Tensor


def needs_formula() -> bool:
    """Whether no autograd Function can be called here: under a compiler, or torch.func.vmap."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def by_autograd(
    formula: Callable[..., Tensor], inputs: tuple[Tensor | None, ...], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of formula(*inputs), with their own graph: for a `backward` to return where
    torch.is_grad_enabled(), which is under create_graph.
    """
    # Views: where one input was computed from another, its gradient must not flow on into that.
    views = [None if t is None else t.view_as(t) for t in inputs]
    wanted = [t for t in views if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(formula(*views), wanted, grad, create_graph=True))
    return [next(found) if t is not None and t.requires_grad else None for t in views]
