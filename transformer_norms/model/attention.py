"""Causal self-attention, with a site for a norm wherever one was ever put."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.model.initialization import Linear
from transformer_norms.norms import nothing

Stream = Float[Tensor, "batch time width"]
Heads = Float[Tensor, "batch time heads head_dim"]
Known = Float[Tensor, "batch known kv_heads head_dim"]  # what q looks at: the past, and itself


class Attention(nn.Module):
    """W_o ctx(head_scale * head_norm(softmax(q(W_q x) k(W_k x)^T / sqrt(head_dim)) v(W_v x)))

    q, k, v, head_norm, head_scale and ctx hold a norm or nothing; the first five act on
    [batch, time, heads, head_dim], ctx on the heads side by side. Fewer `kv_heads` than `heads` are
    shared by groups of queries. `turn` turns q and k by the model's angles, after their norms or
    before. `scale` multiplies q where it is more than the constant that `attend` knows. `bias`
    names the matrices that have one.
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bias: Collection[str],
        dropout: float,
        attend: Callable[..., Any],
        turn: Callable[..., Any],
        scale: Callable[..., Any] = nothing,
        q: Callable[..., Any] = nothing,
        k: Callable[..., Any] = nothing,
        v: Callable[..., Any] = nothing,
        head_norm: Callable[..., Any] = nothing,
        head_scale: Callable[..., Any] = nothing,
        ctx: Callable[..., Any] = nothing,
    ) -> None:
        super().__init__()
        self.query = Linear(width, heads * head_dim, bias="query" in bias)
        self.key = Linear(width, kv_heads * head_dim, bias="key" in bias)
        self.value = Linear(width, kv_heads * head_dim, bias="value" in bias)
        self.output = Linear(heads * head_dim, width, bias="output" in bias)
        self.head_dim, self.groups, self.dropout = head_dim, heads // kv_heads, dropout
        self.attend, self.turn, self.scale = attend, turn, scale
        self.q, self.k, self.v = q, k, v
        self.head_norm, self.head_scale, self.ctx = head_norm, head_scale, ctx

    def forward(self, x: Stream, angles: Any = None, cache: Any = None) -> Stream:
        q = self.scale(self.turn(self.q, self.split(self.query(x)), angles))
        k = self.turn(self.k, self.split(self.key(x)), angles)
        v = self.v(self.split(self.value(x)))
        if cache is not None:
            k, v = cache.extend(k, v)
        context = self.head_scale(self.head_norm(self.mix(q, k, v)))
        return self.output(self.ctx(context.flatten(2)))

    def split(self, x: Stream) -> Heads:
        return x.unflatten(-1, (-1, self.head_dim))

    def mix(self, q: Heads, k: Known, v: Known) -> Heads:
        if self.groups > 1:
            k, v = (t.repeat_interleave(self.groups, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # batch heads time head_dim
        new, known = q.shape[2], k.shape[2]
        mask = None
        if 1 < new < known:  # several new tokens after cached ones: token i sees known - new + i
            mask = torch.ones(new, known, dtype=torch.bool, device=q.device).tril(known - new)
        dropout = self.dropout if self.training else 0.0
        causal = new == known
        context = self.attend(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return context.transpose(1, 2)


def norm_first(
    rotate: Callable[..., Any], norm: Callable[..., Any], x: Heads, angles: Any
) -> Heads:
    return rotate(norm(x), angles)


def rotate_first(
    rotate: Callable[..., Any], norm: Callable[..., Any], x: Heads, angles: Any
) -> Heads:
    return norm(rotate(x, angles))


# Whether q and k meet their norms before their rotation or after: the same for a norm without a
# gain for each dimension, since a rotation keeps lengths.
ORDERS = {"before": norm_first, "after": rotate_first}


class AllHeads(nn.Module):
    """A norm over all heads side by side (`norm@full`), on a tensor that is split into heads."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Heads) -> Heads:
        return self.norm(x.flatten(2)).view_as(x)


class PerHead(nn.Module):
    """A norm for each head, with gains of its own (`norm@per_head`)      Cohere's Command R+"""

    def __init__(self, norms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(norms)

    def forward(self, x: Heads) -> Heads:
        each = zip(self.heads, x.unbind(2), strict=True)
        return torch.stack([norm(head) for norm, head in each], dim=2)


class Cache:
    """The keys and values of the tokens seen so far, for one attention layer."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.k is None else self.k.shape[1]

    def extend(self, k: Heads, v: Heads) -> tuple[Known, Known]:
        self.k = k if self.k is None else torch.cat((self.k, k), dim=1)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=1)
        return self.k, self.v
