"""The time of every norm, forward and backward, beside torch's F.layer_norm and beside a copy of
the bytes that no norm can do without. Same process, same numbers, rounds interleaved; what was
measured is written whole.

    python benchmarks/norms.py [--compile] [--tokens N] [--widths A,B] [--dtypes A,B] [--rounds N]
                               [--out FILE]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from rounds import Steps, check, interleaved, ratios, steps_a_round, write
from torch import Tensor, nn

from transformer_norms.config.chosen_files import read_config_file
from transformer_norms.errors import ConfigError
from transformer_norms.names import distinct_norms, option_files, unknown
from transformer_norms.norms import NORMS, NOT_ARGUMENTS

TORCHS = "F.layer_norm"
TORCHS_COMPILED = "F.layer_norm, compiled"
COPY = "copy"
# By how much compiled and eager may differ.
DTYPES = {"float32": 1e-5, "bfloat16": 1e-2}
KINDS = ("eager", "compiled")
Function = Callable[[Tensor], Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    typed = parser().parse_args(arguments)
    try:
        check(typed)
        widths, dtypes = every_width(typed.widths), every_dtype(typed.dtypes)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 100  # norms of one class share their forward
    results = []
    for kind, dtype, width in product(KINDS[: 1 + typed.compile], dtypes, widths):
        results.append(measure(kind, dtype, width, typed))
        print("\n".join(table(results[-1])), flush=True)
        torch.compiler.reset()  # else the next width would be compiled for any width
    write(typed.out, {"tokens": typed.tokens, "norms": results})
    return 0


def every_width(typed: str) -> list[int]:
    if not all(text.isdecimal() and int(text) for text in typed.split(",")):
        raise ConfigError(f"--widths {typed}: numbers above 0 as in 128,384")
    return [int(text) for text in typed.split(",")]


def every_dtype(typed: str) -> list[str]:
    for name in typed.split(","):
        if name not in DTYPES:
            raise ConfigError(f"--dtypes {typed}: {unknown('dtype', name, list(DTYPES))}")
    return typed.split(",")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The time of every norm, forward and backward.")
    add = parser.add_argument
    add("--compile", action="store_true", help="measure under torch.compile as well")
    add("--tokens", type=int, default=2048)
    add("--widths", default="128,384,1536", metavar="A,B")
    add("--dtypes", default="float32,bfloat16", metavar="A,B")
    add("--rounds", type=int, default=60, help="at most this many")
    add("--seconds", type=float, default=10.0, help="of rounds, about; of each table")
    add("--out", type=Path, metavar="FILE.json", help="every round's times, machine, versions")
    return parser


def measure(kind: str, dtype: str, width: int, typed: argparse.Namespace) -> dict[str, Any]:
    """Every norm in one mode, as the JSON holds it. Times are seconds a pass, by round. The copy is
    of two and a half tensors: forward a norm reads x and writes y, backward it reads x and y's
    gradient and writes x's."""
    compiled = kind == KINDS[1]
    x = torch.randn(typed.tokens, width).to(getattr(torch, dtype)).requires_grad_()
    grad = torch.randn_like(x)
    gain, bias = (nn.Parameter(values(width)) for values in (torch.ones, torch.zeros))
    source = x.detach().new_ones(5 * x.numel() // 2)
    target = torch.empty_like(source)

    def torchs(x: Tensor) -> Tensor:
        return F.layer_norm(x, gain.shape, gain, bias, 1e-5)

    steps: Steps = {COPY: lambda: target.copy_(source)}
    steps[TORCHS] = pass_of(torchs, [x, gain, bias], grad)
    if compiled:
        steps[TORCHS_COMPILED] = pass_of(torch.compile(torchs), [x, gain, bias], grad)
    for name, norm in norms(width).items():
        inputs = [x, *norm.parameters()]
        steps[name] = pass_of(norm, inputs, grad)
        if compiled:
            whole = torch.compile(norm, fullgraph=True)  # or an error, never part of it eager
            eager, steps[name] = steps[name], pass_of(whole, inputs, grad)
            the_same(name, eager(), steps[name](), DTYPES[dtype])
    count = steps_a_round(steps, typed.seconds / typed.rounds)
    times = interleaved(steps, count, typed.rounds, typed.seconds)
    return {
        "kind": kind,
        "dtype": dtype,
        "width": width,
        "bytes": 5 * x.numel() * x.element_size(),
        "passes_a_round": count,
        "seconds": times,
        "median": {name: median(values) for name, values in times.items()},
        "of_torchs": {name: median(ratios(times, name, TORCHS)) for name in times},
        "of_copy": {name: median(ratios(times, COPY, name)) for name in times},
    }


def norms(width: int) -> dict[str, nn.Module]:
    """Every option of norm= that computes anything; of those that differ in eps alone, one."""
    built = {}
    files = option_files("norm")
    for name in distinct_norms():
        spec = read_config_file(files[name])
        own = {key: value for key, value in spec.items() if key not in NOT_ARGUMENTS}
        if name != "none":
            built[name] = NORMS[spec["type"]](width, **own)
            for parameter in built[name].parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)  # no gradient is zero
    return built


def pass_of(norm: Function, inputs: list[Tensor], grad: Tensor) -> Callable[[], list[Tensor]]:
    def step() -> list[Tensor]:
        y = norm(inputs[0])
        return [y, *torch.autograd.grad(y, inputs, grad)]

    return step


def the_same(name: str, eager: list[Tensor], compiled: list[Tensor], most: float) -> None:
    """The same output and gradients, or there is nothing to compare."""
    for one, other in zip(eager, compiled, strict=True):
        error = (one.float() - other.float()).norm() / one.float().norm()
        assert error < most, f"{name}: compiled and eager differ by {error:.1e}"


def table(result: dict[str, Any]) -> list[str]:
    """Under 80 columns."""
    rounds = len(result["seconds"][TORCHS])
    rate = result["bytes"] / result["median"][COPY] / 1e9
    lines = [
        f"\n{result['kind']}, {result['dtype']}, width {result['width']}: {rounds} rounds of "
        f"{result['passes_a_round']} forwards and backwards",
        f"{result['bytes'] / 1e6:.1f} MB to read and write, which a copy does at {rate:.0f} GB/s",
        f"{'':24}{'ms':>8}{'quartiles':>18}{'of F.layer_norm':>17}{'copy':>7}",
    ]
    for name, values in result["seconds"].items():
        low, _, high = (1e3 * value for value in quantiles(values, method="inclusive"))
        lines.append(
            f"{name:24}{1e3 * result['median'][name]:8.3f}{f'{low:.3f} to {high:.3f}':>18}"
            f"{result['of_torchs'][name]:17.2f}{result['of_copy'][name]:7.0%}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
