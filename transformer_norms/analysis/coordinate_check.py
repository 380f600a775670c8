"""How much a few steps of training change what a model computes, at each width."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from transformer_norms.analysis.command import (
    analysis_parser,
    paragraph,
    run_analysis,
    set_decades,
    svg_bytes,
)
from transformer_norms.analysis.init_measures import (
    VOCABULARY,
    WIDTH,
    Law,
    compose_variants,
    draw_tokens,
    fit_law,
    with_defaults,
)
from transformer_norms.commands.terminal import Parser
from transformer_norms.comparison.sweep_record import Values
from transformer_norms.config.building import build_model
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell, tell_nobody, track
from transformer_norms.report.figures import FONT, line_style, pyplot, style_axes
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import csv_table, markdown_list, markdown_table, text_table
from transformer_norms.training.loss import CrossEntropy, ModelLoss
from transformer_norms.training.optimizer import OPTIMIZERS

TITLE = "What a few steps change, by width"
HEADS, HEAD_DIM = "model.heads", 32
DEFAULTS = {
    "init": "auto,mup",
    WIDTH: "64,128,256,512",
    "seed": "0,1,2",
    "model.depth": "2",
    "model.context": "64",
    "optimizer.lr": "4e-3",
}
UNREAD = (
    "config data tokenizer loss schedule trainer tracking study again continue_from launcher "
    "parallel sweep hydra"
).split()
# What is compared before and after: the outputs of all attentions, of all mlps, the states that the
# head reads, and the logits.
PARTS = ("attention", "mlp", "states", "logits")
DIGITS = 6  # significant: later ones depend on the number of threads
LIMITS = (
    "One batch of random tokens, seen again at every step: what is learned from text is another "
    "change.",
    "A few steps at a constant rate. A rule that keeps them alike at all widths need not be the "
    "one that ends lowest.",
)
EPILOG = f"""
Typed as for train -m: {WIDTH} is the axis of width, seed the seeds, every other list an axis of
variants. The defaults are {" ".join(f"{key}={value}" for key, value in DEFAULTS.items())}. Heads
have {HEAD_DIM} features unless {HEADS} is typed. The last line on stdout is JSON.
"""


@dataclass(frozen=True)
class Variant:
    """`changes` are root mean squares over all coordinates of what each of PARTS computes after
    `steps` steps minus what it computed before."""

    name: str
    widths: Sequence[int]
    changes: Mapping[str, Float[np.ndarray, "width seed"]]

    def law(self, part: str) -> Law | None:
        """The law of a part's change over widths."""
        return fit_law(self.widths, self.changes[part])


def make_parser() -> Parser:
    parser = analysis_parser(
        "coordinate_check", __doc__, "also write .csv, .md and .svg", "init=scaled,mup", EPILOG
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=A,B", help="as train -m takes them")
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps (%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> tuple[str, dict[str, Any]]:
    if not 1 <= typed.steps <= 1000:
        raise ConfigError(f"--steps {typed.steps}: is not allowed; it is 1 to 1000")
    keys, configs = read_variants(typed.overrides, tell)
    variants = measure(configs, typed.steps, tell)
    made = files(variants, keys, typed.steps)
    paths = write_files(typed.out, made) if typed.out else []
    notes = "\n".join(map(paragraph, notes_on(variants, typed.steps)))
    return f"{TITLE}\n\n{text_table(rows(variants))}\n{notes}\n", {"files": paths}


def read_variants(
    arguments: Sequence[str], tell: Tell = tell_nobody
) -> tuple[tuple[str, ...], dict[str, list[Config]]]:
    """Returns the keys, defaults included, and each variant's configs, one per width and seed."""
    for text in arguments:
        key = text.partition("=")[0]
        if key == "model" or key.split(".")[0] in UNREAD:
            raise ConfigError(
                f"{text}: is not read here, where a model learns one batch at one rate; type "
                "keys of a model or its optimizer, such as init=mup or optimizer.lr=1e-3"
            )
    keys = with_defaults(arguments, DEFAULTS)

    def headed(values: Values) -> Values:
        return {HEADS: max(1, values[WIDTH] // HEAD_DIM), **values}

    return keys, compose_variants(keys, WIDTH, headed, tell)


# ----------------------------------------------------------------------------- what is measured


def measure(
    variants: Mapping[str, Sequence[Config]], steps: int, tell: Tell = tell_nobody
) -> list[Variant]:
    """Trains every model for `steps` steps on one batch, and measures what that changed."""
    all_configs = [(name, config) for name, configs in variants.items() for config in configs]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for name, config in track(tell, "training models {:.0f}/{:.0f}", all_configs):
        found[name].append(measure_changes(config, steps))
    measured = []
    for name, configs in variants.items():
        widths = list(dict.fromkeys(config.model.width for config in configs))
        changes = {
            part: np.array([one[part] for one in found[name]]).reshape(len(widths), -1)
            for part in PARTS
        }
        measured.append(Variant(name, widths, changes))
    return measured


def measure_changes(config: Config, steps: int) -> dict[str, float]:
    """Returns the change of each of PARTS after `steps` steps at the config's rate, in float64."""
    model, tokens = build_model(config, VOCABULARY).double(), draw_tokens(config)
    made = OPTIMIZERS.maker(config.optimizer)(model)
    optimizers: list[Optimizer] = [made] if isinstance(made, Optimizer) else made
    loss = ModelLoss(model, CrossEntropy(), device="cpu", precision="fp64")
    before = compute_parts(model, tokens[:, :-1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # of dropout
        for _ in range(steps):
            model.zero_grad()
            loss(tokens).backward()
            for optimizer in optimizers:
                optimizer.step()
            model.constrain(model)
    after = compute_parts(model, tokens[:, :-1])
    return {part: _rms(after[part] - before[part]) for part in PARTS}


@torch.no_grad()
def compute_parts(model: Transformer, tokens: Tensor) -> dict[str, Tensor]:
    """Returns what each of PARTS computes, flat: of all blocks one after the other."""
    model.eval()
    with _listening(model) as outputs:
        states = model.states(tokens)
    parts = {name: torch.cat(tensors) for name, tensors in outputs.items()}
    logits = model.logits(states)
    model.train()
    return {**parts, "states": states.flatten(), "logits": logits.flatten()}


@contextmanager
def _listening(model: Transformer) -> Iterator[dict[str, list[Tensor]]]:
    """Collects the outputs of every attention and every mlp."""
    outputs: dict[str, list[Tensor]] = {"attention": [], "mlp": []}
    blocks: list[Any] = list(model.blocks)
    handles = [
        getattr(block, part).f.register_forward_hook(
            lambda _module, _inputs, output, part=part: outputs[part].append(output.flatten())
        )
        for block, part in product(blocks, outputs)
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _rms(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


# ------------------------------------------------------------------------------ what is written


def rows(variants: Sequence[Variant]) -> list[list[str]]:
    """The table: a heading, and a row for each variant with the slope of each part."""
    return [
        ["variant", *PARTS],
        *([v.name, *(_slope(v.law(part)) for part in PARTS)] for v in variants),
    ]


def _slope(law: Law | None) -> str:
    if law is None:
        return "none"
    return f"{law.slope:+.2f}" + ("" if law.half is None else f" ± {law.half:.2f}")


def notes_on(variants: Sequence[Variant], steps: int) -> list[str]:
    """Sentences that explain the table."""
    widths = ", ".join(map(str, variants[0].widths))
    lines = [
        "The change of what attention, mlp, the states before the head and the logits compute, "
        f"root mean square over coordinates, by {steps} steps. The table has the power s of its "
        f"law c d^s over widths {widths}: least squares for each seed, their mean and Student's "
        "95 % interval.",
        "0: one rate changes all widths alike. Above 0: a wide model is changed more, so that it "
        "wants a smaller rate.",
    ]
    if any(variant.law(part) is None for variant in variants for part in PARTS):
        lines.append("none: a change is zero or not finite, and has no logarithm.")
    return lines


def files(variants: Sequence[Variant], keys: Sequence[str], steps: int) -> dict[str, bytes]:
    """The contents of coordinate_check.csv, .md and .svg."""
    page = [
        f"# {TITLE}",
        f"Models in float64, {steps} steps on one batch of random tokens. The keys:",
        markdown_list(keys),
        markdown_table(rows(variants)),
        markdown_list(notes_on(variants, steps)),
        "![by width](coordinate_check.svg)",
        "## What this does not show",
        markdown_list(LIMITS),
    ]
    return {
        "coordinate_check.csv": csv_file(variants),
        "coordinate_check.md": ("\n\n".join(page) + "\n").encode(),
        "coordinate_check.svg": figure(variants),
    }


def csv_file(variants: Sequence[Variant]) -> bytes:
    """A row for each model."""
    lines = [
        [variant.name, width, seed, *(f"{variant.changes[p][i, seed]:.{DIGITS}g}" for p in PARTS)]
        for variant in variants
        for i, width in enumerate(variant.widths)
        for seed in range(variant.changes["logits"].shape[1])
    ]
    return csv_table([["variant", "width", "seed_number", *PARTS], *lines])


def figure(variants: Sequence[Variant]) -> bytes:
    """A logarithmic panel for each part as SVG: each seed is a dot, their geometric mean a line."""
    plt = pyplot()
    drawing, panels = plt.subplots(1, len(PARTS), figsize=(10.0, 3.2), layout="constrained")
    for axes, part in zip(panels, PARTS, strict=True):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", nonpositive="mask")
        for place, variant in enumerate(variants):
            colour, dashes = line_style(place)
            # Processors differ in the last digits, and the same figure is to be the same bytes.
            changes = np.vectorize(lambda value: float(f"{value:.4g}"))(variant.changes[part])
            x = np.repeat(variant.widths, changes.shape[1])
            axes.plot(x, changes.ravel(), marker="o", linestyle="", markersize=2, color=colour)
            with np.errstate(divide="ignore"):
                mean = np.exp(np.log(changes).mean(1))
            axes.plot(variant.widths, mean, color=colour, linestyle=dashes, linewidth=1.2,
                      label=variant.name)  # fmt: skip
        axes.set_xticks(variants[0].widths, [str(w) for w in variants[0].widths], minor=False)
        axes.xaxis.minorticks_off()
        axes.set_title(part, fontsize=FONT)
        axes.set(xlabel="width d")
        set_decades(axes)
        style_axes(axes)
    panels[0].set(ylabel="change, rms over coordinates")
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center",
                   ncols=2, fontsize=FONT - 1, frameon=False)  # fmt: skip
    return svg_bytes(drawing)


if __name__ == "__main__":
    sys.exit(main())
