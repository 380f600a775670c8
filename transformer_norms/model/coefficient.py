"""Numbers that multiply: a on the skip, b on the branch, scales of heads, logits, embeddings, and
gates, which are computed from x."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.formula import Formula
from transformer_norms.kinds import Flag, Number, Positive, Text, node
from transformer_norms.model.initialization import Einsum, Linear, ZeroLinear
from transformer_norms.model.sites import EARLIER, NORMED
from transformer_norms.norms import NORMS, Layer, nothing
from transformer_norms.validation import build

Shapes = Mapping[str, tuple[int, ...]]  # what may be learned there: `vector` -> (width,)
SCALAR = (1,)  # the shape of one learned number: a tensor without an axis cannot be cut in shards
LOW_RANK = "low_rank"


def stream_shapes(width: int) -> Shapes:
    return {"scalar": SCALAR, "vector": (width,), LOW_RANK: (width,)}


def head_shapes(heads: int, dimensions: int) -> Shapes:
    return {"scalar": SCALAR, "head": (heads, 1), "vector": (heads, dimensions)}


Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, Function] = {
    "same": nothing,
    "absolute": torch.abs,
    "square": torch.square,
    "one_minus_silu": lambda gate: 1 - F.silu(gate),
}


@node
class LearnedNumbers:
    """{learn: scalar | vector | head, init: FORMULA}: numbers that training changes.

    They may be kept at another size (`stored`: FORMULA): they are then multiplied by init / stored
    where they are used, and so is their effective learning rate. They may be used through a
    `function`, let the gradient pass as if they were 1 (`gradient: preserved`), and be the same for
    both sub-layers of a block (`share: block`)."""

    learn: Text
    init: Number | Text
    stored: Number | Text | None = None
    function: Literal["same", "absolute", "square", "one_minus_silu"] = "same"
    gradient: Literal["scaled", "preserved"] = "scaled"
    share: Literal["sub_layer", "block"] = "sub_layer"


@node
class LearnedMatrix:
    """{learn: low_rank, rank: 64, normed: false, init: FORMULA}: a LowRank, with the norm of its
    place where it is normed. `share` as above."""

    learn: Text
    init: Number | Text
    rank: Annotated[Positive, Field(le=2**20)]
    normed: Flag
    share: Literal["sub_layer", "block"] = "sub_layer"


def coefficient(
    spec: Any,
    shapes: Shapes,
    values: Mapping[str, float],
    norm: Callable[[int], Layer] = NORMS["none"],
) -> Layer:
    """`1` · `(2*N)**0.25` · LearnedNumbers · LearnedMatrix  ->  x times that.

    Returns a function that multiplies x by the coefficient. A learned one has one of
    `shapes`. A matrix has the norm `norm(width)`.
    """
    if not isinstance(spec, Mapping):
        value = Formula(spec)(values)
        return nothing if value == 1 else Times(value)
    if (learn := spec.get("learn", "scalar")) not in [*shapes]:
        raise ValueError(f"learn: {learn!r} is not among {', '.join(shapes)}")
    if learn == LOW_RANK:
        matrix, (width,) = build(LearnedMatrix, "", spec), shapes[LOW_RANK]
        init = float(Formula(matrix.init)(values))
        return LowRank(width, matrix.rank, init, norm(width) if matrix.normed else None)
    numbers = build(LearnedNumbers, "", spec)
    init = Formula(numbers.init)(values)
    stored = init if numbers.stored is None else Formula(numbers.stored)(values)
    if stored == 0 and init != 0:
        raise ValueError("stored is 0, so the coefficient would stay 0")
    factor = 1.0 if stored == init else init / stored
    preserves = numbers.gradient == "preserved"
    return Learned(shapes[learn], stored, factor, numbers.function, preserves)


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

    If it `preserves` the gradient, x receives that of x itself, for any factor: GPAS,
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

    Nothing comes before the first token. A cache keeps the last token for those that follow.
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
