"""Softmax attention, and that with sinks: queries, keys and values to a context, by name."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_norms.model.attentions.kernels import (
    Contexts,
    Keys,
    Pattern,
    PositionBias,
    Queries,
    Values,
    kernel_of,
    pattern_attention,
)
from transformer_norms.names import Registry

ATTENTIONS = Registry("attention")
AT_ONCE = 256  # queries whose logits are held at a time where the largest is sought
Stream = Float[Tensor, "batch time width"]


@ATTENTIONS("softmax")
class Softmax(nn.Module):
    """softmax(s) v, s = scale * q k^T, or cap * tanh(scale * q k^T / cap)      Vaswani et al. 2017

    The queries are the last `time` of the `known` tokens: all of them in training, fewer when
    generating from a cache. A query sees the last `sliding_window` of the tokens up to itself, or
    all, and of these its own chunk of `attention_chunk` tokens, or all. `position_bias` is added to
    s. A subclass that restricts further what a query sees defines `sees`. The context of a query
    that sees no key is 0.

    Any module with this `forward` can be registered. `x` is the stream that q, k and v were
    computed from. `logits` is optional: without it there are no logits to probe. `refuses` maps an
    option for which the module has no use to the reason: architecture.attention_cap,
    architecture.attention_scale or model.dropout. A module is given the numbers of its block that
    its arguments name, such as `sliding_window` and `attention_chunk`, and `position_bias`.
    """

    refuses: Mapping[str, str] = {}

    def __init__(
        self,
        *,
        scale: float,
        cap: float | None,
        dropout: float,
        sliding_window: int | None = None,
        attention_chunk: int | None = None,
        position_bias: PositionBias | None = None,
        **sizes: Any,
    ) -> None:
        super().__init__()
        self.scale, self.cap, self.dropout = scale, cap, dropout
        self.sliding_window, self.attention_chunk = sliding_window, attention_chunk
        self.pattern = Pattern(sliding_window, position_bias, attention_chunk)
        self.causal = type(self).sees is Softmax.sees  # kernels need no mask for it
        plain = self.pattern == Pattern() and cap is None
        self.fuses = self.causal and not plain and type(self).forward is Softmax.forward
        self.seen: Any = None

    def prepare(self, time: int, device: torch.device) -> None:
        """Makes, outside of what is compiled, what the kernel of a GPU reads of a pattern or cap
        for `time` queries."""
        if self.fuses:
            from transformer_norms.model.attentions.flex import kept_seen

            self.seen = kept_seen(time, self.cap, self.pattern, str(device))

    def sees(
        self, query: Int[Tensor, "queries 1"], key: Int[Tensor, " known"]
    ) -> Bool[Tensor, "queries known"]:
        """Returns whether a query sees a key, by their positions. The keys after a query are hidden
        in every subclass."""
        return key <= query

    def forward(self, q: Queries, k: Keys, v: Values, x: Stream) -> Contexts:
        # A compiled block that drops nothing does not ask whether it trains.
        dropout = self.dropout and self.dropout * self.training
        if self.causal:
            how: dict[str, Any] = {"cap": self.cap, "scale": self.scale, "dropout": dropout}
            return pattern_attention(q, k, v, self.pattern, **how, seen=self.seen)
        time, known = q.shape[2], k.shape[2]
        at = torch.arange(known - time, known, device=q.device)
        seen = self.mask(at, known)
        # Kernels differ in what a query without a key gets: it is shown all keys, and then 0.
        blind = ~seen.any(-1, keepdim=True)
        mask = self.pattern.add_bias(seen | blind, at, q.shape[1], q)
        how = {"dropout_p": dropout, "scale": self.scale}
        context = kernel_of(self.cap)(q, k, v, attn_mask=mask, is_causal=False, **how)
        return context.masked_fill(blind, 0)

    def flops(self, q: Queries, k: Keys, v: Values) -> int:
        """Returns the FLOPs of q k^T and of the weights times v. Each query is counted with all
        tokens, or with as many as its window or chunk has."""
        batch, heads, time, head_dim = q.shape
        keys = min(filter(None, (k.shape[2], self.sliding_window, self.attention_chunk)))
        return 2 * batch * heads * time * keys * (head_dim + v.shape[3])

    def logits(
        self, q: Float[Tensor, "batch heads queries head_dim"], k: Keys, at: Int[Tensor, " queries"]
    ) -> Float[Tensor, "batch heads queries known"]:
        """Returns the numbers that the softmax reads for the queries at the positions `at`, in
        float32 at least; -inf where a query does not see a key."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            logits = q.to(dtype) @ k.to(dtype).mT * self.scale
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        seen = self.mask(at, k.shape[2])
        if self.pattern.bias is not None:
            logits = logits + self.pattern.add_bias(seen, at, q.shape[1], logits)
        return logits.masked_fill(~seen, float("-inf"))

    @torch.no_grad()
    def largest(self, q: Queries, k: Keys) -> Float[Tensor, " heads"]:
        """Returns for each head the largest of scale * q k^T, in float32 at least, over the batch
        and the keys that its queries see. Cap and bias come after it."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        q, k = q.detach().to(dtype) * self.scale, k.detach().to(dtype)
        found = q.new_full((q.shape[1],), float("-inf"))
        for first in range(0, q.shape[2], AT_ONCE):
            until = min(first + AT_ONCE, q.shape[2])
            with torch.autocast(q.device.type, enabled=False):
                logits = q[:, :, first:until] @ k[:, :, :until].mT
            at = torch.arange(first, until, device=q.device)
            logits = logits.masked_fill_(~self.mask(at, until), float("-inf"))
            found = torch.maximum(found, logits.amax((0, 2, 3)))
        return found

    def mask(self, at: Int[Tensor, " queries"], known: int) -> Bool[Tensor, "queries known"]:
        query, key = at[:, None], torch.arange(known, device=at.device)
        return self.sees(query, key) & self.pattern.sees(query, key)


@ATTENTIONS("sinks")
class Sinks(Softmax):
    """exp(s) v / (exp(sink) + sum of exp(s))      a learned logit for each head, without a value

    GPT-OSS, arXiv:2508.10925. The sink is the key of a token before the first, whose value is 0.
    Its logit is in a dimension that q and k have besides their own, so that any kernel of
    softmax attention computes it.
    """

    refuses = {"architecture.attention_cap": "a sink's logit is learned without a cap"}

    def __init__(
        self, *, heads: int, scale: float, cap: float | None, dropout: float, **sizes: Any
    ):
        super().__init__(scale=scale, cap=cap, dropout=dropout, **sizes)
        self.sinks = nn.Parameter(torch.zeros(heads))

    def forward(self, q: Queries, k: Keys, v: Values, x: Stream) -> Contexts:
        batch, _, time, head_dim = q.shape
        known, value_dim = v.shape[2:]
        logits = (self.sinks / self.scale).to(k.dtype).view(1, -1, 1, 1)
        sink = F.pad(logits, (head_dim, 0)).expand(batch, -1, -1, -1)
        k, v = torch.cat((sink, F.pad(k, (0, 1))), 2), F.pad(v, (0, 1, 1, 0))
        plain, mask = self.causal and self.pattern == Pattern(), None
        causal = plain and time == known
        if not (causal or (plain and time == 1)):
            at = torch.arange(known - time, known, device=q.device)
            seen = self.pattern.add_bias(self.mask(at, known), at, q.shape[1], q)
            mask = F.pad(seen, (1, 0), value=float(seen.dtype == torch.bool))
        # A kernel that is causal wants as many queries as keys: the sink has a query as well.
        q = F.pad(q, (0, 1, int(causal), 0), value=1.0)
        dropout = self.dropout and self.dropout * self.training
        how: dict[str, Any] = {"dropout_p": dropout, "is_causal": causal, "scale": self.scale}
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **how)
        return context[:, :, int(causal) :, :value_dim]

    def logits(
        self, q: Float[Tensor, "batch heads queries head_dim"], k: Keys, at: Int[Tensor, " queries"]
    ) -> Float[Tensor, "batch heads queries known_and_sink"]:
        """The same, and last the logit of the sink."""
        logits = super().logits(q, k, at)
        sinks = self.sinks.to(logits.dtype)[:, None, None].expand(*logits.shape[:-1], 1)
        return torch.cat((logits, sinks), -1)
