"""Equations that no paper has, as keys of a placement, and how they are typed."""

from transformer_norms.config.overrides import as_typed

VECTOR, SCALAR = {"learn": "vector", "init": 0.9}, {"learn": "scalar", "init": 0.25}
HIDDEN = "norm((h := 2 * x + c * start) + f(h, hidden=norm, hidden_scale=2) + x0)"
SITES = "norm(x + gamma * f(0.3 * norm(x), q=s * norm@full, v=norm@per_head, mid=layernorm))"
BY_PART = {"attention": "x + f(norm(x), v=norm@per_head)", "mlp": "norm(x + f(x)) / sqrt(l)"}
STREAMS = {"x": "norm(x + 2 * f(norm(x)))", "r": "r + 2 * f(norm(x))", "end": "x + norm(r)"}
ODD = [{"blocks": "i % 2 == 1", "equation": {"mlp": "norm(x + f(x) + start)"}}]
EQUATIONS = {
    "half": {"equation": "x + 0.5 * f(norm(x))"},
    "no norm": {"equation": "x + f(x / 2)"},
    "no skip": {"equation": "norm(f(norm(x)))"},
    "in one block": {"equation": "x + (0.5 + (l == 1)) * f(norm(x))"},
    "full": {"equation": "norm(x + f(norm(x), q=norm@full, k=norm@full))"},
    "inside": {"equation": "(x + norm(f(norm(x), ctx=norm, mid=norm))) / sqrt(2)"},
    "x0": {"equation": "x + f(norm(x)) + c * x0", "learned": {"c": SCALAR}},
    "start": {"equation": "0.5 * x - f(norm(x)) / sqrt(l) + 0.1 * start - x0"},
    "shared": {
        "equation": "a * x + a * f(norm(x)) + c * x0",
        "learned": {"a": VECTOR, "c": SCALAR},
    },
    "side by side": {
        "equation": "x + attention(h := norm(x), q=norm, k=norm) + 0.5 * norm(mlp(h, mid=norm))"
    },
    "two norms": {"equation": "x + 0.5 * norm(attention(norm(x), v=norm)) + mlp(x)"},
    "rest": {"equation": "(1 - b) * x + b * norm(f(x))", "learned": {"b": VECTOR}},
    "by part": {"equation": BY_PART},
    "two streams": {"equation": STREAMS},
    "scales": {
        "equation": "x + f(s * norm(x), head_scale=g, hidden_scale=2)",
        "learned": {"s": VECTOR, "g": {"learn": "head", "init": 1}},
    },
    "sites": {"equation": SITES, "learned": {"gamma": VECTOR, "s": SCALAR}},
    "normed start": {"equation": "norm(2 * x + f(norm(x)) - 0.5 * start)"},
    "hidden": {"equation": HIDDEN, "learned": {"c": VECTOR}},
    "where": {"equation": "x + f(norm(x))", "where": ODD},
}


def typed(keys):
    return [as_typed(f"placement.{key}", value) for key, value in keys.items()]
