"""A trainer on any device, and processes that train side by side on one."""

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import torch
from contenders import CLIP, Size
from rounds import WARM

from transformer_norms import machine
from transformer_norms.building import build_model, build_trainer
from transformer_norms.config import compose, plain
from transformer_norms.trainer import Trainer


def trainer_of(size: Size, device: str, overrides: list[str]) -> Trainer:
    """A run's own Trainer, fed from memory, its probes left out. It has more steps to make than
    are timed, so that no schedule ends."""
    fixed = [f"trainer.clip={CLIP}", f"trainer.device={device}", "trainer.probe_every=0"]
    fixed += [f"trainer.batch_size={size.batch}", "trainer.steps=10000000"]
    config = plain(compose([*size.overrides(), *fixed, *overrides]))
    model = build_model(config, size.vocabulary)
    trainer = build_trainer(config, model, size.batches(), lambda: ())
    trainer.divergence.warmup = trainer.steps  # random tokens cannot be learned: no divergence here
    return trainer


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
    assert not any(codes), f"of {count} processes one failed: exit codes {codes}"
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
    torch.set_num_threads(max(1, machine.cores() // count))
    try:
        whole = synchronized(trainer_of(size, device, overrides).train_step, device)
        for _ in range(WARM):
            whole()
        ready.wait()
    except BaseException:
        ready.abort()  # else the others would wait for this one
        raise
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        whole()
        steps += 1
    answers.put((steps, time.perf_counter() - begun))
