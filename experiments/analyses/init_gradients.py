"""Gradients and streams by block before training, and how the last gradient changes with depth.

python -m experiments.analyses.init_gradients placement=pre,post --out DIR
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from transformer_norms.analysis.command import analysis_parser, run_analysis
from transformer_norms.analysis.outcome import (
    Analysis,
    Number,
    Outcome,
    Row,
    Rows,
    View,
    set_decades,
)
from transformer_norms.analysis.untrained_models import (
    DEPTH,
    SEQUENCES,
    VOCABULARY,
    WIDTH,
    PowerLaw,
    compose_variants,
    draw_tokens,
    fit_law,
    with_defaults,
)
from transformer_norms.comparison.sweep_record import Values
from transformer_norms.config.building import build_model
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.model.connections import named_parts
from transformer_norms.model.placement import Placement
from transformer_norms.progress import Tell, tell_nobody, track
from transformer_norms.report.figures import FONT, GREY, DrawnLine, finish_lines, line_style
from transformer_norms.training.loss import CrossEntropy, ModelLoss

MLP_WIDTH = "model.mlp_width"
DEFAULTS = {
    "placement": "pre,post,sandwich,out",
    DEPTH: "2,4,8,16,32",
    "seed": "0,1,2",
    WIDTH: "64",
    "model.heads": "4",
    "model.context": "16",
}
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
SMALL_EPS = 1e-3  # compared with the mean square of 1 with which the stream begins

DIGITS = 10  # significant: the last ones of float64 depend on the number of threads
BOUNDS = {-0.5: "N^-1/2", 0.0: "N^0", None: ""}
LIMITS = (
    "One step backward from the start says how large gradients are there, not how a model trains: "
    "Adam, for one, divides by it.",
    "The tokens are random, one batch of them a seed, and what the model learns from text is not "
    "in their gradients.",
    "The intervals are over seeds. A line through a few depths is no proof of a power of N, and "
    "what it is beyond them is not measured; misfit says how far from it the depths are.",
    "Two matrices of each block are measured, and neither norms nor embeddings.",
)
LIMITS_OF_XIONG = (
    "All variants have the paper's init and shapes here: what a placement brings besides norms "
    "and skips, as DeepNorm's init, is not in this comparison. Without --xiong it is.",
)
EPILOG = f"""
Typed as for train -m: model.depth is the axis of depth, seed the seeds, every other list an axis
of variants. The defaults are {" ".join(f"{key}={value}" for key, value in DEFAULTS.items())},
and one head with --xiong. Of placements with two streams x and r, x is measured.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = analysis_parser(__doc__, "placement=pre,post", EPILOG)
    parser.add_argument("overrides", nargs="*", metavar="KEY=A,B", help="as train -m takes them")
    parser.add_argument(
        "--xiong", action="store_true",
        help="with the suppositions of Xiong et al. 2020: uniform attention, relu, square matrices",
    )  # fmt: skip
    return run_analysis(parser, arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> Outcome:
    setting = read_setting(typed.overrides, typed.xiong, tell)
    return outcome(setting, rows_of(measure_variants(setting, tell)))


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


# ---------------------------------------------------------------------------- what is measured

# The measured numbers of a block: the Frobenius norms of the gradients of the matrices by which mlp
# and attention write to the stream, in nats per token, and the mean square of the stream after the
# block. If there are two streams x and r, it is that of x; of n streams, that of all.
DOWN, OUTPUT, SQUARE = range(3)
COLUMNS = ("down", "output", "square")


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
    def law(self) -> PowerLaw | None:
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


# --------------------------------------------------------------------------------- the outcome


def rows_of(variants: Sequence[Variant]) -> Rows:
    """A row for each block of each model."""
    return [
        {
            "model": variant.name, "depth": depth, "seed": seed, "block": block,
            **{key: float(f"{numbers[n]:.{DIGITS}g}") for n, key in enumerate(COLUMNS)},
        }
        for variant in variants
        for depth, models in variant.blocks.items()
        for seed, blocks in zip(variant.seeds, models, strict=True)
        for block, numbers in enumerate(blocks, start=1)
    ]  # fmt: skip


def variants_of(rows: Rows, setting: Setting) -> list[Variant]:
    """The variants of which `rows_of` made the rows."""
    variants = []
    for name, configs in setting.variants.items():
        own = [row for row in rows if row["model"] == name]
        seeds = list(dict.fromkeys(row["seed"] for row in own))
        blocks = {
            depth: np.array([[row[key] for key in COLUMNS] for row in own if row["depth"] == depth])
            .reshape(len(seeds), depth, -1)
            for depth in dict.fromkeys(row["depth"] for row in own)
        }  # fmt: skip
        proven = bound(configs[0]) if setting.xiong else None
        variants.append(Variant(name, seeds, blocks, proven))
    return variants


def outcome(setting: Setting, rows: Rows) -> Outcome:
    """The table of slopes, and the figure."""
    first, last = setting.depths[0], setting.depths[-1]
    variants = variants_of(rows, setting)
    headings = ("bound", "slope", "misfit", f"N={first}", f"N={last}", "stream")
    view = View(
        lambda rows: [law_row(variant, first, last) for variant in variants],
        ("model",),
        {heading: Number(heading) for heading in headings},
    )
    analysis = Analysis(
        "init_gradients",
        "Gradients and streams before training",
        views=(view,),
        panels=panels(variants, setting.depths),
        limits=(*LIMITS, *(LIMITS_OF_XIONG if setting.xiong else ())),
        size=lambda rows: (SIZE[0], max(SIZE[1], INCHES_PER_NAME * len(variants) + 1)),
    )
    depths, seeds = (", ".join(map(str, each)) for each in (setting.depths, setting.seeds))
    about = (
        f"Models as they start, in float64, of N = {depths} blocks, seeds {seeds}; one batch of "
        f"{SEQUENCES} sequences of uniformly drawn tokens, {VOCABULARY} of them in the vocabulary; "
        "the gradient is that of the mean cross-entropy in nats per token. The keys: "
        + " ".join(setting.keys)
    )
    return Outcome(analysis, rows, "", [about], [*notes(setting, variants), *setting.warnings])


def law_row(variant: Variant, first: int, last: int) -> Row:
    law = variant.law
    half = "" if law is None or law.half is None else f" ± {law.half:.2f}"
    gradients = {
        f"N={n}": f"{geometric_mean(variant.blocks[n][:, -1, DOWN]):.3g}" for n in (first, last)
    }
    stream = variant.blocks[last][:, -1, SQUARE].mean()
    bounds = " ({:g} to {:g})".format(*stream_bounds(last)) if variant.bound == -0.5 else ""
    return {
        "model": variant.name,
        "bound": BOUNDS[variant.bound],
        "slope": f"{law.slope:+.2f}{half}" if law else "none",
        "misfit": f"{law.misfit:.2f}" if law else "",
        **gradients,
        "stream": f"{stream:.3g}{bounds}",
    }


def geometric_mean(values: np.ndarray, axis: int | None = None) -> Any:
    """The geometric mean, which is 0 if a value is 0."""
    with np.errstate(divide="ignore"):
        return np.exp(np.log(values).mean(axis))


def notes(setting: Setting, variants: Sequence[Variant]) -> list[str]:
    """Sentences that explain the table's columns."""
    first, last = setting.depths[0], setting.depths[-1]
    lines = [
        f"N={first}, N={last}: Frobenius norm of dL/dW_down in the last of N blocks, geometric "
        "mean of the seeds. slope: of its logarithm on log N, least squares for each seed; their "
        "mean and Student's 95 % interval. misfit: the largest factor between a depth's gradient "
        f"and the line. stream: mean square after block {last} of {last}, mean of the seeds."
    ]
    if setting.xiong:
        lines.append(
            "bound: the power of N beyond which the gradient does not grow, proven as are the two "
            "bounds of pre's stream by Xiong et al. 2020 (arXiv:2002.04745), whose suppositions "
            "the models meet as far as a placement lets them."
        )
    else:
        lines.append(
            "Xiong et al. 2020 (arXiv:2002.04745) prove bounds of pre and post under suppositions "
            "that these models do not meet; --xiong makes them."
        )
    if any(variant.law is None for variant in variants):
        lines.append("none: a gradient is zero or not finite, and has no logarithm.")
    dual = [
        name
        for name, configs in setting.variants.items()
        if Placement(**configs[0].placement).topology == "dual"
    ]
    if dual:
        lines.append(f"Of the two streams of {', '.join(dual)}, x is measured, and not r.")
    return lines


# ------------------------------------------------------------------------------------ the figure

SIZE, INCHES_PER_NAME = (10.0, 3.4), 0.15
ASIDE = 0.05  # of an octave, between the dots of neighbouring variants
OFF = 1.2  # times the outermost dot, where a reference line runs
DOT: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 2, "markeredgewidth": 0}
BELOW: dict[str, Any] = {  # a word under the right end of what it names
    "xytext": (0, -2), "textcoords": "offset points", "ha": "right", "va": "top",
    "color": GREY, "fontsize": FONT - 1,
}  # fmt: skip
End = tuple[float, float]


def panels(variants: Sequence[Variant], depths: Sequence[int]) -> Sequence[Callable[..., None]]:
    """Three logarithmic panels: each seed is a dot, the mean of the seeds a line.

    They show the last gradient by depth, and gradients and streams by block.
    """
    deepest = max(depths)

    def draw(axes: Any, rows: Rows, lines: Callable[..., list[End]], x: str, y: str) -> None:
        axes.set_yscale("log", nonpositive="mask")
        ends = lines(axes, variants)
        _name_lines(axes, [variant.name for variant in variants], ends)
        set_decades(axes)
        axes.set(xlabel=x, ylabel=y)

    by_block = partial(_draw_by_block, depth=deepest)
    gradients = partial(_draw_by_depth, depths=depths)
    down = partial(by_block, column=DOWN, mean=geometric_mean)
    square = partial(by_block, column=SQUARE, mean=np.mean)
    block, weight = f"block of {deepest}", "|dL/dW_down| in the"
    return (
        partial(draw, lines=gradients, x="depth N, blocks", y=f"{weight} last block"),
        partial(draw, lines=down, x=block, y=f"{weight} block"),
        partial(draw, lines=square, x=block, y="mean square of the stream after the block"),
    )


def _draw_by_depth(axes: Any, variants: Sequence[Variant], depths: Sequence[int]) -> list[End]:
    """The last gradient by depth. The dots of neighbouring variants stand a little apart."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, [str(depth) for depth in depths], minor=False)
    axes.xaxis.minorticks_off()
    ends = []
    for place, variant in enumerate(variants):
        colour, dashes = line_style(place)
        last, law = variant.last, variant.law
        aside = 2 ** (ASIDE * (place - (len(variants) - 1) / 2))
        x = np.repeat([depth * aside for depth in variant.blocks], len(variant.seeds))
        axes.plot(x, last.ravel(), color=colour, alpha=0.7, **DOT)
        values = [law(depth) if law else 0.0 for depth in depths]
        axes.plot(depths, values, color=colour, linestyle=dashes, linewidth=1.2)
        ends.append((float(depths[-1]), values[-1]))
    dots = [
        (depth, down)
        for variant in variants
        for depth, seeds in zip(variant.blocks, variant.last, strict=True)
        for down in seeds
        if 0 < down < np.inf
    ]
    if dots:  # Xiong's two slopes: 0 above all dots, -1/2 below them
        top = OFF * max(y for _, y in dots)
        low = min(y * n**0.5 for n, y in dots) / OFF
        for label, line in (("0", [top for _ in depths]), ("-1/2", [low / n**0.5 for n in depths])):
            axes.plot(depths, line, color=GREY, linewidth=0.6, zorder=1)
            axes.annotate(f"slope {label}", (depths[-1], line[-1]), **BELOW)
    return ends


def _draw_by_block(
    axes: Any, variants: Sequence[Variant], depth: int, column: int, mean: Callable[..., Any]
) -> list[End]:
    """One of the measured numbers in the blocks of the models of one depth."""
    ends, blocks = [], range(1, depth + 1)
    for place, variant in enumerate(variants):
        colour, dashes = line_style(place)
        numbers = variant.blocks[depth][..., column]
        axes.plot(np.tile(blocks, len(numbers)), numbers.ravel(), color=colour, alpha=0.25,
                  rasterized=True, **DOT)  # fmt: skip
        line = mean(numbers, axis=0)
        axes.plot(blocks, line, color=colour, linestyle=dashes, linewidth=1.2)
        ends.append((float(depth), line[-1]))
    axes.set_xticks(sorted({1, *(round(depth * part / 4) for part in range(1, 5))}))
    if column == SQUARE and any(variant.bound == -0.5 for variant in variants):
        _draw_bounds(axes, depth)
    return ends


def _draw_bounds(axes: Any, depth: int) -> None:
    blocks = list(range(1, depth + 1))
    low, high = zip(*map(stream_bounds, blocks), strict=True)
    axes.fill_between(blocks, low, high, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    axes.annotate("bounds of pre", (depth, low[-1]), **BELOW)


def _name_lines(axes: Any, names: Sequence[str], ends: Sequence[End]) -> None:
    """Names each line at its end. `finish_lines` gets logarithms on a linear axis."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    beside = axes.twinx()
    beside.set_ylim(np.log10(low), np.log10(high))
    beside.set_axis_off()
    logs = [(x, np.log10(y) if 0 < y < np.inf else np.log10(low)) for x, y in ends]
    finish_lines(
        beside, [DrawnLine(n, *one) for n, one in enumerate(zip(names, logs, strict=True))]
    )


if __name__ == "__main__":
    sys.exit(main())
