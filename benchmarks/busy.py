"""The tokens a second of the default number of threads on an idle machine and on a busy one, over
those of one thread, of threads that sleep at once, and of threads that wait actively. How long a
thread spins is read once in a process, so each of them is a process; they are timed in turn.

    python benchmarks/busy.py [--loops 0,2,8] [--sizes A,B] [--rounds N] [--seconds S] [--out FILE]
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rounds import ROTATION, check_out, write

from transformer_norms.errors import ConfigError
from transformer_norms.processes import SPIN, cores

ROOT = Path(__file__).resolve().parents[1]
SIZES = "2-64-32-16-257,4-128-128-16-257,6-384-256-8-65"  # nano, micro, and 6-384-256
POLICY = "OMP_WAIT_POLICY"
DEFAULT = "default"
# Name: variables of the process, and what is typed. The last one is what torch does by itself.
CONTENDERS: dict[str, tuple[dict[str, str], list[str]]] = {
    DEFAULT: (dict([SPIN]), []),  # as a command sets it before it imports torch
    "one thread": ({}, ["trainer.threads=1"]),
    "passive": ({POLICY: "PASSIVE"}, [f"trainer.threads={cores()}"]),
    "active": ({POLICY: "ACTIVE"}, [f"trainer.threads={cores()}"]),
}


class Contender:
    """A process that makes steps for as long as it is told."""

    def __init__(self, name: str, size: str, overrides: Sequence[str]) -> None:
        variables, typed = CONTENDERS[name]
        kept = {key: value for key, value in os.environ.items() if key not in (POLICY, SPIN[0])}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", size, *overrides, *typed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**kept, **variables, "PYTHONPATH": str(ROOT)},
        )

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ConfigError(f"a contender ended with code {self.process.wait()}")
        return json.loads(line)

    def tokens_per_second(self, seconds: float) -> float:
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        return float(self.read())


def serve(size: str, overrides: Sequence[str]) -> None:
    """Builds a trainer as a run does, says how it divides its work, and times steps."""
    import torch
    from contenders import Size, ours, trained

    of = Size.read(size)
    trainer = ours(of, list(overrides), of.batches())
    trained(trainer)
    replicas = trainer.micro_batches.replicas.count
    print(json.dumps({"threads": torch.get_num_threads(), "replicas": replicas}), flush=True)
    for line in sys.stdin:
        begun, steps = time.perf_counter(), 0
        while not steps or time.perf_counter() - begun < float(line):
            trained(trainer)
            steps += 1
        rate = steps * of.batch * of.context / (time.perf_counter() - begun)
        print(json.dumps(rate), flush=True)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keeps so many processes busy while it is entered."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def measure(size: str, loops: int, typed: argparse.Namespace) -> dict[str, Any]:
    contenders = {name: Contender(name, size, typed.overrides) for name in CONTENDERS}
    try:
        divided = {name: each.read() for name, each in contenders.items()}
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        with busy(loops):
            names = list(contenders)
            for i in range(typed.rounds):
                place = i % len(names)
                for name in names[place:] + names[:place]:
                    rates[name].append(contenders[name].tokens_per_second(typed.seconds))
    finally:
        for each in contenders.values():
            each.process.kill()
            each.process.wait()
    best = max(median(rates[name]) for name in rates)
    return {
        "size": size,
        "loops": loops,
        "divided": divided,
        "tokens_per_second": {n: [round(rate) for rate in rates[n]] for n in rates},
        "behind_best": {n: round(best / median(rates[n]), 2) for n in rates},
    }


def table(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['size']}, {result['loops']} busy loops"]
    for name, rates in result["tokens_per_second"].items():
        low, _, high = quantiles(rates, n=4)
        divided, behind = result["divided"][name], result["behind_best"][name]
        lines.append(
            f"  {name:<11}{divided['threads']} threads, {divided['replicas']} replicas"
            f"{median(rates):>9,.0f} tokens/s ({low:,.0f} to {high:,.0f}), best / this {behind}"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The default threads on a busy machine.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="the run, in addition to its sizes")
    add("--loops", default="0,2,8", help="how many busy processes run at the same time")
    add("--sizes", default=SIZES, metavar="DEPTH-WIDTH-CONTEXT-BATCH-VOCABULARY,...")
    add("--rounds", type=int, default=8, help="of each size and number of loops")
    add("--seconds", type=float, default=2.0, help="of each contender in a round")
    add("--out", type=Path, metavar="FILE.json")
    add("--serve", metavar="SIZE", help=argparse.SUPPRESS)
    typed = parser.parse_intermixed_args(arguments)
    if typed.serve:
        serve(typed.serve, typed.overrides)
        return 0
    try:
        check_out(typed.out)
        if typed.rounds < ROTATION:
            raise ConfigError(f"--rounds {typed.rounds}: at least {ROTATION} are needed")
        if not 0 < typed.seconds < math.inf:
            raise ConfigError(f"--seconds {typed.seconds}: should be above 0")
        results = []
        for size in typed.sizes.split(","):
            for loops in map(int, typed.loops.split(",")):
                results.append(measure(size, loops, typed))
                print("\n".join(table(results[-1])), flush=True)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    write(typed.out, {"results": results, "overrides": typed.overrides})
    return 0


if __name__ == "__main__":
    sys.exit(main())
