"""Attention whose logits are bounded. The kernels of `scaled_dot_product_attention` know no cap."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

SMALLEST_HEAD = 16  # dimensions of a head, the fewest that flex attention's kernels take


def capped_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cap: float,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """softmax(cap * tanh(scale * q k^T / cap)) v, with the cap before the mask      Gemma 2

    The arguments are those of `scaled_dot_product_attention`, and the cap. Causal attention without
    dropout, which is what training needs, is one kernel on a GPU. Elsewhere its gradient is written
    out, since flex attention has no backward pass on a CPU.
    """
    if is_causal and not dropout_p:
        return causal(q)(q, k, v, cap, scale)
    logits = q @ k.transpose(-1, -2) * scale
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logits = cap * torch.tanh(logits.to(dtype) / cap)
    if is_causal:
        attn_mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, float("-inf"))
    return F.dropout(logits.softmax(-1).to(v.dtype), dropout_p) @ v


def causal(q: Tensor) -> Callable[..., Tensor]:
    """Returns the function (q, k, v, cap, scale) that computes causal attention where q is."""
    takes = q.is_cuda and q.dtype != torch.float64 and q.shape[-1] >= SMALLEST_HEAD
    # Flex attention fails under a mode that looks at operators, as one that counts FLOPs does.
    if not takes or is_in_torch_dispatch_mode():
        return written_out
    # Its import brings torch._dynamo, which takes as long as torch.
    from transformer_norms.model.flex import fused

    return fused


def written_out(q: Tensor, k: Tensor, v: Tensor, cap: float, scale: float) -> Tensor:
    """Causal capped attention with its gradient written out."""
    kind = q.device.type
    if torch.is_autocast_enabled(kind):  # the backward pass is outside of it
        q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
    heads = (x.flatten(0, 1) for x in (q, k, v))
    attended: Tensor = _Causal.apply(*heads, cap, scale)  # type: ignore[no-untyped-call]
    return attended.view(v.shape)


class _Causal(torch.autograd.Function):
    """softmax(cap * tanh(scale * q k^T / cap)) v, by heads [batch * heads, time, head_dim].

    Two matrices [time, time] are kept, tanh's values and the weights, where autograd keeps four.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cap: float, scale: float) -> Tensor:
        bounded = torch.bmm(q, k.mT)
        bounded = bounded.to(torch.promote_types(q.dtype, torch.float32))
        bounded.mul_(scale / cap).tanh_()
        future = bounded.new_full(bounded.shape[1:], float("-inf")).triu_(1)
        weights = torch.add(future, bounded, alpha=cap).softmax(-1)
        ctx.save_for_backward(q, k, v, bounded, weights)
        ctx.scale = scale
        return torch.bmm(weights.to(v.dtype), v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, bounded, weights = ctx.saved_tensors
        by_weight = torch.bmm(grad, v.mT).to(weights.dtype)
        by_logit = torch._softmax_backward_data(by_weight, weights, -1, weights.dtype)
        # d(cap * tanh(s / cap)) / ds = 1 - tanh(s / cap)^2
        by_score = torch.ops.aten.tanh_backward(by_logit, bounded).to(q.dtype)
        by_q = torch.bmm(by_score, k).mul_(ctx.scale)
        by_k = torch.bmm(by_score.mT, q).mul_(ctx.scale)
        return by_q, by_k, torch.bmm(weights.to(v.dtype).mT, grad), None, None
