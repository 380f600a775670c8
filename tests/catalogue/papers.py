"""Placements as their papers write them: those with norms on heads, of which test_fingerprints
does not see whose gains they are, and those that no equation of a block says alone.

Plain arithmetic on our weights, {name: tensor}. ALL takes a placement's name to its function from
embedded tokens to logits. The norm is RMSNorm and the mlp relu^2, but in nGPT, which has its own.
"""

import math
from functools import partial

import torch
from references import DEPTH, HEAD_DIM, HEADS, WIDTH
from written_out import by_hand, l2norm, same

ALL = {}
CONTEXT_OF_WINDOWS = 140  # nanochat's short window is then 128 tokens


class Parts:
    """norm, attention, mlp and head, by the names that our weights have."""

    def __init__(self, weights):
        self.weights = weights

    def __getitem__(self, name):
        return self.weights[name]

    def norm(self, name, x):
        return self[f"{name}.gain"] * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    def attention(self, i, x, q=same, k=same, v=same, cap=None, scale=None):
        here = f"blocks.{i}.attention.f"
        read = {"query": q, "key": k, "value": v}
        made = {name: x @ self[f"{here}.{name}.weight"].T for name in read}
        heads = (read[name](z.unflatten(-1, (HEADS, HEAD_DIM))) for name, z in made.items())
        scale = HEAD_DIM**-0.5 if scale is None else scale
        context, *_ = by_hand(*(z.transpose(1, 2) for z in heads), scale=scale, cap=cap)
        return context.transpose(1, 2).flatten(2) @ self[f"{here}.output.weight"].T

    def normed_attention(self, i, x, sites, **rest):
        """With a norm on each head of q, k or v, all heads with the same gain."""
        here = f"blocks.{i}.attention.f"
        norms = {site: lambda h, site=site: self.norm(f"{here}.{site}", h) for site in sites}
        return self.attention(i, x, **norms, **rest)

    def mlp(self, i, x):
        up, down = (self[f"blocks.{i}.mlp.f.{name}.weight"] for name in ("up", "down"))
        return (x @ up.T).clamp(min=0) ** 2 @ down.T

    def swiglu(self, i, x):
        """nGPT's, its halves scaled by s_u sqrt(d) and s_v sqrt(d)"""
        here, d = f"blocks.{i}.mlp.f", math.sqrt(WIDTH)
        halves = (f"{here}.{name}" for name in ("up", "gate"))
        up, gate = (self[f"{at}_scale.gain"] * d * (x @ self[f"{at}.weight"].T) for at in halves)
        return (up * gate * torch.sigmoid(gate)) @ self[f"{here}.down.weight"].T

    def head(self, x):
        return x @ self.weights.get("head.weight", self["embedding.weight"]).T


def model(placement):
    ALL[placement.__name__] = placement
    return placement


def block(placement):
    """The model of such blocks, with a norm before the head."""

    def whole(p, x):
        for i in range(DEPTH):
            x = placement(p, i, x, f"blocks.{i}.attention", f"blocks.{i}.mlp")
        return p.head(p.norm("final", x))

    ALL[placement.__name__] = whole
    return placement


@block
def hybrid(p, i, x, attention, mlp):
    """Y = MHA_qkv(X) + X;  X' = FFN(Norm(Y)) + Norm(Y)      equation 5"""
    z = p.norm(f"{attention}.post", p.normed_attention(i, x, "qkv") + x)
    return p.mlp(i, z) + z


@block
def hybrid_star(p, i, x, attention, mlp):
    """Block 0 is Pre-Norm in both sub-layers, its q, k, v norms kept.      equation 7"""
    if i > 0:
        return hybrid(p, i, x, attention, mlp)
    y = p.normed_attention(i, p.norm(f"{attention}.pre", x), "qkv") + x
    return p.mlp(i, p.norm(f"{mlp}.pre", y)) + y


@block
def qkv(p, i, x, attention, mlp):
    """Norms after the linear maps of q, k and v, none before."""
    x = x + p.normed_attention(i, x, "qkv")
    return x + p.mlp(i, p.norm(f"{mlp}.pre", x))


@block
def qk_fc(p, i, x, attention, mlp):
    """Norms on q and k, after the projection, and after the second linear map of the FFN."""
    h = p.normed_attention(i, p.norm(f"{attention}.pre", x), "qk")
    x = x + p.norm(f"{attention}.out", h)
    return x + p.norm(f"{mlp}.out", p.mlp(i, p.norm(f"{mlp}.pre", x)))


@block
def qk_cap(p, i, x, attention, mlp):
    """Norms on q and k, and cap tanh(logits / cap)"""
    h = p.norm(f"{attention}.pre", x)
    x = x + p.normed_attention(i, h, "qk", cap=50)
    return x + p.mlp(i, p.norm(f"{mlp}.pre", x))


@block
def gpas(p, i, x, attention, mlp):
    """x = x + F(LN(x));  x = x - SiLU(g) sg(x), sg without a gradient, one g for a block"""
    gate = p[f"{attention}.skip.gain"]
    for here, f in ((attention, p.attention), (mlp, p.mlp)):
        x = x + f(i, p.norm(f"{here}.pre", x))
        x = x - gate * torch.sigmoid(gate) * x.detach()
    return x


@block
def simplenorm(p, i, x, attention, mlp):
    """Norm(W x) for every W of a block: over the width before heads are split, and in a SwiGLU"""

    def normed(name, z):
        return p.norm(name, z @ p[f"{name.removesuffix('_norm')}.weight"].T)

    def whole(site):
        return lambda h: p.norm(f"{attention}.f.{site}.norm", h.flatten(2)).view(h.shape)

    h = p.attention(i, x, q=whole("q"), k=whole("k"), v=whole("v"))
    x = x + p.norm(f"{attention}.out", h)
    gate, up = normed(f"{mlp}.f.gate_norm", x), normed(f"{mlp}.f.up_norm", x)
    h = (gate * torch.sigmoid(gate) * up) @ p[f"{mlp}.f.down.weight"].T
    return x + p.norm(f"{mlp}.out", h)


@model
def nanochat(p, x):
    """x0 = norm(x);  before each block x = lambda_i x + mu_i x0      resid_lambdas, x0_lambdas"""
    x = x0 = p.norm("embed", x)
    for i in range(DEPTH):
        enter = f"blocks.{i}.attention.enter"
        x = p[f"{enter}.skip.gain"] * x + p[f"{enter}.x0.gain"] * x0
        x = x + p.attention(i, p.norm(f"blocks.{i}.attention.pre", x))
        x = x + p.mlp(i, p.norm(f"blocks.{i}.mlp.pre", x))
    return p.head(p.norm("final", x))


def whole_nanochat(tokens, p, eps):
    """nanochat/gpt.py at 92d63d4, from tokens to logits.

    It turns by the negative angle. That is the textbook's turn where q and k hold the two of a pair
    in each other's place, which is how it is written here.
    """
    time = tokens.shape[1]

    def norm(x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)

    def by_head(x):
        return x.view(*x.shape[:2], HEADS, HEAD_DIM)

    def rotary(x):
        half = HEAD_DIM // 2
        frequency = 1 / 100_000 ** (torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(time).double(), frequency.double())
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        x1, x2 = x[..., :half], x[..., half:]
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)

    short = -(-CONTEXT_OF_WINDOWS // 4 // 128) * 128
    x = norm(p["embedding.weight"][tokens])
    gate = p["smear.scale"] * torch.sigmoid(x[:, 1:, :24] @ p["smear.smear_gate.weight"].T)
    x = x0 = torch.cat([x[:, :1], x[:, 1:] + gate * x[:, :-1]], 1)
    for i in range(DEPTH):
        here = f"blocks.{i}.attention"
        x = p[f"{here}.enter.skip.gain"] * x + p[f"{here}.enter.x0.gain"] * x0
        h = norm(x)
        q, k, v = (by_head(h @ p[f"{here}.f.{m}.weight"].T) for m in ("query", "key", "value"))
        if i % 2 == (DEPTH - 1) % 2:
            gate = 3 * torch.sigmoid(h[..., :12] @ p[f"{here}.f.values.value_gate.weight"].T)
            v = v + gate[..., None] * by_head(p[f"{here}.f.values.value_embedding.weight"][tokens])
        q, k = (1.2 * norm(rotary(z)) for z in (q, k))
        left = short if "SSSL"[i % 4] == "S" and i < DEPTH - 1 else time
        heads = (z.transpose(1, 2) for z in (q, k, v))
        context, *_ = by_hand(*heads, scale=HEAD_DIM**-0.5, window=left + 1)
        y = context.transpose(1, 2).flatten(2)
        x = x + y @ p[f"{here}.f.output.weight"].T
        mlp = f"blocks.{i}.mlp.f"
        x = x + (norm(x) @ p[f"{mlp}.up.weight"].T).relu() ** 2 @ p[f"{mlp}.down.weight"].T
        if i == DEPTH // 2:
            middle = x
    x = x - p[f"blocks.{DEPTH // 2}.connection.scale"] * middle
    return 15 * torch.tanh(norm(x) @ p["head.weight"].T / 15)


@model
def ngpt(p, x):
    """h = Norm(h + |a| (Norm(F(h)) - h)), with q = s_qk Norm(q), k = s_qk Norm(k), scaled by
    sqrt(d_head), and logits by s_z. s_qk, a, s_z are kept sqrt(d) times less than 1, 0.05, 1.

    Ours keeps s_qk with q alone, where it counts twice.
    """
    root = math.sqrt(WIDTH)
    for i in range(DEPTH):
        s_qk = p[f"blocks.{i}.attention.f.q.scale.gain"] * root
        q = k = partial(lambda s, h: s * l2norm(h), s_qk)
        attention = partial(p.attention, q=q, k=k, scale=math.sqrt(HEAD_DIM))
        for name, f in (("attention", attention), ("mlp", p.swiglu)):
            a = (p[f"blocks.{i}.{name}.branch.gain"] * 0.05 * root).abs()
            x = l2norm(x + a * (l2norm(f(i, x)) - x))
    return p["logit_scale.gain"] * root * p.head(x)
