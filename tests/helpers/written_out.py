"""Attention, mlp and the names of a placement's equation, written out in plain float64 arithmetic:
what the blocks are compared with, and nothing of theirs but the weights."""

import math

import torch


def same(x):
    return x


def rotated(x, base=10_000):
    """Rotary positions by complex numbers: pairs (j, j + half), turned by t / base^(2j/r)."""
    half = x.shape[-1] // 2
    exponent = torch.arange(half, dtype=torch.float32) / half
    frequency = (1 / torch.tensor(float(base)) ** exponent).double()  # float32, as published code
    angle = torch.arange(x.shape[1]).double()[:, None, None] * frequency
    pair = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((pair.real, pair.imag), -1)


def attention(
    f, x, *, heads, q=same, k=same, v=same, head_norm=same, ctx=same, head_scale=1, **how
):
    """W_o ctx(gate * head_scale * head_norm(softmax(scale q k^T) v)) over the past.
    The gate is 1, or 1 / (1 + exp(-W_g x)) where f has one: for each head or each dimension."""
    split = lambda linear: linear_of(linear, x).unflatten(-1, (-1, linear.out_features // heads))  # noqa: E731
    order = how.get("order", "before")
    turn = (lambda n, t: rotated(n(t))) if order == "before" else (lambda n, t: n(rotated(t)))
    queries, keys, values = turn(q, split(f.query)), turn(k, split(f.key)), v(split(f.value))
    dim = queries.shape[-1]
    scale, cap = how.get("scale", 1 / math.sqrt(dim)), how.get("cap")
    across = (z.transpose(1, 2) for z in (queries, keys, values))
    context = by_hand(*across, scale=scale, cap=cap)[0].transpose(1, 2)
    context = head_norm(context) * head_scale
    if isinstance(f.attention_gate, torch.nn.Linear):
        gates = 1 / (1 + (-linear_of(f.attention_gate, x)).exp())
        every = gates.shape[-1] // heads  # gates of a head
        context = torch.stack([c * gates[..., h * every : (h + 1) * every]
                               for h, c in enumerate(context.unbind(2))], 2)  # fmt: skip
    return linear_of(f.output, ctx(context.flatten(2)))


def by_hand(q, k, v, *, scale, cap=None, window=None, slopes=None, sinks=None, chunk=None,
            sees=lambda query, key: True):  # fmt: skip
    """Returns the context of each query, computed one at a time, with entropies and logits. A query
    that sees no key has a context and an entropy of zero."""
    time, known = q.shape[2], k.shape[2]
    rows, entropies, largest = [], [], []
    for t in range(time):
        at = known - time + t
        first = 0 if window is None else max(0, at + 1 - window)
        first = max(first, at - at % chunk if chunk else 0)
        seen = [s for s in range(first, at + 1) if sees(at, s)]
        if not seen:
            rows.append(torch.zeros_like(v[:, :, 0]))
            entropies.append(torch.zeros_like(v[:, :, 0, 0]))
            continue
        logits = torch.einsum("bhd,bhsd->bhs", q[:, :, t], k[:, :, seen]) * scale
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        for h, slope in enumerate(slopes or ()):
            far = torch.tensor([at - s for s in seen], dtype=q.dtype)
            logits = torch.cat(
                (logits[:, :h], logits[:, h : h + 1] - slope * far, logits[:, h + 1 :]), 1
            )
        peak = logits.amax(-1, keepdim=True)
        sink = 0 if sinks is None else (sinks[:, None] - peak).exp()
        weights = (logits - peak).exp()
        weights = weights / (weights.sum(-1, keepdim=True) + sink)
        rows.append(torch.einsum("bhs,bhsd->bhd", weights, v[:, :, seen]))
        entropies.append(-(weights * weights.log()).sum(-1))
        largest.append(logits.max())
    return torch.stack(rows, 2), torch.stack(entropies).mean().item(), max(largest).item()


def mlp(f, x, *, hidden=same, mid=same, hidden_scale=1):
    """W_down mid(max(0, hidden_scale * hidden(W_up x))^2)"""
    hidden = hidden_scale * hidden(linear_of(f.up, x))
    return linear_of(f.down, mid(torch.where(hidden > 0, hidden * hidden, 0.0)))


def linear_of(linear, x):
    y = torch.einsum("oi,...i->...o", linear.weight, x)
    return y if linear.bias is None else y + linear.bias


def l2norm(x):
    return x / (x * x).sum(-1, keepdim=True).sqrt()


class LowRank:
    """A learned matrix as an equation writes it, c * x: scale * (x + norm(B A x))"""

    def __init__(self, held, scale, norm):
        self.left, self.right, self.scale, self.norm = held.left, held.right, scale, norm

    def __mul__(self, x):
        inner = linear_of(self.right, linear_of(self.left, x))
        return self.scale * x + self.scale * self.norm(inner)


def own_rmsnorm(x, eps=1e-6):
    return x / ((x * x).mean(-1, keepdim=True) + eps).sqrt()


def own_layernorm(x):
    return own_rmsnorm(x - x.mean(-1, keepdim=True), 1e-5)
