"""The time of every norm, forward and backward, beside torch's F.layer_norm. Same process, same
numbers, rounds interleaved; what was measured is written whole.

    python benchmarks/norms.py [--compile] [--tokens N] [--width N] [--rounds N] [--out FILE]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from rounds import Steps, check, interleaved, ratios, steps_a_round, write
from torch import Tensor, nn

from transformer_norms.config import plain
from transformer_norms.errors import ConfigError
from transformer_norms.names import option_files
from transformer_norms.norms import NORMS, NOT_ARGUMENTS

TORCHS = "F.layer_norm"
TORCHS_COMPILED = "F.layer_norm, compiled"
Function = Callable[[Tensor], Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    typed = parser().parse_args(arguments)
    try:
        check(typed)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 100  # norms of one class share their forward
    results = {}
    for kind in ("eager", "compiled") if typed.compile else ("eager",):
        results[kind] = measure(kind == "compiled", typed)
        print("\n".join(table(kind, results[kind])), flush=True)
    write(typed.out, {"tokens": typed.tokens, "width": typed.width, **results})
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The time of every norm, forward and backward.")
    add = parser.add_argument
    add("--compile", action="store_true", help="measure under torch.compile as well")
    add("--tokens", type=int, default=2048)
    add("--width", type=int, default=384)
    add("--rounds", type=int, default=60, help="at most this many")
    add("--seconds", type=float, default=30.0, help="of rounds, about; eager and compiled each")
    add("--out", type=Path, metavar="FILE.json", help="every round's times, machine, versions")
    return parser


def measure(compiled: bool, typed: argparse.Namespace) -> dict[str, Any]:
    """Every norm in one mode, as the JSON holds it. Times are seconds a pass, by round."""
    x = torch.randn(typed.tokens, typed.width, requires_grad=True)
    grad = torch.randn(typed.tokens, typed.width)
    gain, bias = (nn.Parameter(values(typed.width)) for values in (torch.ones, torch.zeros))

    def torchs(x: Tensor) -> Tensor:
        return F.layer_norm(x, gain.shape, gain, bias, 1e-5)

    steps: Steps = {TORCHS: pass_of(torchs, [x, gain, bias], grad)}
    if compiled:
        steps[TORCHS_COMPILED] = pass_of(torch.compile(torchs), [x, gain, bias], grad)
    for name, norm in norms(typed.width).items():
        inputs = [x, *norm.parameters()]
        steps[name] = pass_of(norm, inputs, grad)
        if compiled:
            whole = torch.compile(norm, fullgraph=True)  # or an error, never part of it eager
            eager, steps[name] = steps[name], pass_of(whole, inputs, grad)
            the_same(name, eager(), steps[name]())
    count = steps_a_round(steps, typed.seconds / typed.rounds)
    times = interleaved(steps, count, typed.rounds, typed.seconds)
    return {
        "passes_a_round": count,
        "seconds": times,
        "median": {name: median(values) for name, values in times.items()},
        "of_torchs": {name: median(ratios(times, name, TORCHS)) for name in times},
    }


def norms(width: int) -> dict[str, nn.Module]:
    """Every option of norm= that computes anything."""
    built = {}
    for name, file in option_files("norm").items():
        spec = plain(OmegaConf.load(file))
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


def the_same(name: str, eager: list[Tensor], compiled: list[Tensor]) -> None:
    """The same output and gradients, or there is nothing to compare."""
    for one, other in zip(eager, compiled, strict=True):
        error = (one - other).norm() / one.norm()
        assert error < 1e-5, f"{name}: compiled and eager differ by {error:.1e}"


def table(kind: str, result: dict[str, Any]) -> list[str]:
    """Under 80 columns."""
    rounds = len(result["seconds"][TORCHS])
    lines = [
        f"\n{kind}: {rounds} rounds of {result['passes_a_round']} forwards and backwards",
        f"{'':24}{'ms':>8}{'quartiles':>18}{'of F.layer_norm':>17}",
    ]
    for name, values in result["seconds"].items():
        low, _, high = (1e3 * value for value in quantiles(values, method="inclusive"))
        lines.append(
            f"{name:24}{1e3 * result['median'][name]:8.3f}{f'{low:.3f} to {high:.3f}':>18}"
            f"{result['of_torchs'][name]:17.2f}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
