"""Models before training: which are asked for, what each block has, and how depth changes it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.comparison.statistics import half_interval
from transformer_norms.comparison.sweep_record import Values, label
from transformer_norms.config.building import build_model
from transformer_norms.config.compose import check_names, compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.model.connections import named_parts
from transformer_norms.model.placement import Placement
from transformer_norms.progress import Tell, tell_nobody, track
from transformer_norms.sweep.question import read_request
from transformer_norms.training.loss import CrossEntropy, ModelLoss

DEPTH, WIDTH, MLP_WIDTH = "model.depth", "model.width", "model.mlp_width"
DEFAULTS = {
    "placement": "pre,post,sandwich,out",
    DEPTH: "2,4,8,16,32",
    "seed": "0,1,2",
    WIDTH: "64",
    "model.heads": "4",
    "model.context": "16",
}
TYPICAL = {DEPTH: "2,4,8", WIDTH: "64,128,256"}
# Xiong et al. 2020 suppose attention to be uniform, as it is where queries and keys are zero, and
# the stream to enter with mean square 1.
XIONG = {
    "mlp": "relu",
    MLP_WIDTH: WIDTH,
    "init": "xavier",
    "init.std": "{embedding:1,head:'1/sqrt(d)',query:0,key:0}",
    "position": "none",
    "embed": "none",
    "architecture.tied": "false",
    "architecture.embed_scale": "none",
    "model.kv_heads": "auto",
    "model.head_dim": "auto",
    "model.dropout": "0",
}
UNREAD = (
    "config data tokenizer optimizer schedule trainer tracking study again continue_from launcher "
    "parallel sweep hydra"
).split()
VOCABULARY = 64
SEQUENCES = 4  # each of a model's context and one token more
SMALL_EPS = 1e-3  # beside the mean square of 1 with which the stream begins


# ------------------------------------------------------------------------------ what is asked


@dataclass(frozen=True)
class Setting:
    """The models to measure: for each variant's name one config per depth and seed.

    `keys` are the typed keys and the defaults, as one would type them.
    """

    keys: tuple[str, ...]
    variants: Mapping[str, Sequence[Config]]
    xiong: bool

    @property
    def configs(self) -> list[tuple[str, Config]]:
        return [(name, config) for name, configs in self.variants.items() for config in configs]

    @property
    def depths(self) -> list[int]:
        return sorted({config.model.depth for _, config in self.configs})

    @property
    def seeds(self) -> list[int]:
        return sorted({config.seed for _, config in self.configs})

    @property
    def warnings(self) -> list[str]:
        """Each warning once, with the first variant that has it."""
        lines: dict[str, str] = {}
        for name, config in self.configs:
            for warning in config.warnings:
                lines.setdefault(warning, f"{warning} (in {name})")
        return list(lines.values())


def read_setting(
    arguments: Sequence[str], xiong: bool = False, tell: Tell = tell_nobody
) -> Setting:
    """Composes every model that is asked for, before any is measured.

    The arguments are KEY=A,B as `train.py -m` takes them. Raises ConfigError, one line, for a key
    that cannot be, or that contradicts Xiong's suppositions.
    """
    for text in arguments:
        key = text.partition("=")[0]
        if key == "model" or key.split(".")[0] in UNREAD:
            raise ConfigError(
                f"{text}: is not read here, where nothing is trained and sizes are typed one by "
                "one; type keys of a model, such as norm=layernorm or model.width=128"
            )
        for own, value in XIONG.items() if xiong else ():
            if key == own or key.startswith(f"{own}."):
                raise ConfigError(f"{text}: --xiong supposes {own}={value}; leave one of them out")
    defaults = {**DEFAULTS, **({**XIONG, "model.heads": "1"} if xiong else {})}
    if any(text.startswith("preset=") for text in arguments):
        del defaults["placement"]
    square = f"{MLP_WIDTH}={WIDTH}"
    keys = with_defaults(arguments, defaults)

    def squared(values: Values) -> Values:
        return {**values, MLP_WIDTH: values[WIDTH]} if xiong else values

    read = [text for text in keys if text != square]
    return Setting(keys, compose_variants(read, DEPTH, squared, tell), xiong)


def with_defaults(arguments: Sequence[str], defaults: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the defaults that are not typed, as one would type them, and what is typed."""
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
    models = [(name, completed(values), seeds) for name, values, seeds in _models(keys, axis)]
    variants: dict[str, list[Config]] = {name: [] for name, _, _ in models}
    for name, values, seeds in track(tell, "composing models {:.0f}/{:.0f}", models):
        try:
            config = compose(as_typed(key, value) for key, value in values.items())
        except ConfigError as error:
            raise ConfigError(f"{error} (in {name})") from None
        variants[name] += [replace(config, seed=seed) for seed in seeds]
    return variants


def _models(keys: Iterable[str], axis: str) -> Iterator[tuple[str, Values, Sequence[int]]]:
    """A variant's name, the keys of one of its models, and the seeds, for each value of `axis`."""
    question = read_request(keys).question
    vary = dict(question.vary)
    if axis not in vary:
        typed, short = as_typed(axis, question.fixed[axis]), axis.rpartition(".")[2]
        raise ConfigError(
            f"{typed}: a slope wants 2 {short}s or more, such as {axis}={TYPICAL[axis]}"
        )
    numbers, seeds = vary.pop(axis), question.first_seeds
    variants = replace(question, vary=vary, baseline={}).variants
    pairs = [pair for values in (question.fixed, *variants) for pair in values.items()]
    check_names(dict.fromkeys(as_typed(key, value) for key, value in pairs))
    for variant in variants:
        values = {**question.fixed, **variant}
        whole: list[str] = [key for key in ("recipe", "preset", "placement") if key in values] or [
            "init"
        ]
        named = variant or {key: values[key] for key in whole}
        for number in numbers:
            yield label(named), {**values, axis: number, "seed": seeds[0]}, seeds


# -------------------------------------------------------------------------- the law of a size


@dataclass(frozen=True)
class Law:
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


def fit_law(sizes: Sequence[int], values: Float[np.ndarray, "size seed"]) -> Law | None:
    """Fits log(value) on log(size) for each seed, by least squares.

    The law is None if a value has no logarithm, because it is zero or not finite.
    """
    if not ((values > 0) & np.isfinite(values)).all():
        return None
    x, y = np.log(sizes), np.log(values)
    slopes, intercepts = np.polyfit(x, y, 1)
    off = y.mean(1) - slopes.mean() * x - intercepts.mean()
    factor, misfit = np.exp([intercepts.mean(), abs(off).max()]).tolist()
    return Law(tuple(slopes.tolist()), factor, misfit)


# ---------------------------------------------------------------------------- what is measured

# The measured numbers of a block: the Frobenius norms of the gradients of the matrices by which mlp
# and attention write to the stream, in nats per token, and the mean square of the stream after the
# block. If there are two streams x and r, it is that of x; of n streams, that of all.
DOWN, OUTPUT, SQUARE = range(3)


@dataclass(frozen=True)
class Variant:
    """The numbers of every block of one variant's models by depth, and the power of N that bounds
    the gradient in the last block."""

    name: str
    seeds: Sequence[int]
    blocks: Mapping[int, Float[np.ndarray, "seed block 3"]]
    bound: float | None

    @property
    def last(self) -> Float[np.ndarray, "depth seed"]:
        """|dL/dW_down| in the last block."""
        return np.stack([numbers[:, -1, DOWN] for numbers in self.blocks.values()])

    @property
    def law(self) -> Law | None:
        """The law of |dL/dW_down| in the last block."""
        return fit_law([*self.blocks], self.last)


def measure_variants(setting: Setting, tell: Tell = tell_nobody) -> list[Variant]:
    """Measures every model, and adds to each variant the bound that is proven for it."""
    models: dict[str, dict[int, list[Any]]] = {}
    for name, config in track(tell, "measuring models {:.0f}/{:.0f}", setting.configs):
        depths = models.setdefault(name, {})
        depths.setdefault(config.model.depth, []).append(_measure_blocks(config))
    return [
        Variant(
            name,
            list(dict.fromkeys(config.seed for config in configs)),
            {depth: np.array(blocks) for depth, blocks in models[name].items()},
            bound(configs[0]) if setting.xiong else None,
        )
        for name, configs in setting.variants.items()
    ]


def _measure_blocks(config: Config) -> list[tuple[float, float, float]]:
    """The numbers of each block, in float64, from one batch forward and backward.

    The config's seed draws the tokens, uniformly, and the dropout.
    """
    model = build_model(config, VOCABULARY).double()
    squares: list[float] = []

    def through(block: nn.Module, *inputs: Any) -> Any:
        streams = block(*inputs)
        x = next(iter(named_parts(block, streams).values()))
        squares.append(x.detach().square().mean().item())
        return streams

    model.through = through
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        loss = ModelLoss(model, CrossEntropy(), device="cpu", precision="fp64")(draw_tokens(config))
    blocks: list[Any] = list(model.blocks)
    weights = [(block.mlp.f.down.weight, block.attention.f.output.weight) for block in blocks]
    gradients = torch.autograd.grad(loss, [weight for pair in weights for weight in pair])
    norms = [gradient.norm().item() for gradient in gradients]
    return list(zip(norms[::2], norms[1::2], squares, strict=True))


def draw_tokens(config: Config) -> Tensor:
    """The batch that a config's model sees, [SEQUENCES, context + 1]."""
    generator = torch.Generator().manual_seed(config.seed)
    return torch.randint(VOCABULARY, (SEQUENCES, config.model.context + 1), generator=generator)


def bound(config: Config) -> float | None:
    """The power of N beyond which the last gradient does not grow.

    Xiong et al. 2020 (arXiv:2002.04745) prove it under their suppositions: post O(d sqrt(ln d)),
    and pre with a norm at the end O(d sqrt(ln d / N)). Their norm is LayerNorm; that the bound
    holds for RMSNorm too is our reading.
    """
    placement, norm = Placement(**config.placement), config.norm
    small = norm.type in ("layernorm", "rmsnorm") and norm.eps <= SMALL_EPS
    if placement.topology != "serial" or not small:
        return None
    pre, post = (
        Placement(source="", equation=equation).plans(0, 1)["mlp"]
        for equation in ("x + f(norm(x))", "norm(x + f(x))")
    )
    plans = [plan for _, plan in placement.everywhere()]
    if all(plan == post for plan in plans):
        return 0.0
    normed = all(plan == pre for plan in plans) and config.final_norm == "norm"
    return -0.5 if normed else None


def stream_bounds(block: int) -> tuple[float, float]:
    """The bounds of the mean square of pre's stream after block l, from 1, as Xiong et al. prove.

    (1 + l/2) d <= E|x_l|^2 <= (1 + 3l/2) d
    """
    return 1 + block / 2, 1 + 3 * block / 2
