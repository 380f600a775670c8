"""What is asked of each norm: a layer, and what may be done to it without y = norm(W x) moving."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

SEED = 0
BATCH, TIME, INPUTS, WIDTH = 4, 16, 48, 64
POSITIVE, NEGATIVE = (1 / 3, 3.0), (-1 / 3, -3.0)  # a length that is clamped shows on one side
SHIFT = 2.0

Norm = Callable[[Any], Any]


@dataclass(frozen=True)
class Layer:
    """z = W x for a batch of tokens, in float64; g, b, c and `last` are what laws put in."""

    x: Float[Tensor, "batch time inputs"]
    weight: Float[Tensor, "width inputs"]
    g: Float[Tensor, " inputs"]
    b: Float[Tensor, " width"]
    c: Float[Tensor, " inputs"]
    last: Float[Tensor, "batch inputs"]

    @property
    def z(self) -> Float[Tensor, "batch time width"]:
        return self.of()

    def of(self, x: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """z of other data, or of other weights."""
        return (self.x if x is None else x) @ (self.weight if weight is None else weight).T


def drawn_layer() -> Layer:
    """All numbers standard normal; W, g and b divided by sqrt(inputs), so that z is about 1."""
    generator = torch.Generator().manual_seed(SEED)
    draw = partial(torch.randn, generator=generator, dtype=torch.double)
    root = INPUTS**0.5
    return Layer(
        x=draw(BATCH, TIME, INPUTS), weight=draw(WIDTH, INPUTS) / root, g=draw(INPUTS) / root,
        b=draw(WIDTH) / root, c=draw(INPUTS), last=draw(BATCH, INPUTS),
    )  # fmt: skip


@dataclass(frozen=True)
class Law:
    """One question: `change(norm, layer)` is 0 where the law holds. `code` heads a terminal's
    column, `head` a page's; `about` is what is changed, or what is looked at. Of what the norm
    learns, the parameters named in `kept` are left where they start; `training` is its mode."""

    key: str
    code: str
    about: str
    head: str
    words: str
    change: Callable[[Norm, Layer], float]
    kept: Sequence[str] = ()
    training: bool = True


def relative(changed: Tensor, y: Tensor) -> float:
    """max|y' - y| / rms(y), over all tokens and coordinates"""
    return float((changed - y).abs().max() / y.square().mean().sqrt())


def mean_squares(y: Tensor) -> Tensor:
    """A number for each token."""
    return y.square().mean(-1)


def _unmoved(*transformed: Callable[[Layer], Tensor]) -> Callable[[Norm, Layer], float]:
    """The largest change of y where z is one of these."""

    def change(norm: Norm, layer: Layer) -> float:
        y = norm(layer.z)
        return max(relative(norm(z(layer)), y) for z in transformed)

    return change


def _times(
    z: Callable[[float, Layer], Tensor], factors: Sequence[float] = POSITIVE
) -> Callable[[Norm, Layer], float]:
    return _unmoved(*(partial(z, delta) for delta in factors))


def _weights(delta: float, layer: Layer) -> Tensor:
    return layer.of(weight=delta * layer.weight)


def _data(delta: float, layer: Layer) -> Tensor:
    return layer.of(x=delta * layer.x)


def _row(delta: float, layer: Layer) -> Tensor:
    weight = layer.weight.clone()
    weight[0] *= delta
    return layer.of(weight=weight)


def _token(delta: float, layer: Layer) -> Tensor:
    x = layer.x.clone()
    x[0, 0] *= delta
    return layer.of(x=x)


def _even_part(norm: Norm, layer: Layer) -> float:
    return relative(-norm(-layer.z), norm(layer.z))


def _spread(norm: Norm, layer: Layer) -> float:
    """How far a token's mean square is from that of all."""
    found = mean_squares(norm(layer.z))
    return float((found / found.mean() - 1).abs().max())


def _leak(norm: Norm, layer: Layer) -> float:
    """How far earlier outputs move when the last token of every sequence is another."""
    x = layer.x.clone()
    x[:, -1] = layer.last
    return relative(norm(layer.of(x=x))[:, :-1], norm(layer.z)[:, :-1])


LAWS = (
    Law("weights_scaled", "W*", "weights", "W → δW, δ > 0",
        "all weights times a positive number", _times(_weights)),
    Law("weights_negated", "-W", "weights", "W → δW, δ < 0",
        "all weights times a negative number", _times(_weights, NEGATIVE)),
    Law("weights_recentred", "W+g", "weights", "W → W + 1gᵀ",
        "the same vector added to every neuron's weights",
        _unmoved(lambda layer: layer.of(weight=layer.weight + layer.g))),
    Law("weights_shifted", "W+b", "weights", "W → W + b1ᵀ",
        "a number added to all weights of a neuron, to each its own",
        _unmoved(lambda layer: layer.of(weight=layer.weight + layer.b[:, None]))),
    Law("row_scaled", "row", "weights", "one row of W × δ, δ > 0",
        "one neuron's weights times a positive number", _times(_row)),
    Law("data_scaled", "x*", "data", "x → δx, δ > 0",
        "all inputs times a positive number", _times(_data)),
    Law("data_shifted", "x+c", "data", "x → x + c",
        "the same vector added to every token's input",
        _unmoved(lambda layer: layer.of(x=layer.x + layer.c))),
    Law("token_scaled", "tok", "data", "one token × δ, δ > 0",
        "one token's input times a positive number", _times(_token)),
    Law("shifted", "z+c", "pre-activations", "z → z + c1",
        "one number added to all pre-activations", _unmoved(lambda layer: layer.z + SHIFT)),
    Law("odd", "odd", "output", "odd", "norm(−z) = −norm(z)", _even_part),
    Law("size", "rms", "output", "same size",
        "all tokens' outputs have one mean square, at gain 1 and bias 0",
        _spread, kept=("gain", "offset", "bias")),
    Law("later_training", "trn", "later tokens", "causal in training",
        "in training, no output depends on a later token", _leak),
    Law("later_evaluation", "evl", "later tokens", "causal in evaluation",
        "in evaluation, no output depends on a later token", _leak, training=False),
)  # fmt: skip
