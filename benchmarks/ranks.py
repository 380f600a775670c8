"""The time of one training step on two processes (`parallel=ddp`), beside two replicas and two
threads of one process, and of the exchange between the two. The same batches, rounds interleaved;
what was measured is written whole.

    python benchmarks/ranks.py [--sizes A,B] [--rounds N] [--seconds S] [--out FILE] [KEY=VALUE...]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from contenders import Size, ours, parameters
from rounds import Steps, Times, each_size, interleaved, ratios, steps_a_round
from torch import Tensor

from transformer_norms.training.parallel.ranks import Ranks
from transformer_norms.training.trainer import Trainer

SIZES = "4-128-64-12-65,6-384-256-8-65,6-384-256-32-65"
COUNT = 2
REPLICAS, THREADS, ONE = "2 replicas", "2 threads", "1 thread"
TREE, ALL_REDUCE = "2 processes", "2 processes, all-reduce"
EXCHANGE, PLAIN = "the exchange alone", "an all-reduce alone"
TOGETHER = (TREE, ALL_REDUCE, EXCHANGE, PLAIN)  # what both processes do
END = -1


class AllReduced(Ranks):
    """Ranks whose sums follow the order of the backend, which depends on the number of ranks."""

    def add(self, tensors: Sequence[Tensor]) -> None:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        sums = flat.split([tensor.numel() for tensor in tensors])
        for tensor, total in zip(tensors, sums, strict=True):
            tensor.copy_(total.view_as(tensor))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The time of one step on two processes.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="what the model is, beside its sizes")
    add("--sizes", default=SIZES, metavar="DEPTH-WIDTH-CONTEXT-BATCH-VOCABULARY,...")
    add("--rounds", type=int, default=16, help="at most this many for each size")
    add("--seconds", type=float, default=40.0, help="of rounds for each size, about")
    add("--out", type=Path, metavar="FILE.json", help="every round's times, machine, versions")
    return each_size(parser.parse_intermixed_args(arguments), measure, table, {})


def measure(size: Size, typed: argparse.Namespace) -> dict[str, Any]:
    """Every contender at one size, as the JSON holds it. Times are seconds a step, by round."""
    with tempfile.TemporaryDirectory() as folder:
        given = (size, typed.overrides, typed.rounds, typed.seconds, folder)
        multiprocessing.spawn(take_part, given, nprocs=COUNT)
        times, count, of_model = torch.load(f"{folder}/times.pt", weights_only=True)
    return {
        "size": str(size),
        "parameters": of_model,
        "steps_a_round": count,
        "seconds": times,
        "median": {name: median(values) for name, values in times.items()},
        "faster": {name: median(ratios(times, ONE, name)) for name in times},
        "share_of_exchange": median(ratios(times, EXCHANGE, TREE)),
        "tree_over_all_reduce": median(ratios(times, TREE, ALL_REDUCE)),
    }


def take_part(
    rank: int, size: Size, overrides: list[str], rounds: int, seconds: float, folder: str
) -> None:
    """What each of the processes does: the first says what is next, and times it."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=COUNT
    )
    steps = contenders(size, overrides, rank)
    if rank == 0:
        times, count = lead(steps, rounds, seconds)
        of_model = parameters(steps[ONE].args[0].model)
        torch.save((times, count, of_model), f"{folder}/times.pt")
    else:
        follow(steps)
    distributed.destroy_process_group()


def contenders(size: Size, overrides: list[str], rank: int) -> dict[str, partial[None]]:
    def trainer(ranks: dict[str, Any], replicas: int) -> Trainer:
        own = [f"trainer.threads={replicas}", f"trainer.replicas={replicas}"]
        return ours(size, [*overrides, *own], size.batches(), **ranks)

    tree, plain = (kind(rank, COUNT) for kind in (Ranks, AllReduced))
    one = trainer({}, 1)
    gradients = [torch.zeros_like(p) for p in one.parameters]
    return {
        REPLICAS: partial(make_step, trainer({}, 2), 1),
        THREADS: partial(make_step, trainer({}, 1), 2),
        ONE: partial(make_step, one, 1),
        TREE: partial(make_step, trainer({"ranks": tree}, 1), 1),
        ALL_REDUCE: partial(make_step, trainer({"ranks": plain}, 1), 1),
        EXCHANGE: partial(tree.add, gradients),
        PLAIN: partial(plain.add, gradients),
    }


def make_step(trainer: Trainer, threads: int) -> None:
    torch.set_num_threads(threads)
    reason = trainer.train_step()
    assert reason is None, reason


def lead(steps: dict[str, partial[None]], rounds: int, seconds: float) -> tuple[Times, int]:
    def announced(number: int, step: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            distributed.broadcast(torch.tensor([number]), src=0)
            step()

        return both

    leading: Steps = {
        name: announced(i, step) if name in TOGETHER else step
        for i, (name, step) in enumerate(steps.items())
    }
    count = steps_a_round(leading, seconds / rounds)
    times = interleaved(leading, count, rounds, seconds)
    distributed.broadcast(torch.tensor([END]), src=0)
    return times, count


def follow(steps: dict[str, partial[None]]) -> None:
    said, in_order = torch.zeros(1, dtype=torch.int64), list(steps.values())
    while True:
        distributed.broadcast(said, src=0)
        if said.item() == END:
            return
        in_order[int(said.item())]()


def table(result: dict[str, Any]) -> list[str]:
    """Under 80 columns."""
    times = result["seconds"]
    lines = [
        f"\n{result['size']}: {result['parameters']:,} parameters, {len(times[ONE])} rounds of "
        f"{result['steps_a_round']} steps",
        f"{'':<26}{'ms':>8}{'quartiles':>16}{'faster':>9}",
    ]
    for name, values in times.items():
        low, _, high = (1e3 * value for value in quantiles(values, n=4))
        faster = f"{result['faster'][name]:.2f}" if name not in (EXCHANGE, PLAIN) else ""
        lines.append(
            f"{name:<26}{1e3 * median(values):>8.1f}{f'{low:.1f}-{high:.1f}':>16}{faster:>9}"
        )
    lines.append(
        f"the exchange is {result['share_of_exchange']:.1%} of a step of two processes; with the "
        f"tree a step takes {result['tree_over_all_reduce']:.3f} of one with an all-reduce"
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
