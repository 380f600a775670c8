"""The laws that a norm may obey: which changes of W and x leave y = norm(W x) as it was. Measures
them for each norm."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.analysis.outcome import Row
from transformer_norms.comparison.sweep_record import Values, label
from transformer_norms.config.compose import compose, recompose
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.plugins import check_plugins
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.model.assembly import norm_of
from transformer_norms.names import distinct_norms, unknown
from transformer_norms.progress import Tell, tell_nobody, track
from transformer_norms.sweep.question import read_request

SEED = 0
BATCH, TIME, INPUTS, WIDTH = 4, 16, 48, 64
POSITIVE, NEGATIVE = (1 / 3, 3.0), (-1 / 3, -3.0)  # a length that is clamped shows on one side
SHIFT = 2.0
HOLDS_BELOW = 1e-9  # of a relative change in float64, whose rounding is below 1e-14
SMALL = 1e-30  # for eps
SPREAD = 0.5  # standard deviation by which learned numbers are moved off their starts
KEYS = ("norm", "norm.KEY", "plugins")

Norm = Callable[[Any], Any]


# ------------------------------------------------------------------------------------- the laws


@dataclass(frozen=True)
class Layer:
    """z = W x for a batch of tokens, in float64

    Laws put in g, b, c and `last`. All numbers are standard normal; W, g and b are divided
    by sqrt(inputs), so that z is about 1.
    """

    x: Float[Tensor, "batch time inputs"]
    weight: Float[Tensor, "width inputs"]
    g: Float[Tensor, " inputs"]
    b: Float[Tensor, " width"]
    c: Float[Tensor, " inputs"]
    last: Float[Tensor, "batch inputs"]

    @property
    def z(self) -> Float[Tensor, "batch time width"]:
        return self.x @ self.weight.T


def draw_layer() -> Layer:
    generator = torch.Generator().manual_seed(SEED)
    draw = partial(torch.randn, generator=generator, dtype=torch.double)
    root = INPUTS**0.5
    return Layer(
        x=draw(BATCH, TIME, INPUTS), weight=draw(WIDTH, INPUTS) / root, g=draw(INPUTS) / root,
        b=draw(WIDTH) / root, c=draw(INPUTS), last=draw(BATCH, INPUTS),
    )  # fmt: skip


@dataclass(frozen=True)
class Law:
    """A property that a norm may have: `change(norm, layer)` is 0 where it holds.

    `code` heads a column in a terminal, `head` one on a page. `about` names the thing that changes.
    The parameters named in `unmoved` stay at their start. `training` is the norm's mode.
    """

    key: str
    code: str
    about: str
    head: str
    words: str
    change: Callable[[Norm, Layer], float]
    unmoved: Sequence[str] = ()
    training: bool = True


def relative_change(changed: Tensor, y: Tensor) -> float:
    """max|y' - y| / rms(y), over all tokens and coordinates"""
    return float((changed - y).abs().max() / y.square().mean().sqrt())


def mean_squares(y: Tensor) -> Tensor:
    """The mean square of each token."""
    return y.square().mean(-1)


def _change_among(moved: Callable[[Layer], Iterable[Tensor]]) -> Callable[[Norm, Layer], float]:
    """The largest relative change of y where z becomes one of those that `moved` yields."""

    def change(norm: Norm, layer: Layer) -> float:
        y = norm(layer.z)
        return max(relative_change(norm(z), y) for z in moved(layer))

    return change


def _scale_at(tensor: Tensor, place: Any, delta: float) -> Tensor:
    scaled = tensor.clone()
    scaled[place] *= delta
    return scaled


def _even_part(norm: Norm, layer: Layer) -> float:
    return relative_change(-norm(-layer.z), norm(layer.z))


def _spread(norm: Norm, layer: Layer) -> float:
    """The largest relative distance of a token's mean square from that of all tokens."""
    squares = mean_squares(norm(layer.z))
    return float((squares / squares.mean() - 1).abs().max())


def _leak(norm: Norm, layer: Layer) -> float:
    """The change of earlier outputs when the last token of every sequence is another."""
    x = layer.x.clone()
    x[:, -1] = layer.last
    return relative_change(norm(x @ layer.weight.T)[:, :-1], norm(layer.z)[:, :-1])


LAWS = (
    Law("weights_scaled", "W*", "weights", "W → δW, δ > 0",
        "all weights times a positive number",
        _change_among(lambda its: (its.x @ (d * its.weight).T for d in POSITIVE))),
    Law("weights_negated", "-W", "weights", "W → δW, δ < 0",
        "all weights times a negative number",
        _change_among(lambda its: (its.x @ (d * its.weight).T for d in NEGATIVE))),
    Law("weights_recentred", "W+g", "weights", "W → W + 1gᵀ",
        "the same vector added to every neuron's weights",
        _change_among(lambda its: [its.x @ (its.weight + its.g).T])),
    Law("weights_shifted", "W+b", "weights", "W → W + b1ᵀ",
        "a number added to all weights of a neuron, to each its own",
        _change_among(lambda its: [its.x @ (its.weight + its.b[:, None]).T])),
    Law("row_scaled", "row", "weights", "one row of W × δ, δ > 0",
        "one neuron's weights times a positive number",
        _change_among(lambda its: (its.x @ _scale_at(its.weight, 0, d).T for d in POSITIVE))),
    Law("data_scaled", "x*", "data", "x → δx, δ > 0",
        "all inputs times a positive number",
        _change_among(lambda its: ((d * its.x) @ its.weight.T for d in POSITIVE))),
    Law("data_shifted", "x+c", "data", "x → x + c",
        "the same vector added to every token's input",
        _change_among(lambda its: [(its.x + its.c) @ its.weight.T])),
    Law("token_scaled", "tok", "data", "one token × δ, δ > 0",
        "one token's input times a positive number",
        _change_among(lambda its: (_scale_at(its.x, (0, 0), d) @ its.weight.T for d in POSITIVE))),
    Law("shifted", "z+c", "pre-activations", "z → z + c1",
        "one number added to all pre-activations", _change_among(lambda its: [its.z + SHIFT])),
    Law("odd", "odd", "output", "odd", "norm(−z) = −norm(z)", _even_part),
    Law("size", "rms", "output", "same size",
        "all tokens' outputs have one mean square, at gain 1 and bias 0",
        _spread, unmoved=("gain", "offset", "bias")),
    Law("later_training", "trn", "later tokens", "causal in training",
        "in training, no output depends on a later token", _leak),
    Law("later_evaluation", "evl", "later tokens", "causal in evaluation",
        "in evaluation, no output depends on a later token", _leak, training=False),
)  # fmt: skip


# --------------------------------------------------------------------------------- the measurement


def measure_norms(overrides: Iterable[str] = (), tell: Tell = tell_nobody) -> list[Row]:
    """A row for each law and each norm of `norm=a,b norm.KEY=VALUE plugins=DIR`.

    Without norm= these are all norms but those that differ from another in eps alone. Raises
    ConfigError if something named is not a norm.
    """
    layer, norms = draw_layer(), _read_norms(list(overrides))
    alike = [key for key in norms[0] if len({str(values.get(key)) for values in norms}) == 1]
    unnamed = {"plugins", *alike} - {"norm"}
    rows: list[Row] = []
    with torch.no_grad():
        for values in track(tell, "measuring norms {:.0f}/{:.0f}", norms):
            name = label({key: value for key, value in values.items() if key not in unnamed})
            rows += _measure_norm(name, values, layer)
    return rows


def _read_norms(overrides: Sequence[str]) -> list[Values]:
    """The keys of each norm that was typed, or of all norms."""
    for text in overrides:
        key = text.partition("=")[0]
        if key not in ("norm", "plugins") and not key.startswith("norm."):
            raise ConfigError(f"{text}: {unknown('key', key, KEYS)}")
    question = read_request(overrides).question
    norms = [{**question.fixed, **variant} for variant in question.variants]
    if any("norm" in values for values in norms):
        return norms
    inside = next((text for text in overrides if text.startswith("norm.")), None)
    if inside is not None:
        raise ConfigError(f"{inside}: a key of which norm? type norm=NAME as well")
    folder = check_plugins(str(question.fixed.get("plugins", "none")))
    return [{"norm": name, **question.fixed} for name in distinct_norms(folder)]


def _measure_norm(name: str, values: Values, layer: Layer) -> Iterator[Row]:
    """A row for each law: its change with eps next to nothing, and with the norm's own eps,
    which is None for a norm without eps.

    `learned` is how many numbers the norm learns at width d. `mean_square` is that of its output,
    at gain 1 and bias 0, over all tokens.
    """
    config = _compose(values)
    eps = config.norm.get("eps")
    small = None if eps is None else recompose(config, [f"norm.eps={SMALL}"])
    size = next(law for law in LAWS if law.key == "size")
    of_norm = {
        "eps": eps,
        "learned": _learned_numbers(config),
        "mean_square": float(mean_squares(_build_norm(config, size)(layer.z)).mean()),
    }
    for law in LAWS:
        own = _measure_change(name, config, law, layer)
        ideal = own if small is None else _measure_change(name, small, law, layer)
        yield {
            "norm": name,
            "transformation": law.key,
            "statement": law.head,
            "verdict": "yes" if ideal < HOLDS_BELOW else "no",
            "change_without_eps": ideal,
            "change_with_eps": None if small is None else own,
            **of_norm,
        }


def _compose(values: Values) -> Config:
    """The config of a norm. One that sees later tokens is allowed: it is measured, not trained."""
    typed = [as_typed(key, value) for key, value in values.items()]
    try:
        return compose(typed)
    except ConfigError:
        with suppress(ConfigError):
            return compose([*typed, "norm.allow_noncausal=true"])
        raise


def _measure_change(name: str, config: Config, law: Law, layer: Layer) -> float:
    norm = _build_norm(config, law)
    y = norm(layer.z)
    if not (isinstance(y, torch.Tensor) and y.shape == layer.z.shape and y.dtype == layer.z.dtype):
        raise ConfigError(f"norm={name}: it does not keep the shape and the dtype of what it gets")
    change = law.change(norm, layer)
    if not torch.tensor(change).isfinite():
        raise ConfigError(f"norm={name}: its output is zero or not finite ({law.words})")
    return change


def _build_norm(config: Config, law: Law) -> Norm:
    """The norm in float64, its parameters but for the law's `unmoved` moved off their start."""
    norm = norm_of(config, "norm", "attention")(WIDTH)
    if not isinstance(norm, nn.Module):
        return norm
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in norm.double().named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        if name.rpartition(".")[2] not in law.unmoved:
            parameter.data += SPREAD * drawn
    return norm.train(law.training)


def _learned_numbers(config: Config) -> str:
    """How many numbers a norm learns, as a formula of its width d: `2d + 1`."""
    norms = [norm_of(config, "norm", "attention")(times * WIDTH) for times in (1, 2, 3)]
    one, two, three = (
        sum(parameter.numel() for parameter in norm.parameters())
        if isinstance(norm, nn.Module)
        else 0
        for norm in norms
    )
    slope, rest = divmod(two - one, WIDTH)
    if rest or three - two != two - one:
        return f"{one} at d = {WIDTH}"
    constant = one - slope * WIDTH
    terms = [f"{slope if slope != 1 else ''}d" if slope else "", str(constant) if constant else ""]
    return " + ".join(filter(None, terms)) or "0"
