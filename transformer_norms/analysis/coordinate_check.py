"""How much a few steps of training change what a model computes, at each width."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transformer_norms.analysis.command import analysis_parser, run_analysis
from transformer_norms.analysis.outcome import Analysis, Lines, Number, Outcome, Rows, View
from transformer_norms.analysis.untrained_models import (
    VOCABULARY,
    WIDTH,
    PowerLaw,
    compose_variants,
    draw_tokens,
    fit_law,
    with_defaults,
)
from transformer_norms.commands.terminal import Parser, number_from
from transformer_norms.comparison.sweep_record import Values, grouped
from transformer_norms.config.building import build_model, build_optimizers
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Tell, tell_nobody, track
from transformer_norms.training.loss import CrossEntropy, ModelLoss

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
EPILOG = f"""
Typed as for train -m: {WIDTH} is the axis of width, seed the seeds, every other list an axis of
variants. The defaults are {" ".join(f"{key}={value}" for key, value in DEFAULTS.items())}. Heads
have {HEAD_DIM} features unless {HEADS} is typed.
"""


def make_parser() -> Parser:
    parser = analysis_parser(__doc__, "init=scaled,mup", EPILOG, "coordinate_check")
    parser.add_argument("overrides", nargs="*", metavar="KEY=A,B", help="as train -m takes them")
    steps = number_from(1, 1000)
    parser.add_argument("--steps", type=steps, default=5, help="optimizer steps (%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    return run_analysis(make_parser(), arguments, analyse)


def analyse(typed: Namespace, tell: Tell) -> Outcome:
    keys, configs = read_variants(typed.overrides, tell)
    return outcome(measure(configs, typed.steps, tell), typed.steps, keys)


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


# ------------------------------------------------------------------------------ the measurement


def measure(variants: Mapping[str, Sequence[Config]], steps: int, tell: Tell = tell_nobody) -> Rows:
    """Trains every model for `steps` steps on one batch. Returns a row for each, with the root mean
    square, over all coordinates, of what each of PARTS computes after less before."""
    models = [(name, config) for name, configs in variants.items() for config in configs]
    rows = []
    for name, config in track(tell, "training models {:.0f}/{:.0f}", models):
        changes = measure_changes(config, steps)
        numbers = {part: float(f"{changes[part]:.{DIGITS}g}") for part in PARTS}
        rows.append({"model": name, "width": config.model.width, "seed": config.seed, **numbers})
    return rows


def measure_changes(config: Config, steps: int) -> dict[str, float]:
    """Returns the change of each of PARTS after `steps` steps at the config's rate, in float64."""
    model, tokens = build_model(config, VOCABULARY).double(), draw_tokens(config)
    optimizers = build_optimizers(config, model)
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
    changes = {part: after[part] - before[part] for part in PARTS}
    return {part: change.square().mean().sqrt().item() for part, change in changes.items()}


@torch.no_grad()
def compute_parts(model: Transformer, tokens: Tensor) -> dict[str, Tensor]:
    """Returns what each of PARTS computes, flat: of all blocks one after the other."""
    model.eval()
    outputs: dict[str, list[Tensor]] = {"attention": [], "mlp": []}

    def keep(part: str, _module: Any, _inputs: Any, y: Tensor) -> None:
        outputs[part].append(y.flatten())

    hooks = [
        getattr(block, part).f.register_forward_hook(partial(keep, part))
        for block, part in product(model.blocks, outputs)
    ]
    states = model.states(tokens)
    for hook in hooks:
        hook.remove()
    parts = {name: torch.cat(tensors) for name, tensors in outputs.items()}
    logits = model.logits(states)
    model.train()
    return {**parts, "states": states.flatten(), "logits": logits.flatten()}


# ------------------------------------------------------------------------------- the outcome


def law_of(rows: Rows, name: str, part: str) -> PowerLaw | None:
    """The law of a part's change over widths."""
    own = [row for row in rows if row["model"] == name]
    by_width = grouped(own, lambda row: row["width"])
    changes = np.array([[row[part] for row in seeds] for seeds in by_width])
    return fit_law([seeds[0]["width"] for seeds in by_width], changes)


def slopes(rows: Rows) -> Rows:
    """For each variant the power of the width by which a part's change grows."""
    return [
        {"model": name, **{part: _slope(law_of(rows, name, part)) for part in PARTS}}
        for name in dict.fromkeys(row["model"] for row in rows)
    ]


def _slope(law: PowerLaw | None) -> str:
    if law is None:
        return "none"
    return f"{law.slope:+.2f}" + ("" if law.half is None else f" ± {law.half:.2f}")


ANALYSIS = Analysis(
    "coordinate_check",
    "What a few steps change, by width",
    views=(View(slopes, ("model",), {part: Number(part) for part in PARTS}),),
    panels=[
        Lines(
            "model", "width", part, "width d", f"change of {part}, rms", "xy", mean=geometric_mean
        )
        for part in PARTS
    ],
    limits=(
        "One batch of random tokens, seen again at every step: what is learned from text is "
        "another change.",
        "A few steps at a constant rate. A rule that keeps them alike at all widths need not be "
        "the one that ends lowest.",
    ),
    size=lambda rows: (10.0, 3.2),
)


def outcome(rows: Rows, steps: int, keys: Sequence[str] = ()) -> Outcome:
    """The rows of `measure`, and the sentences that explain the table."""
    widths = ", ".join(map(str, dict.fromkeys(row["width"] for row in rows)))
    remarks = [
        "The change of what attention, mlp, the states before the head and the logits compute, "
        f"root mean square over coordinates, by {steps} steps. The table has the power s of its "
        f"law c d^s over widths {widths}: least squares for each seed, their mean and Student's "
        "95 % interval.",
        "0: one rate changes all widths alike. Above 0: a wide model is changed more, so that it "
        "wants a smaller rate.",
    ]
    if any("none" in row.values() for row in slopes(rows)):
        remarks.append("none: a change is zero or not finite, and has no logarithm.")
    about = f"Models in float64, one batch of random tokens. The keys: {' '.join(keys)}"
    return Outcome(ANALYSIS, rows, "", [about] * bool(keys), remarks)
