"""Attention over a pattern of tokens: what each query sees, what its distances add to its logits,
and a cap on them. The kernels of `scaled_dot_product_attention` know neither windows nor caps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from transformer_norms.norms.parts.analytic import needs_formula

SMALLEST_HEAD = 16  # dimensions of a head, the fewest that flex attention's kernels take
Queries = Float[Tensor, "batch heads time head_dim"]
Keys = Float[Tensor, "batch heads known head_dim"]
Values = Float[Tensor, "batch heads known value_dim"]
Contexts = Float[Tensor, "batch heads time value_dim"]


@runtime_checkable
class PositionBias(Protocol):
    """A number for each head and pair of tokens, by their positions. It can be hashed."""

    def on(self, device: torch.device, dtype: torch.dtype) -> Callable[..., Tensor]:
        """Returns a function of (head, query, key): tensors of integers that broadcast."""


@dataclass(frozen=True)
class Pattern:
    """The keys that a query sees, and the bias that is added to its logits, after their cap.

    A query sees itself and what is before it: the last `window` tokens in all, or every one, of its
    own chunk, the positions from a multiple of `chunk` to the next, or of all.
    """

    window: int | None = None
    bias: PositionBias | None = None
    chunk: int | None = None

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Returns whether a query sees a key, by their positions."""
        seen = key <= query
        if self.chunk is not None:
            seen = seen & (query // self.chunk == key // self.chunk)
        return seen if self.window is None else seen & (query - key < self.window)

    def add_bias(self, seen: Tensor, at: Tensor, heads: int, like: Tensor) -> Tensor:
        """Returns what queries at the positions `at` have `seen`, [queries, known], as it is, or,
        with a bias, what is added to logits of the dtype of `like`: [heads, queries, known], -inf
        where nothing is seen."""
        if self.bias is None:
            return seen
        dtype = torch.promote_types(like.dtype, torch.float32)
        bias = self.bias.on(seen.device, dtype)
        head = torch.arange(heads, device=seen.device)[:, None, None]
        key = torch.arange(seen.shape[-1], device=seen.device)
        return bias(head, at[:, None], key).masked_fill(~seen, float("-inf")).to(like.dtype)


def _mask(
    pattern: Pattern, time: int, known: int, heads: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    at, key = torch.arange(known - time, known, device=device), torch.arange(known, device=device)
    like = torch.empty((), dtype=dtype, device=device)
    return pattern.add_bias(pattern.sees(at[:, None], key), at, heads, like)


_kept_mask = lru_cache(maxsize=8)(_mask)


def mask_of(pattern: Pattern, q: Queries, known: int) -> Tensor:
    """Returns the pattern for the last `time` of the `known` tokens. Steps of training share it."""
    # A graph has its own, and what is made under a mode or without autograd is of no use after it.
    lone = needs_formula() or is_in_torch_dispatch_mode() or torch.is_inference(q)
    make = _mask if lone or q.shape[2] == 1 else _kept_mask
    return make(pattern, q.shape[2], known, q.shape[1], q.dtype, q.device)


def pattern_attention(
    q: Queries,
    k: Keys,
    v: Values,
    pattern: Pattern,
    *,
    cap: float | None,
    scale: float,
    dropout: float,
    seen: Any = None,
) -> Contexts:
    """softmax(s + bias) v, s = scale * q k^T or cap * tanh(scale * q k^T / cap), over the keys that
    each of the queries sees. The queries are the last `time` of the `known` tokens. `seen` is what
    `Softmax.prepare` has made of the pattern."""
    time, fixed = q.shape[2], {"dropout_p": dropout, "scale": scale}
    window, chunk = pattern.window, pattern.chunk
    # No query sees a key before these; chunks begin where they did.
    if chunk is not None:
        k, v = (t[:, :, (t.shape[2] - time) // chunk * chunk :] for t in (k, v))
    elif window is not None:
        k, v = (t[:, :, -(time + window - 1) :] for t in (k, v))
    kernel, known = kernel_of(cap), k.shape[2]
    whole = all(size is None or known <= size for size in (window, chunk))
    plain = pattern.bias is None and whole
    other = not plain or cap is not None  # than what PyTorch's kernels compute
    if other and time == known and not dropout and has_one_kernel(q, v):
        # Its import brings torch._dynamo, which takes as long as torch.
        from transformer_norms.model.attentions.flex import fused

        return fused(q, k, v, cap, scale, pattern, seen)
    if plain and time in (1, known):
        return kernel(q, k, v, attn_mask=None, is_causal=time == known, **fixed)
    if chunk is None and window is not None and 2 * window < time == known:
        return in_chunks(partial(kernel, **fixed), q, k, v, pattern, window)
    mask = mask_of(pattern, q, known)
    return kernel(q, k, v, attn_mask=mask, is_causal=False, **fixed)


def kernel_of(cap: float | None) -> Callable[..., Tensor]:
    return plain_attention if cap is None else partial(capped_attention, cap=cap)


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, **how: Any
) -> Tensor:
    """softmax(scale * q k^T) v, in float32 under autocast on a CPU, where the backward pass of
    PyTorch's kernel takes up to six times as long in bf16."""
    if not (q.device.type == "cpu" and torch.is_autocast_enabled("cpu")):
        return F.scaled_dot_product_attention(q, k, v, attn_mask, **how)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.float()
    with torch.autocast("cpu", enabled=False):
        wide = q.float(), k.float(), v.float()
        attended = F.scaled_dot_product_attention(*wide, attn_mask, **how)
    return attended.to(torch.get_autocast_dtype("cpu"))


def in_chunks(
    kernel: Callable[..., Tensor], q: Queries, k: Keys, v: Values, pattern: Pattern, window: int
) -> Contexts:
    """Attention to the last `window` tokens, by chunks of as many queries. A chunk sees keys of its
    own and of the chunk before it, so time grows with `window` and not with the sequence."""
    batch, heads, time, _ = q.shape
    first = (t[:, :, :window] for t in (q, k, v))
    begin = kernel(*first, attn_mask=mask_of(pattern, q[:, :, :window], window), is_causal=False)
    q, k, v = (F.pad(t, (0, 0, 0, -time % window)) for t in (q, k, v))
    q, k, v = (t.unflatten(2, (-1, window)).transpose(1, 2) for t in (q, k, v))
    k, v = (torch.cat((t[:, :-1], t[:, 1:]), dim=3) for t in (k, v))
    # batch * chunks heads window head_dim
    q, k, v = q[:, 1:].flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    rest = kernel(q, k, v, attn_mask=mask_of(pattern, q, 2 * window), is_causal=False)
    rest = rest.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)
    return torch.cat((begin, rest[:, :, : time - window]), dim=2)


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

    The arguments are those of `scaled_dot_product_attention`, and the cap. The gradient of causal
    attention without dropout, which is what training needs, is written out, since flex attention
    has no backward pass on a CPU.
    """
    if is_causal and not (dropout_p or torch._C._functorch.is_batchedtensor(q)):
        return written_out(q, k, v, cap, scale)
    logits = q @ k.transpose(-1, -2) * scale
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logits = cap * torch.tanh(logits.to(dtype) / cap)
    if is_causal:
        attn_mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        logits = logits + attn_mask
    return F.dropout(logits.softmax(-1).to(v.dtype), dropout_p) @ v


def has_one_kernel(q: Tensor, v: Tensor) -> bool:
    """Whether flex attention computes a pattern and a cap in one kernel where q is."""
    smallest = min(q.shape[-1], v.shape[-1])
    takes = q.is_cuda and q.dtype != torch.float64 and smallest >= SMALLEST_HEAD
    # Flex attention fails under a mode that looks at operators, as one that counts FLOPs does, and
    # torch.func.vmap does not know it.
    seen = torch._C._functorch.is_batchedtensor(q) or (
        is_in_torch_dispatch_mode() and not torch.compiler.is_compiling()
    )
    return takes and not seen


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
