"""One size measured in a process of its own, where no other has left memory behind."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTING = "trainer.activation_checkpointing"
STATE = 4 * 4  # bytes a parameter: weight, gradient and AdamW's two moments, in float32
SLOW = 5.0  # seconds a step: of such ones fewer are timed
OURS, THEIRS = "ours", "transformers, lean"


@dataclass(frozen=True)
class Point:
    """What to measure; `steps` are timed, SLOW ones `slow` times at most, after `warm` others."""

    size: str
    overrides: tuple[str, ...] = ()
    model: str = OURS
    warm: int = 1
    steps: int = 3
    slow: int = 3


def measured(point: Point) -> dict[str, Any]:
    """Seconds to build the model, of its first step and of each timed step; `state`, the bytes of
    weights, gradients and moments; `above`, the most resident bytes above those after the imports.
    RuntimeError where the process fails."""
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(asdict(point))],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode:
        raise RuntimeError(f"{point.size}: its process ended with code {done.returncode}")
    return asdict(point) | json.loads(done.stdout.splitlines()[-1])


def in_here(point: Point) -> dict[str, Any]:
    import torch
    from contenders import Size, ours, trained
    from peers import ACTIVATIONS, LeanGPT2, transformers_gpt2

    overrides = list(point.overrides)

    def begun(size: Size) -> tuple[Any, Callable[[], Any]]:
        """What has parameters, and its step."""
        batches = size.batches()
        if point.model == OURS:
            trainer = ours(size, overrides, batches)
            return trainer, partial(trained, trainer)
        model = transformers_gpt2(size, ACTIVATIONS[0])
        lean = LeanGPT2(model, batches, like.optimizers[0])
        return lean, lean.train_step

    # A first step loads late imports, threads and their buffers, which are no part of a model.
    tiny = Size(1, 32, 8, 1, 65)
    like = ours(tiny, overrides, tiny.batches())
    begun(tiny)[1]()
    before = reset()
    building, (owner, step) = seconds(lambda: begun(Size.read(point.size)))
    first, _ = seconds(step)
    warm = [seconds(step)[0] for _ in range(point.warm)]
    count = point.slow if min([first, *warm]) > SLOW else point.steps
    times = [seconds(step)[0] for _ in range(count)]
    parameters = sum(parameter.numel() for parameter in owner.parameters)
    return {
        "parameters": parameters,
        "state": STATE * parameters,
        "threads": torch.get_num_threads(),
        "above": highest() - before,
        "building": building,
        "first": first,
        "seconds": times,
    }


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def reset() -> int:
    """Resident bytes now; from here on `highest` counts anew where the kernel lets it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _of_status("VmRSS")


def highest() -> int:
    """The most resident bytes since `reset`. getrusage would count the parent's as well."""
    return _of_status("VmHWM")


def _of_status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    print(json.dumps(in_here(Point(**json.loads(sys.argv[1])))))
