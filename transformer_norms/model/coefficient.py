"""Numbers that multiply: a on the skip, b on the branch, scales of heads, logits, embeddings, and
gates, which are computed from x."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.formula import Formula
from transformer_norms.model.initialization import Einsum, Linear, ZeroLinear
from transformer_norms.model.sites import EARLIER, NORMED
from transformer_norms.norms import Layer, nothing

Shapes = Mapping[str, tuple[int, ...]]  # what may be learned there: `vector` -> (width,)
SCALAR = (1,)  # the shape of one learned number: a tensor without an axis cannot be cut in shards
LOW_RANK = "low_rank"
Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, Function] = {
    "same": nothing,
    "absolute": torch.abs,
    "square": torch.square,
    "one_minus_silu": lambda gate: 1 - F.silu(gate),
}
OPTIONAL = {"stored": "", "function": "same", "gradient": "scaled", "share": "sub_layer"}
GRADIENTS = ("scaled", "preserved")  # `preserved`: the gradient of x is not multiplied
PARAMETER_SHARES = ("sub_layer", "block")  # `block`: one number for both sub-layers of a block


def without_norm(width: int) -> Layer:
    return nothing


def coefficient(
    spec: Any,
    shapes: Shapes,
    values: Mapping[str, float],
    norm: Callable[[int], Layer] = without_norm,
) -> Layer:
    """`1` · `(2*N)**0.25` · `{learn: scalar | vector | head, init: FORMULA}`  ->  x times that.

    Returns a function that multiplies x by the coefficient. A learned one may be kept at another
    size (`stored`: FORMULA): it is then multiplied by init / stored where it is used, and so is
    its effective learning rate. It may be used through a `function` (absolute, square,
    one_minus_silu), let the gradient pass as if it were 1 (`gradient: preserved`), and be one for
    both sub-layers of a block (`share: block`). {learn: low_rank, rank: 64, normed: false, init:
    FORMULA} is a matrix, LowRank, whose norm is `norm(width)` where it is normed.
    """
    if isinstance(spec, Mapping):
        _check(spec, shapes)
        init = Formula(spec["init"])(values)
        if spec["learn"] == LOW_RANK:
            (width,) = shapes[LOW_RANK]
            own = norm(width) if spec["normed"] else None
            return LowRank(width, spec["rank"], float(init), own)
        stored = Formula(spec["stored"])(values) if "stored" in spec else init
        if stored == 0 and init != 0:
            raise ValueError("stored is 0, so the coefficient would stay 0")
        factor = 1.0 if stored == init else init / stored
        preserves = spec.get("gradient") == "preserved"
        function = spec.get("function", "same")
        return Learned(shapes[spec["learn"]], stored, factor, function, preserves)
    value = Formula(spec)(values)
    return nothing if value == 1 else Times(value)


def _check(spec: Mapping[str, Any], shapes: Shapes) -> None:
    if spec.get("learn") == LOW_RANK:
        if LOW_RANK not in shapes:
            raise ValueError(f"learn: {LOW_RANK!r} is not among {', '.join(shapes)}")
        _check_low_rank(spec)
        return
    allowed = {"learn": tuple(shapes), "function": tuple(FUNCTIONS)}
    allowed |= {"gradient": GRADIENTS, "share": PARAMETER_SHARES}
    unknown = sorted(set(spec) - {"learn", "init", *OPTIONAL})
    if unknown or not {"learn", "init"} <= set(spec):
        raise ValueError(
            f"{dict(spec)} is no coefficient: learn and init are wanted, and {', '.join(OPTIONAL)} "
            "may be there"
        )
    for key, names in allowed.items():
        if key in spec and spec[key] not in names:
            raise ValueError(f"{key}: {spec[key]!r} is not among {', '.join(names)}")


def _check_low_rank(spec: Mapping[str, Any]) -> None:
    if {*spec} - {"share"} != {"learn", "init", "rank", "normed"}:
        raise ValueError(
            f"{dict(spec)} is no matrix of low rank: learn, init, rank and normed are wanted, and "
            "share may be there"
        )
    rank, normed = spec["rank"], spec["normed"]
    if type(rank) is not int or not 1 <= rank <= 2**20:
        raise ValueError(f"rank: {rank!r} is not a whole number from 1")
    if type(normed) is not bool:
        raise ValueError(f"normed: {normed!r} is neither true nor false")
    if spec.get("share", "sub_layer") not in PARAMETER_SHARES:
        raise ValueError(f"share: {spec['share']!r} is not among {', '.join(PARAMETER_SHARES)}")


def constant(value: float) -> Tensor:
    """Returns a number that a compiled block takes as an input, so that blocks which differ in it
    alone share a graph. It rounds no result more than a Python float. It stays on the CPU: a kernel
    of a GPU takes it as an argument."""
    return torch.tensor(value, dtype=torch.float64, device="cpu")


class Times:
    """value * x, a constant: no module, no parameter."""

    def __init__(self, value: float) -> None:
        self.value = constant(value)

    def __call__(self, x: Tensor, *_: Any) -> Tensor:
        return x * self.value


class Learned(nn.Module):
    """function(factor * gain) * x, learned from `stored` on

    If it `preserves` the gradient, x receives that of x itself, whatever the factor: GPAS,
    arXiv:2506.22049.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        stored: float,
        factor: float = 1,
        function: str = "same",
        preserves: bool = False,
    ) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full(shape, float(stored)))
        self.factor, self.function, self.preserves = factor, FUNCTIONS[function], preserves

    def used(self) -> Tensor:
        """Returns the factor of x."""
        return self.function(self.gain if self.factor == 1 else self.factor * self.gain)

    def forward(self, x: Float[Tensor, "*batch width"], *_: Any) -> Float[Tensor, "*batch width"]:
        used = self.used().to(x.dtype)
        return x + (used - 1) * x.detach() if self.preserves else x * used


class LowRank(nn.Module):
    """scale * (x + norm(B A x)), A with `rank` rows      LAuReL-LR, Menghani et al. 2024,
    arXiv:2411.07501

    Without a norm B starts at 0, as in the paper. With one, both are drawn as in Gemma 3n.
    """

    def __init__(self, width: int, rank: int, scale: float, norm: Layer | None) -> None:
        super().__init__()
        self.left = (Linear if norm is None else Einsum)(width, rank, bias=False)
        self.right = (ZeroLinear if norm is None else Einsum)(rank, width, bias=False)
        self.norm, self.scale = nothing if norm is None else norm, scale

    def forward(self, x: Float[Tensor, "*batch width"], *_: Any) -> Float[Tensor, "*batch width"]:
        return self.scale * (x + self.norm(self.right(self.left(x))))


class OneMinusBranch:
    """x - branch(x): the convex residual (1 - b) x + b f"""

    def __init__(self, branch: Layer) -> None:
        self.branch = branch

    def __call__(self, x: Tensor, *_: Any) -> Tensor:
        return x - self.branch(x)


class ScaledNorm(nn.Module):
    """scale(pre(x)), where `pre` is the sub-layer's own norm"""

    def __init__(self, pre: Layer, scale: Layer) -> None:
        super().__init__()
        self.pre, self.scale = (pre,), scale  # in a tuple, since it is a part of the sub-layer

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return self.scale(self.pre[0](x))


class WeightedSum(nn.Module):
    """skip(x) + c * start + c0 * x0: skips that begin further back than their sub-layer. Where
    `skip` is none, x is left out. A term `normed` is computed from x."""

    def __init__(self, skip: Layer | None, scales: Mapping[str, Layer]) -> None:
        super().__init__()
        self.skip, self.names = skip, tuple(scales)
        for name, scale in scales.items():
            setattr(self, name, scale)

    def forward(self, x: Tensor, *earlier: Tensor) -> Tensor:
        streams = {NORMED: x, **dict(zip(EARLIER, earlier, strict=True))}
        terms = [getattr(self, name)(streams[name]) for name in self.names]
        y, *rest = terms if self.skip is None else [self.skip(x), *terms]
        for term in rest:
            y = y + term
        return y


class Gate(Linear):
    """sigmoid(W x) * y, y by heads: a number for each head, or for each dimension of each head

    W reads the first `width` channels of x. Qiu et al. 2025, arXiv:2505.06708.
    """

    def __init__(self, width: int, heads: int, each: int = 1, bias: bool = False) -> None:
        """`each` is the number of gates of a head: 1, or one for each of its dimensions."""
        super().__init__(width, heads * each, bias)
        self.heads = heads

    def forward(  # type: ignore[override]
        self, y: Float[Tensor, "batch time heads head_dim"], x: Float[Tensor, "batch time width"]
    ) -> Float[Tensor, "batch time heads head_dim"]:
        gates = super().forward(x[..., : self.in_features])
        return y * torch.sigmoid(gates).unflatten(-1, (self.heads, -1))


class Scaled(nn.Module):
    """scale * norm(x)"""

    def __init__(self, norm: Layer, scale: Layer) -> None:
        super().__init__()
        self.norm, self.scale = norm, scale

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return self.scale(self.norm(x))


class Smear(nn.Module):
    """x_t + s * sigmoid(W x_t[:channels]) * x_(t-1), s = 0 at the start      nanochat, Karpathy
    2025; code karpathy/nanochat, commit 92d63d4, gpt.py

    Nothing stands before the first token. A cache keeps the last token for those that follow.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.smear_gate = Linear(channels, 1, bias=False)
        self.scale = nn.Parameter(torch.zeros(SCALAR))

    def forward(
        self, x: Float[Tensor, "batch time width"], cache: Any = None
    ) -> Float[Tensor, "batch time width"]:
        last = getattr(cache, "embedded", None)
        if cache is not None:
            cache.embedded = x[:, -1:]
        first = torch.zeros_like(x[:, :1]) if last is None else last
        before = torch.cat((first, x[:, :-1]), dim=1)
        gate = torch.sigmoid(self.smear_gate(x[..., : self.smear_gate.in_features]))
        return x + self.scale.to(x.dtype) * gate * before


class LogitCap:
    """cap * tanh(logits / cap)      Gemma 2"""

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def __call__(self, logits: Tensor) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return self.cap * torch.tanh(logits.to(dtype) / self.cap)
