"""What a GPU makes of all this: the training step of GPT-2's size beside transformers', each norm's
kernels beside a copy, and how many processes one device can feed.

    python benchmarks/gpu.py [--batch N] [--device cpu] [--out FILE] [KEY=VALUE...]
"""

import argparse
import gc
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import bandwidth
import torch
from contenders import Size, ours, trained
from peers import ACTIVATIONS, LeanGPT2, transformers_gpt2
from rounds import WARM, Steps, check_out, interleaved, write
from side_by_side import side_by_side, synchronized
from torch import Tensor

from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError
from transformer_norms.run import machine
from transformer_norms.training.flops import flops_per_token, peak, utilisation
from transformer_norms.training.trainer import Trainer

BASE, SMALL = "12-768-1024-16-50257", "4-128-128-16-257"  # model=124m, and a run of a sweep
OURS, FREE, THEIRS = "ours", "ours, digits free", "transformers"  # a run computes as `ours` does
NORMS, PLACEMENTS = "layernorm,rmsnorm", "pre,post,hybrid,sandwich,normformer"
FAST = {"trainer.precision": "bf16", "trainer.compile": "true"}  # unless typed


class OnDevice(LeanGPT2):
    """transformers' GPT-2 with fused attention, under autocast as ours is, compiled where ours is;
    its gelu is one operator."""

    def __init__(self, size: Size, like: Trainer, device: str) -> None:
        model: Any = transformers_gpt2(size, ACTIVATIONS[1])
        model.set_attn_implementation("sdpa")
        super().__init__(model.to(device), size.batches(), like.optimizers[0])
        keys = like.model.config.trainer
        self.device, self.precision = device, keys.precision
        if keys.compile:
            self.model.compile()

    def loss(self, batch: Tensor) -> Tensor:
        batch = batch.to(self.device)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16"):
            return super().loss(batch)


def main(arguments: Sequence[str] | None = None) -> int:
    typed = parser().parse_intermixed_args(arguments)
    try:
        check(typed)
        size, small = Size.read(typed.size), Size.read(typed.small)
        result = measure(typed, replace(size, batch=typed.batch or size.batch), small)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    write(typed.out, result)
    return 0


def check(typed: argparse.Namespace) -> None:
    if typed.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: there is no GPU here; --device cpu shows what is run")
    check_out(typed.out)
    if typed.rounds < 1 or typed.batch < 0 or not 0 < typed.seconds < math.inf:
        raise ConfigError("--rounds, --seconds and --batch: a number above 0")
    if not all(text.isdecimal() and int(text) for text in typed.processes.split(",")):
        raise ConfigError(f"--processes {typed.processes}: numbers above 0 as in 1,2,4")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What a GPU makes of all this.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="of every run; else bf16 and compiled")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--size", default=BASE, metavar="DEPTH-WIDTH-CONTEXT-BATCH-VOCABULARY")
    add("--batch", type=int, default=0, metavar="N", help="sequences a step, for the size's own")
    add("--norms", default=NORMS, metavar="A,B")
    add("--placements", default=PLACEMENTS, metavar="A,B")
    add("--processes", default="1,2,4", metavar="N,M", help="side by side on the one device")
    add("--small", default=SMALL, metavar="SIZE", help="the size of the runs side by side")
    add("--rounds", type=int, default=20, help="at most this many of each measurement")
    add("--seconds", type=float, default=20.0, help="of each measurement, about")
    add("--out", type=Path, metavar="FILE.json", help="all that was measured, machine, versions")
    return parser


def measure(typed: argparse.Namespace, size: Size, small: Size) -> dict[str, Any]:
    chosen = {text.partition("=")[0] for text in typed.overrides}
    fast = [f"{key}={value}" for key, value in FAST.items() if key not in chosen]
    overrides = [*typed.overrides, *fast]
    variants = [
        f"preset=gpt2 norm={norm} placement={placement}"
        for norm in typed.norms.split(",")
        for placement in typed.placements.split(",")
    ]
    for of, variant in [*((size, variant) for variant in variants), (small, "")]:
        keys = compose([*of.overrides(), *variant.split(), *overrides]).trainer
    compiled = keys.compile
    found: dict[str, Any] = {"device": machine.device(typed.device)}
    found |= {"size": str(size), "small": str(small), "overrides": overrides, "steps": {}}
    print(f"{found['device']}; {size}, {' '.join(overrides)}\n{HEADER}", flush=True)
    for variant in variants:
        found["steps"][variant] = steps(variant, size, overrides, typed)
        print(step_line(variant, found["steps"][variant]), flush=True)
        gc.collect()  # before the next model takes its memory
        machine.forget_memory(typed.device)
        torch.compiler.reset()  # of one class, as the rivals are, few are compiled
    tokens = size.batch * size.context
    found["norms"] = bandwidth.kernels(
        tokens, size.width, typed.device, compiled, typed.rounds, typed.seconds
    )
    print("\n".join(bandwidth.table(found["norms"])), flush=True)
    found["processes"] = []
    print(f"\nprocesses side by side, {small}", flush=True)
    for count in map(int, typed.processes.split(",")):
        more = side_by_side(count, small, typed.device, overrides, typed.seconds)
        found["processes"].append(more)
        print(process_line(more, found["processes"][0]), flush=True)
    return found


def steps(
    variant: str, size: Size, overrides: list[str], typed: argparse.Namespace
) -> dict[str, Any]:
    """One variant of preset=gpt2 and transformers' GPT-2 by turns, seconds a step by round."""
    own = ours(size, [*variant.split(), *overrides], size.batches(), device=typed.device)
    theirs = OnDevice(size, own, typed.device)

    def step_of_a_run() -> None:
        with machine.deterministic(typed.device):
            trained(own)

    all_three: Steps = {
        OURS: synchronized(step_of_a_run, typed.device),
        FREE: synchronized(partial(trained, own), typed.device),
        THEIRS: synchronized(theirs.train_step, typed.device),
    }
    for step in all_three.values():
        for _ in range(WARM):
            step()
    times = interleaved(all_three, 1, typed.rounds, typed.seconds)
    flops = flops_per_token(own, size.context)
    taken, tokens = median(times[OURS]), size.batch * size.context
    top = peak(machine.device(typed.device), own.model.config.trainer.precision)
    return {
        "seconds": times,
        "flops_a_token": flops,
        "tokens_a_second": {name: tokens / median(values) for name, values in times.items()},
        "utilisation": utilisation(flops * tokens, taken, top),
        "of_theirs": ratio(times[OURS], times[THEIRS]),
        "of_free": ratio(times[OURS], times[FREE]),
    }


def ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    return median(a / b for a, b in zip(ours, others, strict=True))


HEADER = f"{'':34}{'tokens/s':>10}{'theirs':>10}{'MFU':>7}{'of theirs':>10}{'of free':>8}"


def step_line(variant: str, result: dict[str, Any]) -> str:
    """`of theirs` and `of free` are of the time of a step."""
    rates, share = result["tokens_a_second"], result["utilisation"]
    used = "" if share is None else f"{share:.1%}"
    numbers = f"{rates[OURS]:10,.0f}{rates[THEIRS]:10,.0f}{used:>7}{result['of_theirs']:10.3f}"
    return f"{variant.removeprefix('preset=gpt2 '):34}{numbers}{result['of_free']:8.3f}"


def process_line(result: dict[str, Any], first: dict[str, Any]) -> str:
    gain = result["steps_a_second"] / first["steps_a_second"]
    rate = f"{result['steps_a_second']:10,.1f} steps/s in all"
    return f"{result['processes']:4}{rate}, {gain:.2f} of those of {first['processes']}"


if __name__ == "__main__":
    sys.exit(main())
