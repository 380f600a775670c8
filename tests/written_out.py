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
    """W_o ctx(gate * head_scale * head_norm(softmax(scale q k^T) v)) over the past, token by token.
    The gate is 1, or 1 / (1 + exp(-W_g x)) where f has one: for each head or each dimension."""
    split = lambda linear: linear_of(linear, x).unflatten(-1, (-1, linear.out_features // heads))  # noqa: E731
    order = how.get("order", "before")
    turn = (lambda n, t: rotated(n(t))) if order == "before" else (lambda n, t: n(rotated(t)))
    queries, keys, values = turn(q, split(f.query)), turn(k, split(f.key)), v(split(f.value))
    dim = queries.shape[-1]
    scale, cap = how.get("scale", 1 / math.sqrt(dim)), how.get("cap")
    context = torch.zeros_like(queries)
    for t in range(x.shape[1]):
        scores = torch.einsum("bhd,bshd->bhs", queries[:, t], keys[:, : t + 1]) * scale
        if cap is not None:
            scores = cap * (2 / (1 + (-2 * scores / cap).exp()) - 1)  # cap * tanh(scores / cap)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        context[:, t] = torch.einsum("bhs,bshd->bhd", weights, values[:, : t + 1])
    context = head_norm(context) * head_scale
    if isinstance(f.attention_gate, torch.nn.Linear):
        gates = 1 / (1 + (-linear_of(f.attention_gate, x)).exp())
        every = gates.shape[-1] // heads  # gates of a head
        context = torch.stack([c * gates[..., h * every : (h + 1) * every]
                               for h, c in enumerate(context.unbind(2))], 2)  # fmt: skip
    return linear_of(f.output, ctx(context.flatten(2)))


def mlp(f, x, *, hidden=same, mid=same, hidden_scale=1):
    """W_down mid(max(0, hidden_scale * hidden(W_up x))^2)"""
    hidden = hidden_scale * hidden(linear_of(f.up, x))
    return linear_of(f.down, mid(torch.where(hidden > 0, hidden * hidden, 0.0)))


def linear_of(linear, x):
    y = torch.einsum("oi,...i->...o", linear.weight, x)
    return y if linear.bias is None else y + linear.bias


def l2norm(x):
    return x / (x * x).sum(-1, keepdim=True).sqrt()
