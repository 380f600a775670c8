"""The parts of attention around its heads: shared keys, a temperature, mixed values and norms over
heads. It also has the state that passes from one block or one pass to the next."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.model.initialization import Linear
from transformer_norms.norms import Layer, nothing

Stream = Float[Tensor, "batch time width"]
Heads = Float[Tensor, "batch time heads head_dim"]
Known = Float[Tensor, "batch known kv_heads head_dim"]  # tokens that q may see
KnownValues = Float[Tensor, "batch known kv_heads value_dim"]
Context = Float[Tensor, "batch time heads value_dim"]


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
    """The inputs of attention besides the stream in a pass: tokens, the first block's values, and
    the keys and values of blocks that others use, by their index."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.first: Tensor | None = None
        self.shared_keys: dict[int, tuple[Tensor, Tensor]] = {}


class ValueMix(nn.Module):
    """own * v + first * v1 + embedded * gate(x) * E[tokens]      v1: the values of the first block

    `first` is None in the first block, whose values the others read (`shares_kv`), and where
    nothing is added. `value_embedding` is a table E of this block alone, or None. `value_gate` is a
    number in (0, 1) for each head, or nothing. Zhou et al. 2024 (ResFormer), arXiv:2410.17897;
    value embeddings as in nanochat.
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
    """A norm for each head, with separate gains (`norm@per_head`)      Cohere's Command R+"""

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
