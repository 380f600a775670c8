"""Each norm as it is built, put to every law."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from transformer_norms.analysis.invariances.laws import (
    LAWS,
    SEED,
    WIDTH,
    Law,
    Layer,
    Norm,
    drawn_layer,
    mean_squares,
)
from transformer_norms.config import plugins
from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.model.assembly import norm_of
from transformer_norms.names import distinct_norms, unknown
from transformer_norms.progress import Tell, each, untold
from transformer_norms.run.sweep_record import label
from transformer_norms.sweep.question import read_request

HOLDS_BELOW = 1e-9  # of a relative change in float64, whose rounding is below 1e-14
LITTLE = 1e-2
SMALL = (1e-30, 1e-15, 1e-12)  # for eps: the first that a norm's own kind of it allows
SPREAD = 0.5  # standard deviation by which learned numbers are moved off their starts
_KEYS = ("norm", "norm.KEY", "plugins")

Config = Mapping[str, Any]
Values = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """max|y' - y| / rms(y), with eps as small as it may be, and with the norm's own; a norm that
    has no eps has one number."""

    ideal: float
    own: float | None

    @property
    def holds(self) -> bool:
        return self.ideal < HOLDS_BELOW

    @property
    def real(self) -> float:
        """With the norm as it is trained."""
        return self.ideal if self.own is None else self.own


@dataclass(frozen=True)
class Answers:
    """One norm's: `changes` by the key of a law. `learned` is how many numbers it learns at width
    d; `mean_square` is its output's, at gain 1 and bias 0, over all tokens."""

    name: str
    formula: str
    source: str
    eps: float | None
    small_eps: float | None
    learned: str
    mean_square: float
    changes: Mapping[str, Change]

    @property
    def nearly(self) -> bool:
        """Whether something moves so little that an eps which is no key of the norm may do it."""
        return any(HOLDS_BELOW <= change.ideal < LITTLE for change in self.changes.values())

    @property
    def verdicts(self) -> tuple[bool, ...]:
        return tuple(change.holds for change in self.changes.values())


def measured(overrides: Iterable[str] = (), tell: Tell = untold) -> list[Answers]:
    """A row for each norm of `norm=a,b norm.KEY=VALUE plugins=DIR`; without norm=, for each that
    there is but those that differ from another in eps alone. ConfigError where a norm is none."""
    layer, wanted = drawn_layer(), _wanted(list(overrides))
    told = each(tell, "measuring norms {:.0f}/{:.0f}", wanted)
    alike = [key for key in wanted[0] if len({str(values.get(key)) for values in wanted}) == 1]
    unsaid = {"plugins", *alike} - {"norm"}  # in a name
    with torch.no_grad():
        return [
            _answers(label({k: v for k, v in values.items() if k not in unsaid}), values, layer)
            for values in told
        ]


def _wanted(overrides: Sequence[str]) -> list[Values]:
    """The keys of each norm that is asked for."""
    for text in overrides:
        key = text.partition("=")[0]
        if key not in ("norm", "plugins") and not key.startswith("norm."):
            raise ConfigError(f"{text}: {unknown('key', key, _KEYS)}")
    question = read_request(overrides).question
    found = [{**question.fixed, **variant} for variant in question.variants]
    if any("norm" in values for values in found):
        return found
    inside = next((text for text in overrides if text.startswith("norm.")), None)
    if inside is not None:
        raise ConfigError(f"{inside}: a key of which norm? type norm=NAME as well")
    folder = plugins.check(str(question.fixed.get("plugins", "none")))
    return [{"norm": name, **question.fixed} for name in distinct_norms(folder)]


def _answers(name: str, values: Values, layer: Layer) -> Answers:
    config = _composed(values)
    small = _with_small_eps(values) if "eps" in config["norm"] else None
    spec, changes = config["norm"], {}
    for law in LAWS:
        own = _change(name, config, law, layer)
        ideal = own if small is None else _change(name, small, law, layer)
        changes[law.key] = Change(ideal, None if small is None else own)
    size = next(law for law in LAWS if law.key == "size")
    return Answers(
        name=name,
        formula=str(spec.get("formula", "")),
        source=str(spec.get("source", "")),
        eps=spec.get("eps"),
        small_eps=None if small is None else small["norm"]["eps"],
        learned=_learned(config),
        mean_square=float(mean_squares(_built(config, size)(layer.z)).mean()),
        changes=changes,
    )


def _composed(values: Values) -> Config:
    """A norm that sees later tokens is trained only where that is allowed; here it is measured."""
    typed = [as_typed(key, value) for key, value in values.items()]
    try:
        return compose(typed)
    except ConfigError:
        with suppress(ConfigError):
            return compose([*typed, "norm.allow_noncausal=true"])
        raise


def _with_small_eps(values: Values) -> Config | None:
    for eps in SMALL:
        with suppress(ConfigError):
            return _composed({**values, "norm.eps": eps})
    return None


def _change(name: str, config: Config, law: Law, layer: Layer) -> float:
    norm = _built(config, law)
    y = norm(layer.z)
    if not (isinstance(y, torch.Tensor) and y.shape == layer.z.shape and y.dtype == layer.z.dtype):
        raise ConfigError(f"norm={name}: it does not keep the shape and the dtype of what it gets")
    change = law.change(norm, layer)
    if not torch.tensor(change).isfinite():
        raise ConfigError(f"norm={name}: its output is zero or not finite ({law.words})")
    return change


def _built(config: Config, law: Law) -> Norm:
    """The norm in float64; what it learns, but for what the law keeps, off its starts."""
    norm = norm_of(config, "norm")(WIDTH)
    if not isinstance(norm, nn.Module):
        return norm
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in norm.double().named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        if name.rpartition(".")[2] not in law.kept:
            parameter.data += SPREAD * drawn
    return norm.train(law.training)


def _learned(config: Config) -> str:
    """How many numbers a norm learns, as a formula of its width d: `2d + 1`."""
    counts = []
    for width in (WIDTH, 2 * WIDTH, 3 * WIDTH):
        norm = norm_of(config, "norm")(width)
        parameters = norm.parameters() if isinstance(norm, nn.Module) else ()
        counts.append(sum(parameter.numel() for parameter in parameters))
    slope, rest = divmod(counts[1] - counts[0], WIDTH)
    if rest or counts[2] - counts[1] != counts[1] - counts[0]:
        return f"{counts[0]} at d = {WIDTH}"
    beside = counts[0] - slope * WIDTH
    times = f"{slope if slope != 1 else ''}d" if slope else ""
    return " + ".join(part for part in (times, str(beside) if beside else "") if part) or "0"
