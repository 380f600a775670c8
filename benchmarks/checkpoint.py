"""Times a checkpoint with its manifest beside plain torch.save of the same tensors, and gives its
share of a step and of a run, at the sizes of model=micro and model=124m. Same process, same disk,
rounds interleaved; every measured time is written.

    python benchmarks/checkpoint.py [--sizes A,B] [--folder DIR] [--rounds N] [--seconds S]
                                    [--out FILE] [KEY=VALUE...]
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from contenders import Size, ours, trained
from rounds import Steps, each_size, interleaved, ratios, steps_a_round

from transformer_norms.run import checkpoint
from transformer_norms.training.trainer import Trainer

SIZES = "4-128-128-16-512,12-768-1024-1-50257"
STEP, OURS, PLAIN, DURABLE = "step", "checkpoint", "torch.save", "torch.save, fsync"
HASHING, CHECKING = "SHA-256", "found again"
IDENTITY = "0" * 16


class Saves:
    """The ways to save a trainer, each in a folder of its own, and the seconds in fsync of ours."""

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        self.trainer, self.folder = trainer, folder
        self.numbers, self.synced = count(1), [0.0]

    def ours(self) -> None:
        """A checkpoint as a run makes it: checked for NaN, hashed, synced, the last one removed."""
        state = self.trainer.state() | {"step": (step := next(self.numbers)), "losses": []}
        with timed_fsync() as seconds:
            tensors = self.trainer.tensors()
            checkpoint.save(self.folder / "ours", IDENTITY, step, tensors, state, {}, keep=1)
        self.synced.append(sum(seconds))

    def plain(self) -> Path:
        """torch.save of the same tensors and state, over the file before."""
        file = self.folder / "plain.pt"
        torch.save({"state": self.trainer.state(), **self.trainer.tensors()}, file)
        return file

    def durable(self) -> None:
        """The same, and it is on the disk when it returns."""
        descriptor = os.open(self.plain(), os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def hashed(self) -> None:
        """SHA-256 of the tensors' bytes alone."""
        digest = hashlib.sha256()
        for tensors in self.trainer.tensors().values():
            for tensor in tensors.values():
                digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)

    def found(self) -> None:
        """Checks every byte, as a run does before it restores them."""
        saved = checkpoint.newest(self.folder / "ours", IDENTITY, print)
        assert saved is not None


@contextmanager
def timed_fsync() -> Iterator[list[float]]:
    """Gives the seconds of each fsync during a `with`."""
    fsync, seconds = os.fsync, []

    def timed(fd: Any) -> None:
        begun = time.perf_counter()
        fsync(fd)
        seconds.append(time.perf_counter() - begun)

    os.fsync = timed
    try:
        yield seconds
    finally:
        os.fsync = fsync


def main(arguments: Sequence[str] | None = None) -> int:
    return each_size(parser().parse_intermixed_args(arguments), measure, table, {})


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What a checkpoint costs.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="the run, beside its sizes")
    add("--sizes", default=SIZES, metavar="DEPTH-WIDTH-CONTEXT-BATCH-VOCABULARY,...")
    add("--folder", type=Path, metavar="DIR", help="on the disk that is meant; by default /tmp's")
    add("--rounds", type=int, default=30, help="at most this many for each size")
    add("--seconds", type=float, default=60.0, help="of rounds for each size, about")
    add("--out", type=Path, metavar="FILE.json", help="every round's times, machine, versions")
    return parser


def measure(size: Size, typed: argparse.Namespace) -> dict[str, Any]:
    """All that is timed at one size, as the JSON holds it. Times are in seconds, by round."""
    trainer = ours(size, typed.overrides, size.batches())
    trained(trainer)
    with tempfile.TemporaryDirectory(dir=typed.folder) as folder:
        saves = Saves(trainer, Path(folder))
        saves.ours()
        steps: Steps = {
            STEP: lambda: trained(trainer),
            OURS: saves.ours,
            PLAIN: saves.plain,
            DURABLE: saves.durable,
            HASHING: saves.hashed,
            CHECKING: saves.found,
        }
        number = steps_a_round(steps, typed.seconds / typed.rounds)
        del saves.synced[:]
        times = interleaved(steps, number, typed.rounds, typed.seconds)
    tensors = [t for group in trainer.tensors().values() for t in group.values()]
    rounds = len(times[OURS])
    synced = [sum(saves.synced[i * number :][:number]) / number for i in range(rounds)]
    every = trainer.model.config.trainer.checkpoint_every
    unsynced = [whole - fsync for whole, fsync in zip(times[OURS], synced, strict=True)]
    return {
        "size": str(size),
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "each_a_round": number,
        "every": every,
        "seconds": times | {"fsync of the checkpoint": synced},
        "steps": quartiles(ratios(times, OURS, STEP)),
        "share_of_run": [one / (every + one) for one in quartiles(ratios(times, OURS, STEP))],
        "of_torch_save": quartiles(ratios({OURS: unsynced, PLAIN: times[PLAIN]}, OURS, PLAIN)),
        "of_durable": quartiles(ratios(times, OURS, DURABLE)),
        "hashing": quartiles(ratios(times, HASHING, OURS)),
    }


def quartiles(values: list[float]) -> list[float]:
    return quantiles(values, method="inclusive")


def table(result: dict[str, Any]) -> list[str]:
    """Under 80 columns."""
    times = result["seconds"]
    lines = [
        f"\n{result['size']}: {result['bytes'] / 1e6:,.1f} MB, {len(times[OURS])} rounds of "
        f"{result['each_a_round']}",
        f"{'':26}{'ms':>10}{'quartiles':>24}",
    ]
    for name, values in times.items():
        low, _, high = (1e3 * value for value in quartiles(values))
        lines.append(f"{name:26}{1e3 * median(values):10,.1f}{f'{low:,.1f} to {high:,.1f}':>24}")
    shares: list[tuple[str, str, Callable[[float], str]]] = [
        ("in steps", "steps", lambda x: f"{x:.2f}"),
        (f"of a run, one in {result['every']}", "share_of_run", lambda x: f"{x:.2%}"),
        ("of torch.save, no fsync", "of_torch_save", lambda x: f"{x:.2f}"),
        ("of torch.save with fsync", "of_durable", lambda x: f"{x:.2f}"),
        ("SHA-256 of a checkpoint", "hashing", lambda x: f"{x:.1%}"),
    ]
    for words, key, text in shares:
        least, middle, most = map(text, result[key])
        lines.append(f"{words:26}{middle:>10}{f'{least} to {most}':>24}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
