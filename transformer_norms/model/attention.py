"""Causal self-attention, with a site for a norm wherever one was ever put.

`Attention` holds the projections, the sites and the cache. What turns queries, keys and values into
a context is chosen by name (`attention=softmax`): attentions/softmax.py.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.model.attentions.softmax import ATTENTIONS as ATTENTIONS
from transformer_norms.model.attentions.softmax import Sinks as Sinks
from transformer_norms.model.attentions.softmax import Softmax as Softmax
from transformer_norms.model.initialization import FromLatent, Linear
from transformer_norms.model.settings import BlockChoices
from transformer_norms.norms import Layer, nothing

Stream = Float[Tensor, "batch time width"]
Heads = Float[Tensor, "batch time heads head_dim"]
Known = Float[Tensor, "batch known kv_heads head_dim"]  # tokens that q may see
KnownValues = Float[Tensor, "batch known kv_heads value_dim"]
Context = Float[Tensor, "batch time heads value_dim"]


class Attention(nn.Module):
    """W_o ctx(gate * head_scale * head_norm(attend(q(W_q x), k(W_k x), v(values(W_v x)))))

    With a `q_rank`, queries are W_q q_latent(W_dq x). With a `kv_rank`, keys and values are
    W_k c and W_v c, c = kv_latent(W_dkv x). With a `rope_dim`, each key is [W_kr x, W_k c]: so many
    dimensions come first and are the same for all heads of a token. They are those that rope turns.
    Multi-head latent attention has all three: DeepSeek-V2, arXiv:2405.04434. There the shared
    dimensions come last, which is the same function of permuted rows. Whole keys and values are
    cached, where the paper caches c and W_kr x. With `values_from_keys` there is no W_v, and W_k c
    stands in the place of W_v c.

    With a `source` there is neither W_k nor W_v: attend reads the keys and values that the
    attention of that `index` keeps, as it has them behind all norms and rotations. It
    `shares_kv` if others read them, whole, and alone has them in its cache (Gemma 3n and 4).

    q_latent, kv_latent, q, k, v, head_norm, head_scale and ctx hold a norm or nothing; the first
    two act on a latent, the next five on [batch, time, heads, head_dim] (values have `value_dim`
    dimensions), ctx on the heads side by side. `attention_gate` multiplies heads by sigmoid(W_g x),
    or is nothing. `values` is a ValueMix or nothing. Fewer `kv_heads` than `heads` are shared by
    groups of queries. `turn` turns q and k by the model's angles, after their norms or before.
    `scale` multiplies q where it is learned, `temperature` by the query's position. `attend` is one
    of ATTENTIONS. `bias` names the matrices that have one.
    """

    def __init__(
        self,
        own: BlockChoices,
        *,
        bias: Collection[str],
        attend: Layer,
        turn: Layer,
        shares_kv: bool = False,
        scale: Layer = nothing,
        temperature: Layer = nothing,
        q_latent: Layer = nothing,
        kv_latent: Layer = nothing,
        q: Layer = nothing,
        k: Layer = nothing,
        v: Layer = nothing,
        values: Layer = nothing,
        head_norm: Layer = nothing,
        head_scale: Layer = nothing,
        attention_gate: Layer = nothing,
        ctx: Layer = nothing,
    ) -> None:
        super().__init__()
        width, heads, kv_heads = own.sizes.width, own.sizes.heads, own.sizes.kv_heads
        head_dim, value_dim, rope_dim = own.sizes.head_dim, own.value_dim, own.rope_dim
        has_keys = own.source is None
        self.query_down, query = make_projection(width, own.q_rank, "query_down" in bias)
        self.kv_down, key_or_value = make_projection(
            width, own.kv_rank * has_keys, "kv_down" in bias
        )
        self.query = query(heads * head_dim, bias="query" in bias)
        key = key_or_value if has_keys else None
        self.key: Any = key and key(kv_heads * (head_dim - rope_dim), bias="key" in bias)
        value = None if own.values_from_keys else key
        self.value = value and value(kv_heads * value_dim, bias="value" in bias)
        shared = (
            SharedKey(width, rope_dim, bias="rope_key" in bias) if has_keys and rope_dim else None
        )
        self.rope_key: Layer = shared or nothing
        self.index, self.source, self.shares_kv = own.i, own.source, shares_kv
        self.output = Linear(heads * value_dim, width, bias="output" in bias)
        self.head_dim, self.rope_dim, self.groups = head_dim, rope_dim, heads // kv_heads
        self.kv_heads = kv_heads
        self.q_latent, self.kv_latent = q_latent, kv_latent
        self.attend, self.turn, self.scale, self.temperature = attend, turn, scale, temperature
        self.q, self.k, self.v, self.values = q, k, v, values
        self.head_norm, self.head_scale, self.ctx = head_norm, head_scale, ctx
        self.attention_gate = attention_gate
        self.read: Callable[..., object] = nothing  # what QK-Clip keeps of queries and keys

    def forward(
        self, x: Stream, angles: Any = None, cache: Any = None, state: Any = None
    ) -> Stream:
        q = self.query(self.q_latent(self.query_down(x))).unflatten(-1, (-1, self.head_dim))
        q = self.scale(self.turn(self.q, q, angles))
        if self.key is None:
            k, v = state.shared_keys[self.source]
        else:
            k, v = self.keys_and_values(x, angles, cache, state)
        q = self.temperature(q, k.shape[1])
        context = self.head_scale(self.head_norm(self.mix(q, k, v, x)))
        return self.output(self.ctx(self.attention_gate(context, x).flatten(2)))

    def keys_and_values(
        self, x: Stream, angles: Any, cache: Any, state: Any
    ) -> tuple[Known, KnownValues]:
        c = self.kv_latent(self.kv_down(x))
        k = self.split(self.key(c))
        v = k if self.value is None else self.split(self.value(c))
        k = self.turn(self.k, self.rope_key(k, x), angles)
        v = self.v(self.values(v, x, state))
        if cache is not None:
            k, v = cache.extend(k, v)
        if self.shares_kv:
            state.shared_keys[self.index] = k, v
        return k, v

    def split(self, x: Stream) -> Heads:
        return x.unflatten(-1, (self.kv_heads, -1))

    def mix(self, q: Heads, k: Known, v: KnownValues, x: Stream) -> Context:
        if self.groups > 1:
            k, v = (t.repeat_interleave(self.groups, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # batch heads time head_dim
        self.read(q, k, self.attend)
        return self.attend(q, k, v, x).transpose(1, 2)


def make_projection(width: int, rank: int, bias: bool) -> tuple[Layer, Callable[..., Linear]]:
    """Returns the map of x to a latent of `rank` dimensions, or nothing where it is 0; and what
    makes a matrix that reads the latent, or x."""
    if not rank:
        return nothing, partial(Linear, width)
    return Linear(width, rank, bias=bias), partial(FromLatent, rank)


class SharedKey(Linear):
    """[W x, k], k by heads: the first dimensions of a token's keys, which all its heads share"""

    def forward(  # type: ignore[override]
        self, k: Heads, x: Stream
    ) -> Float[Tensor, "batch time heads key_dim"]:
        shared = super().forward(x).unsqueeze(2).expand(-1, -1, k.shape[2], -1)
        return torch.cat((shared, k), -1)


class Temperature:
    """(1 + scale * log(1 + floor((t + 1) / floor))) * q, for the query at position t = 0, 1, ...

    Llama 4's, after Nakanishi 2025, arXiv:2501.19399. The queries are the last of the `known`
    tokens.
    """

    def __init__(self, floor: int, scale: float) -> None:
        self.floor, self.scale = floor, scale

    def __call__(self, q: Heads, known: int) -> Heads:
        dtype = torch.promote_types(q.dtype, torch.float32)
        count = torch.arange(known - q.shape[1] + 1, known + 1, device=q.device)
        steps = torch.div(count, self.floor, rounding_mode="floor").to(dtype)
        return (q * (1 + self.scale * torch.log1p(steps))[:, None, None]).to(q.dtype)


class ForwardState:
    """What attention has besides the stream in one pass: tokens, the first block's values, and the
    keys and values of blocks that others use, by their index."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.first: Tensor | None = None
        self.shared_keys: dict[int, tuple[Tensor, Tensor]] = {}


class ValueMix(nn.Module):
    """own * v + first * v1 + embedded * gate(x) * E[tokens]      v1: the values of the first block

    `first` is None in the first block, whose values the others read
    (`shares_kv`), and where nothing
    is added. `value_embedding` is a table E of this block alone, or None, `value_gate` a number in
    (0, 1) for each head, or nothing. Zhou et al. 2024 (ResFormer), arXiv:2410.17897; value
    embeddings as in nanochat.
    """

    def __init__(
        self,
        *,
        shares_kv: bool = False,
        own: Layer = nothing,
        first: Layer | None = None,
        embedded: Layer = nothing,
        value_embedding: nn.Module | None = None,
        value_gate: Layer = nothing,
    ) -> None:
        super().__init__()
        self.shares_kv, self.own, self.first = shares_kv, own, first
        self.embedded, self.value_embedding = embedded, value_embedding
        self.value_gate = value_gate

    def forward(self, v: Heads, x: Stream, state: ForwardState) -> Heads:
        if self.shares_kv:
            state.first = v
        if self.first is not None:
            v = self.own(v) + self.first(state.first)
        if self.value_embedding is not None:
            table_rows = self.value_embedding(state.tokens).to(v.dtype).view_as(v)
            v = v + self.embedded(self.value_gate(table_rows, x))
        return v


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
    """The keys and values of the tokens seen so far, for one attention layer. That of the first
    block also has the last embedded token, where the next one is mixed with it (Smear)."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.embedded: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.k is None else self.k.shape[1]

    def extend(self, k: Heads, v: Context) -> tuple[Known, KnownValues]:
        self.k = k if self.k is None else torch.cat((self.k, k), dim=1)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=1)
        return self.k, self.v
