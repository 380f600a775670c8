"""The time of one training step: ours, our default recipe, other libraries' models of the same
sizes, and the matrix products alone. Same process, same batches, rounds interleaved; what was
measured is written whole.

    python benchmarks/step.py [--sizes A,B] [--compile] [--rounds N] [--seconds S] [--out FILE]
                              [KEY=VALUE...]

A library that is not installed is left out. litgpt stands apart from the pinned packages, since it
wants another huggingface_hub than transformers does:

    pip install --no-deps litgpt; pip install lightning jsonargparse psutil
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from contenders import Size, ours, parameters, trained, trained_alone
from peers import ACTIVATIONS, LEAN, Lean, peers
from products import recorded
from rounds import Steps, each_size, interleaved, ratios, steps_a_round
from weights import shaken

from transformer_norms.training.trainer import Trainer

SIZES = "4-128-64-12-65,6-128-128-16-512,6-384-256-8-65"
GPT2, RECIPE, COMPILED = "ours, preset=gpt2", "ours, recipe", "ours, compiled"
ONE = "ours, replicas=1"
THREADS = "trainer.threads="  # typed for the recipe, they are everyone's
PRODUCTS = "products"
PACKAGES = ("transformers", "litgpt", "x-transformers")


def main(arguments: Sequence[str] | None = None) -> int:
    typed = parser().parse_intermixed_args(arguments)
    more = {"activation": typed.activation, "packages": packages()}
    return each_size(typed, measure, table, more)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The time of one training step.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="what `recipe` is, beside its sizes")
    add("--sizes", default=SIZES, metavar="DEPTH-WIDTH-CONTEXT-BATCH-VOCABULARY,...")
    add("--activation", default=ACTIVATIONS[0], choices=ACTIVATIONS, help="of transformers' GPT-2")
    add("--compile", action="store_true", help="ours and transformers' GPT-2 compiled as well")
    add("--rounds", type=int, default=16, help="at most this many for each size")
    add("--seconds", type=float, default=40.0, help="of rounds for each size, about")
    add("--out", type=Path, metavar="FILE.json", help="every round's times, machine, versions")
    return parser


def packages() -> dict[str, str]:
    """The versions of the other libraries that are here."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def measure(size: Size, typed: argparse.Namespace) -> dict[str, Any]:
    """Every contender at one size, as the JSON holds it. Times are seconds a step, by round;
    `faster` is how many of our GPT-2's steps fit into one."""
    batches = size.batches()
    preset = ["preset=gpt2", *(text for text in typed.overrides if text.startswith(THREADS))]
    gpt2 = ours(size, preset, batches)
    shaken(gpt2.model)
    own = {GPT2: gpt2, ONE: ours(size, [*preset, "trainer.replicas=1"], batches)}
    if typed.compile:
        own[COMPILED] = ours(size, [*preset, "trainer.compile=block"], batches)
    own[RECIPE] = ours(size, typed.overrides, batches)
    others = peers(size, batches, gpt2, typed.activation, typed.compile)
    losses = the_same(gpt2, others[LEAN], batches(0)) if LEAN in others else {}
    products = recorded(partial(trained_alone, gpt2))
    steps: Steps = {name: partial(trained, trainer) for name, trainer in own.items()}
    steps |= {name: peer.train_step for name, peer in others.items()}
    steps[PRODUCTS] = products.replay
    count = steps_a_round(steps, typed.seconds / typed.rounds)
    times = interleaved(steps, count, typed.rounds, typed.seconds)
    return {
        "size": str(size),
        "parameters": {name: parameters(one.model) for name, one in (own | others).items()},
        "loss": losses,
        "products": products.counts,
        "flop": products.flop,
        "steps_a_round": count,
        "seconds": times,
        "median": {name: median(values) for name, values in times.items()},
        "faster": {name: median(ratios(times, name, GPT2)) for name in times},
        "products_share": {name: median(ratios(times, PRODUCTS, name)) for name in times},
    }


def the_same(gpt2: Trainer, theirs: Lean, batch: torch.Tensor) -> dict[str, float]:
    """As many parameters and the same loss, or there is nothing to compare."""
    counts = parameters(gpt2.model), parameters(theirs.model)
    losses = gpt2.loss(batch).item(), theirs.loss(batch).item()
    assert counts[0] == counts[1], f"{counts[0]} parameters here, {counts[1]} there"
    assert abs(losses[0] - losses[1]) < 1e-4, f"the loss is {losses[0]} here, {losses[1]} there"
    return {GPT2: losses[0], LEAN: losses[1]}


def table(result: dict[str, Any]) -> list[str]:
    """Under 80 columns."""
    times, counts = result["seconds"], result["parameters"]
    lines = [
        f"\n{result['size']}: {len(times[GPT2])} rounds of {result['steps_a_round']} steps",
        f"products: {result['flop'] / 1e9:.2f} GFLOP a step, "
        f"{result['flop'] / 1e9 / result['median'][PRODUCTS]:.0f} GFLOP/s",
        *[f"loss of {name}: {loss:.5f}" for name, loss in result["loss"].items()],
        "faster: how many of our steps, preset=gpt2, fit into one",
        f"{'':22}{'ms':>9}{'quartiles':>19}{'faster':>8}{'products':>9}{'parameters':>12}",
    ]
    for name, values in times.items():
        low, _, high = (1e3 * value for value in quantiles(values, method="inclusive"))
        faster = f"{result['faster'][name]:.2f}"
        share = "" if name == PRODUCTS else f"{result['products_share'][name]:.0%}"
        count = f"{counts[name]:,}" if name in counts else ""
        lines.append(
            f"{name:22}{1e3 * result['median'][name]:9.2f}{f'{low:.2f} to {high:.2f}':>19}"
            f"{faster:>8}{share:>9}{count:>12}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
