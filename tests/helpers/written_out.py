"""Attention, mlp and the names of a placement's equation, written out in plain float64 arithmetic:
what the blocks are compared with, and nothing of theirs but the weights."""

import math

import torch

EIGHTH = math.pi / 4  # of a turn


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
        sink = 0 if sinks is None else sinks.exp()[:, None]
        weights = logits.exp() / (logits.exp().sum(-1, keepdim=True) + sink)
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


# ------------------------------------------------------------------------------------ connections


def own_layernorm(x, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return centred / ((centred * centred).mean(-1, keepdim=True) + eps).sqrt()


def own_rmsnorm(x, eps=1e-6):
    return x / ((x * x).mean(-1, keepdim=True) + eps).sqrt()


def hyper_weights(connection, z):
    """a, A and b of each token, stream by stream, as Zhu et al. 2024 write them."""
    n = z.shape[-2]
    a, matrix, b = connection.read_weights, connection.mix_weights, connection.write_weights
    a, matrix, b = (each.expand(*z.shape[:2], *each.shape) for each in (a, matrix, b))
    if hasattr(connection, "norm"):
        normed = connection.norm.gain * own_layernorm(z) + connection.norm.bias
        s, t = connection.read_scale, connection.write_scale
        w_a, w_b = connection.read_change.weight[0], connection.write_change.weight[0]
        a = a + s * torch.stack([torch.tanh((normed[:, :, i] * w_a).sum(-1)) for i in range(n)], -1)
        b = b + t * torch.stack([torch.tanh((normed[:, :, i] * w_b).sum(-1)) for i in range(n)], -1)
        matrix = matrix + s * torch.tanh(normed @ connection.mix_change.weight.T)
    return a, matrix, b


def manifold_weights(connection, z, iterations=20, eps=1e-6):
    """The same three of Xie et al. 2025, with DeepSeek-V4's eps."""
    n, z = z.shape[-2], own_rmsnorm(z.flatten(2))
    gates = [getattr(connection, f"{name}_gate") for name in ("read", "mix", "write")]
    a, matrix, b = (gate.scale * (z @ gate.projection.weight.T) + gate.bias for gate in gates)
    matrix = matrix.view(*z.shape[:2], n, n).exp()
    matrix = matrix / matrix.sum(3, keepdim=True) + eps
    for step in range(2 * iterations - 1):
        matrix = matrix / (matrix.sum(2 + step % 2, keepdim=True) + eps)
    return 1 / (1 + (-a).exp()) + eps, matrix, 2 / (1 + (-b).exp())


def mixed(weights):
    """Returns read and write of n streams, whose weights are a function of the streams."""

    def read(z):
        a, n = weights(z)[0], z.shape[-2]
        return sum(a[..., i, None] * z[..., i, :] for i in range(n))

    def write(z, u):
        _, matrix, b = weights(z)
        n = z.shape[-2]
        return torch.stack(
            [
                sum(matrix[..., i, j, None] * z[..., i, :] for i in range(n)) + b[..., j, None] * u
                for j in range(n)
            ],
            -2,
        )

    return read, write


def modalities(held, x):
    """tanh(W rmsnorm(x) / d), one number for each stream      Gemma 3n"""
    routed = own_rmsnorm(x) * held.norm.gain / x.shape[-1] @ held.router.weight.T
    return 1 - 2 / (1 + (2 * routed).exp())


def alternating(held, spec, index):
    """Returns read and write of Baykal et al. 2023's Algorithm 1, stream by stream: the block's own
    numbers p and g, or those that Gemma 3n's router gives."""
    n, routed = spec["streams"], spec["type"] == "routed_altup"
    active = 0 if routed else index % n

    def predictions(z):
        p = held.predict_weights if not routed else (
            torch.eye(n) + (modalities(held, z[..., 0, :]) @ held.predict_change.weight.T).view(
                *z.shape[:2], n, n
            )
        )  # fmt: skip
        return [sum(p[..., i, j, None] * z[..., j, :] for j in range(n)) for i in range(n)]

    def write(z, y):
        made = predictions(z)
        g = held.correct_weights if not routed else (
            1 + modalities(held, y) @ held.correct_change.weight.T
        )  # fmt: skip
        return torch.stack(
            [x + g[..., i, None] * (y - made[active]) for i, x in enumerate(made)], -2
        )

    return lambda z: predictions(z)[0] if routed else z[..., active, :], write


def with_inputs(held, spec, index, norm):
    """Returns read and write of a block with an input e: what e gates is added to the stream of
    Gemma 4, and to Gemma 3n's others of the first."""

    def gated(x, e):
        gate = x @ held.gated.gate.weight.T
        return norm((held.gated.activation(gate) * e) @ held.gated.output.weight.T)

    if spec["type"] == "layer_inputs":
        return (
            lambda z: z[0],
            lambda z, y: (held.scale * (y + gated(y, z[1])), *z[2:], z[1]),
        )
    read, write = alternating(held, {**spec, "type": "routed_altup"}, index)

    def write_both(z, y):
        streams = write(z[0], y)
        added = gated(held.scale * streams[..., 0, :], z[1])
        others = [x + added for x in streams.unbind(-2)[1:]]
        return torch.stack([streams[..., 0, :], *others], -2), *z[2:], z[1]

    return lambda z: read(z[0]), write_both


def depth_attention(attend, entries):
    """sum_i a_i v_i, a the softmax of w . rmsnorm(v_i)      Kimi Team 2026, equations 2 to 4"""
    keys = [attend.norm.gain * own_rmsnorm(v) for v in entries]
    weights = [(attend.query * key).sum(-1, keepdim=True).exp() for key in keys]
    return sum(a * v for a, v in zip(weights, entries, strict=True)) / sum(weights)


def geodesic(held, spec, block):
    """Returns read and write of GeoNorm: the new stream is a sum of the stream and of the rest."""

    def write(x, u):
        size = (x * x).sum(-1, keepdim=True).sqrt()
        rest = u - x * (u * x).sum(-1, keepdim=True) / (size + spec["eps"]) ** 2
        far = (rest * rest).sum(-1, keepdim=True).sqrt() + spec["eps"]
        angle = torch.where((ratio := far / (size + spec["eps"])) < EIGHTH, ratio, EIGHTH)
        angle = (held.scale * angle + held.bias) / block
        angle = torch.where(angle < EIGHTH, angle, EIGHTH)
        return x * angle.cos() + rest * (size / far * angle.sin())

    return same, write


def connection(layer, spec, index, count, norm):
    """Returns read and write of a sub-layer's connection, from its parameters and its YAML."""
    held, kind = layer.connection, spec["type"]
    if kind in ("altup", "routed_altup"):
        return alternating(held, spec, index)
    if kind in ("layer_inputs", "routed_altup_inputs"):
        return with_inputs(held, spec, index, norm)
    if kind in ("hyper_connection", "dynamic_hyper_connection"):
        return mixed(lambda z: hyper_weights(held, z))
    if kind == "manifold_hyper_connection":
        return mixed(lambda z: manifold_weights(held, z, spec["iterations"], spec["eps"]))
    if kind == "attention_residual":
        blocks, layer = spec["blocks"], index // 2
        whole = blocks != "none"  # groups of whole blocks, which attention begins
        new = not whole or (index % 2 == 0 and layer % math.ceil(count / 2 / blocks) == 0)
        return (
            lambda z: depth_attention(held.attend, z),
            lambda z, u: (*z, u) if new else (*z[:-1], z[-1] + u),
        )
    if kind == "geodesic":
        return geodesic(held, spec, index // 2 + 1)
    if kind == "backout":  # index counts blocks
        middle = index == count // 2
        return lambda z: z[0], lambda z, u: (u, held.scale * u) if middle else (u, *z[1:])
    assert kind == "siamese"
    divisor = math.sqrt(2 * (index // 2 + 1))
    return (
        lambda z: z[0] + norm(z[1]),
        lambda z, u: (norm(z[0] + u / divisor), z[1] + u),
    )


def leave(model, spec, z, norm):
    """Returns what the head reads of the streams that leave the last block. A norm may differ
    before the head."""
    kind, final = spec["type"], model.final
    if kind == "layer_inputs":
        return final.norm(z[0])
    z = z[0] if kind == "routed_altup_inputs" else z
    if kind.startswith("routed_altup"):
        first, *others = z.unbind(-2)
        square = (first * first).mean(-1, keepdim=True)
        for projection, x in zip(final.projections, others, strict=True):
            y = x @ projection.weight.T
            first = first + y * (square / (y * y).mean(-1, keepdim=True).clamp(min=1e-5)).sqrt()
        return final.norm(first / z.shape[-2])
    if kind == "manifold_hyper_connection":
        normed = own_rmsnorm(z.flatten(2))
        a = final.gate.scale * (normed @ final.gate.projection.weight.T) + final.gate.bias
        a = 1 / (1 + (-a).exp()) + spec["eps"]
        return final.norm(sum(a[..., i, None] * z[..., i, :] for i in range(z.shape[-2])))
    if kind == "attention_residual":
        return final.norm(depth_attention(final.attend, z))
    if kind == "geodesic":
        return final.norm(z)
    if kind == "backout":
        return final.norm(z[0] - sum(z[1:]))
    return final.norm(z[0] + norm(z[1]) if kind == "siamese" else z.sum(-2))
