"""Processes that train side by side on one device."""

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from contenders import Size, as_in_a_run, ours, trained
from rounds import WARM

from transformer_norms.processes import cores

PATIENCE = 600.0  # seconds, for all to have compiled


def synchronized(step: Callable[[], Any], device: str) -> Callable[[], Any]:
    """A step that has ended on the device when it returns."""

    def whole() -> None:
        step()
        if device == "cuda":
            torch.cuda.synchronize()

    return whole


def side_by_side(
    count: int, size: Size, device: str, overrides: list[str], seconds: float
) -> dict[str, Any]:
    """`count` processes that train the same run at the same time, for so many seconds each: the
    (steps, seconds) of each, and what they make a second together."""
    spawn = multiprocessing.get_context("spawn")
    ready, answers = spawn.Barrier(count), spawn.SimpleQueue()
    processes = [
        spawn.Process(target=_train, args=(count, size, device, overrides, seconds, ready, answers))
        for _ in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    if any(codes):
        raise RuntimeError(f"of {count} processes one failed: exit codes {codes}")
    each = [answers.get() for _ in processes]
    rate = sum(steps / taken for steps, taken in each)
    return {"processes": count, "each": each, "steps_a_second": rate}


def _train(
    count: int,
    size: Size,
    device: str,
    overrides: list[str],
    seconds: float,
    ready: Any,
    answers: Any,
) -> None:
    """In a process of its own, with the threads that a worker of `launcher=pool` has."""
    try:
        threads = f"trainer.threads={max(1, cores() // count)}"
        trainer = as_in_a_run(ours(size, [*overrides, threads], size.batches(), device=device))
        whole = synchronized(partial(trained, trainer), device)
        for _ in range(WARM):
            whole()
        ready.wait(PATIENCE)
    except BaseException:
        ready.abort()  # else the others would wait for this one
        raise
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        whole()
        steps += 1
    answers.put((steps, time.perf_counter() - begun))
