"""Causal self-attention, with a site for a norm at each place that was ever published.

`Attention` holds the projections and the sites. The function of queries, keys and values is
chosen by name (`attention=softmax`): attentions/softmax.py. attentions/heads.py has what may be
around the heads.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from torch import nn

from transformer_norms.model.architecture import BlockChoices
from transformer_norms.model.attentions.heads import (
    Context,
    Heads,
    Known,
    KnownValues,
    SharedKey,
    Stream,
)
from transformer_norms.model.attentions.softmax import ATTENTIONS as ATTENTIONS
from transformer_norms.model.attentions.softmax import Sinks as Sinks
from transformer_norms.model.attentions.softmax import Softmax as Softmax
from transformer_norms.model.initialization import FromLatent, Linear
from transformer_norms.model.sites import INSIDE
from transformer_norms.norms import Layer, nothing


class Attention(nn.Module):
    """W_o ctx(gate * head_scale * head_norm(attend(q(W_q x), k(W_k x), v(values(W_v x)))))

    `norms` has the norm of each site, q_latent, kv_latent, q, k, v, head_norm and ctx, or nothing.
    The first two act on a latent, the next four on [batch, time, heads, head_dim] (values have
    `value_dim` dimensions), ctx on the concatenated heads. `turn` turns q and k by the model's
    angles, after their norms or before. `attend` is one of ATTENTIONS. Fewer `kv_heads` than
    `heads` are shared by groups of queries. `bias` names the matrices that have one.

    With a `q_rank`, queries are W_q q_latent(W_dq x). With a `kv_rank`, keys and values are
    W_k c and W_v c, c = kv_latent(W_dkv x). With a `rope_dim`, each key is [W_kr x, W_k c]. The
    first `rope_dim` dimensions of a key are shared by all heads. Rope turns only these.
    Multi-head latent attention has all three: DeepSeek-V2, arXiv:2405.04434. There the shared
    dimensions come last: the same function, after a permutation of the rows of weights. Whole keys
    and values are cached, where the paper caches c and W_kr x. With `values_from_keys` there is no
    W_v, and values are W_k c.

    With a `source` there is neither W_k nor W_v: attend reads the keys and values of the attention
    of that `index`, after all norms and rotations. The attention that makes them `shares_kv` and
    caches them (Gemma 3n and 4).

    attentions/options.py makes the rest: `attention_gate` multiplies heads by sigmoid(W_g x),
    `values` is a ValueMix, `scale` multiplies q where it is learned, `temperature` by its position.
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
        values: Layer = nothing,
        head_scale: Layer = nothing,
        attention_gate: Layer = nothing,
        norms: Mapping[str, Layer] = {},
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
        at = {**dict.fromkeys(INSIDE["attention"], nothing), **norms}
        self.q_latent, self.kv_latent = at["q_latent"], at["kv_latent"]
        self.attend, self.turn, self.scale, self.temperature = attend, turn, scale, temperature
        self.q, self.k, self.v, self.values = at["q"], at["k"], at["v"], values
        self.head_norm, self.head_scale, self.ctx = at["head_norm"], head_scale, at["ctx"]
        self.attention_gate = attention_gate
        self.observe: Callable[..., object] = nothing  # QK-Clip puts here what reads q and k

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
        self.observe(q, k, self.attend)
        return self.attend(q, k, v, x).transpose(1, 2)


def make_projection(width: int, rank: int, bias: bool) -> tuple[Layer, Callable[..., Linear]]:
    """Returns the map of x to a latent of `rank` dimensions, or nothing where it is 0. Returns also
    the constructor of matrices that read the latent, or x."""
    if not rank:
        return nothing, partial(Linear, width)
    return Linear(width, rank, bias=bias), partial(FromLatent, rank)
