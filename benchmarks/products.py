"""The matrix products of one step, and nothing else of it: no step can take less."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm)
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward
# Products that this file cannot take apart must not go missing from the limit.
UNKNOWN = ("mm", "linear", "matmul", "conv", "attention", "addmv")


def recorded(step: Callable[[], Any]) -> "Products":
    """The products that `step` makes, uncompiled: what is first called under a dispatch mode would
    stay eager for good."""
    with torch.compiler.set_stance("force_eager"), Products() as products:
        step()
    return products


class Products(TorchDispatchMode):
    """Keeps the operands and result of every product, as the step laid them out in memory; `replay`
    computes them again in place.

    The fused attention is counted as the products in its definition: two forward, four backward,
    over all pairs of positions. The fused kernel leaves out part of the pairs that the mask hides
    and computes one of the products twice. A vector's products (dot, mv, mm of one row) are left
    out: in some norms' gradients they are the sums that a fused norm has inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []
        self.counts: Counter[str] = Counter()
        self.flop = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out, kind = func(*args, **(kwargs or {})), func.overloadpacket
        if kind == aten.mm and len(args[0]) == 1:
            return out
        if kind in PRODUCTS:
            self._keep(kind, args, kwargs or {}, out.detach())
        elif kind == ATTENTION:
            self._attention(*args[:3])
        elif kind == ATTENTION_BACKWARD:
            self._attention_backward(*args[:4])
        else:
            name = kind.__name__
            assert not set(name.split("_")) & set(UNKNOWN), f"{name} holds products not recorded"
        return out

    def _keep(
        self, kind: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Tensor
    ) -> None:
        self.calls.append(lambda: kind(*args, **kwargs, out=out))
        left = args[1] if kind in (aten.addmm, aten.baddbmm) else args[0]
        self.flop += 2 * out.numel() * left.shape[-1]
        self.counts[kind.__name__] += 1

    def _attention(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        q, k, v = _matrices(q, k, v)
        weights = self._bmm(q, k.mT)
        self._bmm(weights, v)

    def _attention_backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
        grad, q, k, v = _matrices(grad, q, k, v)
        weights = torch.bmm(q, k.mT)  # the forward's, not counted again
        self._bmm(weights.mT, grad)  # dv
        change = self._bmm(grad, v.mT)
        self._bmm(change, k)  # dq
        self._bmm(change.mT, q)  # dk

    def _bmm(self, left: Tensor, right: Tensor) -> Tensor:
        out = torch.bmm(left, right)
        self._keep(aten.bmm, (left, right), {}, out)
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for call in self.calls:
            call()


def _matrices(*heads: Tensor) -> list[Tensor]:
    """[batch, heads, time, head_dim] -> [batch * heads, time, head_dim], each in one piece"""
    return [tensor.detach().flatten(0, 1).contiguous() for tensor in heads]
