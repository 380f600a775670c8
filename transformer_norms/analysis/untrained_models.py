"""Models before training: which are asked for, their tokens, and how a size changes a number."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transformer_norms.comparison.statistics import half_interval
from transformer_norms.comparison.sweep_record import Values, label
from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell, tell_nobody, track
from transformer_norms.sweep.question import read_request

DEPTH, WIDTH = "model.depth", "model.width"
TYPICAL = {DEPTH: "2,4,8", WIDTH: "64,128,256"}
VOCABULARY = 64
SEQUENCES = 4  # each of a model's context and one token more


def with_defaults(arguments: Sequence[str], defaults: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the defaults that are not typed, as one would type them, and the typed words."""
    typed = [text.partition("=")[0] for text in arguments]
    return (*(f"{key}={defaults[key]}" for key in defaults if key not in typed), *arguments)


def compose_variants(
    keys: Iterable[str],
    axis: str,
    completed: Callable[[Values], Values] = lambda values: values,
    tell: Tell = tell_nobody,
) -> dict[str, list[Config]]:
    """Returns for each variant's name one config per value of `axis` and per seed. `completed` adds
    the keys of a model that follow from its others. The configs of one value have the same
    `data.seed`: no data is read. Raises ConfigError, one line."""
    question = read_request(keys).question
    sizes, seeds = question.vary.get(axis, [question.fixed.get(axis)]), question.first_seeds
    for size in sizes:
        if not isinstance(size, int) or len(sizes) < 2:
            short = axis.rpartition(".")[2]
            raise ConfigError(
                f"{as_typed(axis, size)}: a slope wants 2 {short}s or more, such as "
                f"{axis}={TYPICAL[axis]}"
            )
    variants: dict[str, list[Config]] = {}
    for variant in track(tell, "composing models {:.0f}/{:.0f}", question.variants):
        values = {**question.fixed, **variant, "seed": seeds[0]}
        whole: list[str] = [key for key in ("recipe", "preset", "placement") if key in values] or [
            "init"
        ]
        varied = {key: value for key, value in variant.items() if key != axis}
        name = label(varied or {key: values[key] for key in whole})
        config = compose(as_typed(key, value) for key, value in completed(values).items())
        variants.setdefault(name, []).extend(replace(config, seed=seed) for seed in seeds)
    return variants


def draw_tokens(config: Config) -> Tensor:
    """The batch that a config's model sees, [SEQUENCES, context + 1]."""
    generator = torch.Generator().manual_seed(config.seed)
    return torch.randint(VOCABULARY, (SEQUENCES, config.model.context + 1), generator=generator)


# -------------------------------------------------------------------------- the law of a size


@dataclass(frozen=True)
class PowerLaw:
    """value = c N^s over depths N, or c d^s over widths d

    `slopes` are the s of the seeds, `factor` is the geometric mean of their c. `misfit` is the
    largest factor, either way, between the seeds' geometric mean at a size and the law.
    """

    slopes: tuple[float, ...]
    factor: float
    misfit: float

    @property
    def slope(self) -> float:
        return fmean(self.slopes)

    @property
    def half(self) -> float | None:
        """Half of Student's 95 % interval of the mean slope. None for one seed."""
        return half_interval(self.slopes)

    def __call__(self, size: float) -> float:
        return self.factor * size**self.slope


def fit_law(sizes: Sequence[int], values: Float[np.ndarray, "size seed"]) -> PowerLaw | None:
    """Fits log(value) on log(size) for each seed, by least squares.

    The law is None if a value has no logarithm, because it is zero or not finite.
    """
    if not ((values > 0) & np.isfinite(values)).all():
        return None
    x, y = np.log(sizes), np.log(values)
    slopes, intercepts = np.polyfit(x, y, 1)
    off = y.mean(1) - slopes.mean() * x - intercepts.mean()
    factor, misfit = np.exp([intercepts.mean(), abs(off).max()]).tolist()
    return PowerLaw(tuple(slopes.tolist()), factor, misfit)
