"""The time of one training step: ours, our default recipe, transformers' GPT-2, and the matrix
products alone. Same process, same batches, rounds interleaved; what was measured is written whole.

    python benchmarks/step.py [--sizes A,B] [--rounds N] [--seconds S] [--out FILE] [KEY=VALUE...]
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from contenders import AsDocumented, Size, Theirs, copied, ours, shaken
from products import recorded

from transformer_norms import machine
from transformer_norms.errors import ConfigError

SIZES = "4-128-64-12-65,6-128-128-16-512,6-384-256-8-65"
GPT2, RECIPE, PRODUCTS = "ours, preset=gpt2", "ours, recipe", "products"
THEIRS, DOCUMENTED = "transformers, lean", "transformers"
# The same function: several operators, which is what GPT2Config sets; and PyTorch's single one.
ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")
ROTATION = 5  # rounds until each contender has stood at each place
WARM = 3  # steps before any is timed: allocations, kernels' choices, optimizer state
Steps = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    typed = parser().parse_intermixed_args(arguments)
    return each_size(typed, measure, table, {"activation": typed.activation})


Measured = dict[str, Any]  # of one size, as the JSON holds it


def each_size(
    typed: argparse.Namespace,
    measure: Callable[[Size, argparse.Namespace], Measured],
    table: Callable[[Measured], list[str]],
    more: Measured,
) -> int:
    """Measures every size that was typed, shows it, and writes it all with `more`; an exit code."""
    if typed.rounds < ROTATION:
        print(f"--rounds {typed.rounds}: at least {ROTATION} are needed", file=sys.stderr)
        return 2
    if typed.out and not typed.out.parent.is_dir():
        print(f"--out {typed.out}: there is no folder {typed.out.parent}", file=sys.stderr)
        return 2
    try:
        results = []
        for size in [Size.read(text) for text in typed.sizes.split(",")]:
            results.append(measure(size, typed))
            print("\n".join(table(results[-1])), flush=True)
            gc.collect()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if typed.out:
        record = surroundings() | {"sizes": results, "overrides": typed.overrides, **more}
        typed.out.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The time of one training step.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="what `recipe` is, beside its sizes")
    add("--sizes", default=SIZES, metavar="DEPTH-WIDTH-CONTEXT-BATCH-VOCABULARY,...")
    add("--activation", default=ACTIVATIONS[0], choices=ACTIVATIONS, help="of transformers' GPT-2")
    add("--rounds", type=int, default=16, help="at most this many for each size")
    add("--seconds", type=float, default=40.0, help="of rounds for each size, about")
    add("--out", type=Path, metavar="FILE.json", help="every round's times, machine, versions")
    return parser


def measure(size: Size, typed: argparse.Namespace) -> dict[str, Any]:
    """Every contender at one size, as the JSON holds it. Times are seconds a step, by round."""
    batches = size.batches()
    gpt2 = ours(size, ["preset=gpt2"], batches)
    recipe = ours(size, typed.overrides, batches)
    theirs = Theirs(size, batches, gpt2.optimizers[0], typed.activation)
    documented = AsDocumented(size, batches, gpt2.optimizers[0], typed.activation)
    shaken(gpt2.model)
    copied(gpt2.model, theirs.model)
    same = the_same(gpt2, theirs, batches(0))
    products = recorded(gpt2.train_step)
    steps: Steps = {
        GPT2: lambda: _trained(gpt2),
        RECIPE: lambda: _trained(recipe),
        THEIRS: theirs.train_step,
        DOCUMENTED: documented.train_step,
        PRODUCTS: products.replay,
    }
    count = steps_a_round(steps, typed.seconds / typed.rounds)
    times = interleaved(steps, count, typed.rounds, typed.seconds)
    return {
        "size": str(size),
        **same,
        "recipe_parameters": _parameters(recipe.model),
        "products": products.counts,
        "flop": products.flop,
        "steps_a_round": count,
        "seconds": times,
        "median": {name: median(values) for name, values in times.items()},
        "of_transformers": {name: median(ratios(times, name, DOCUMENTED)) for name in times},
        "of_lean": {name: median(ratios(times, name, THEIRS)) for name in times},
        "products_share": {name: median(ratios(times, PRODUCTS, name)) for name in times},
    }


def _trained(trainer: Any) -> None:
    reason = trainer.train_step()
    assert reason is None, reason


def the_same(gpt2: Any, theirs: Theirs, batch: torch.Tensor) -> dict[str, Any]:
    """As many parameters and the same loss, or there is nothing to compare."""
    counts = _parameters(gpt2.model), _parameters(theirs.model)
    losses = gpt2.loss(batch).item(), theirs.loss(batch).item()
    assert counts[0] == counts[1], f"{counts[0]} parameters here, {counts[1]} there"
    assert abs(losses[0] - losses[1]) < 1e-4, f"the loss is {losses[0]} here, {losses[1]} there"
    return {"parameters": counts[0], "loss": {GPT2: losses[0], THEIRS: losses[1]}}


def _parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def steps_a_round(steps: Steps, seconds: float) -> int:
    """How many steps of each make a round of so many seconds, found while warming up."""
    for step in steps.values():
        timed(step, WARM)
    return max(1, round(seconds / sum(timed(step, 1) for step in steps.values())))


def interleaved(steps: Steps, count: int, rounds: int, seconds: float) -> Times:
    """One time of each a round, another first in each, so that a slow minute slows them all."""
    times: Times = {name: [] for name in steps}
    names, begun = list(steps), time.perf_counter()
    for i in range(rounds):
        if i >= ROTATION and time.perf_counter() - begun > seconds:
            break
        place = i % len(names)
        for name in names[place:] + names[:place]:
            times[name].append(timed(steps[name], count) / count)
    return times


def timed(step: Callable[[], Any], count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - begun


def ratios(times: Times, name: str, other: str) -> list[float]:
    """Round by round: what slowed one round slowed both."""
    return [a / b for a, b in zip(times[name], times[other], strict=True)]


def table(result: dict[str, Any]) -> list[str]:
    """Under 80 columns."""
    times, one = result["seconds"], result["loss"]
    rounds = len(times[GPT2])
    lines = [
        f"\n{result['size']}: ours and theirs have {result['parameters']:,} parameters",
        f"and the loss {one[GPT2]:.5f} and {one[THEIRS]:.5f}",
        f"{rounds} rounds of {result['steps_a_round']} steps; products: "
        f"{result['flop'] / 1e9:.2f} GFLOP a step, "
        f"{result['flop'] / 1e9 / result['median'][PRODUCTS]:.0f} GFLOP/s",
        f"{'':18}{'ms a step':>10}{'quartiles':>19}{'of theirs':>11}{'of lean':>9}{'products':>10}",
    ]
    for name, values in times.items():
        low, _, high = (1e3 * value for value in quantiles(values, method="inclusive"))
        of_theirs = result["of_transformers"][name]
        share = "" if name == PRODUCTS else f"{result['products_share'][name]:.0%}"
        lines.append(
            f"{name:18}{1e3 * result['median'][name]:10.2f}{f'{low:.2f} to {high:.2f}':>19}"
            f"{of_theirs:11.3f}{result['of_lean'][name]:9.3f}{share:>10}"
        )
    return lines


def surroundings() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.device("cpu"),
        "threads": torch.get_num_threads(),
        "versions": {**machine.versions(), "transformers": version("transformers")},
    }


if __name__ == "__main__":
    sys.exit(main())
