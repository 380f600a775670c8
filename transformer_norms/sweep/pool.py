"""`launcher=pool`: jobs in workers that stay, so that imports, data and compilation are paid once.

A worker that dies, of whatever, costs one attempt of one job: a fresh one takes its place, and the
job goes on from its checkpoint.
"""

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from transformer_norms.locks import take_lock
from transformer_norms.training.stopping import Stopping

ATTEMPTS = 2  # of a job whose worker dies
_LOOK_EVERY = 0.2  # seconds
_PATIENCE = 30.0  # seconds for workers to save what they are at, once told to stop

Answer = dict[str, Any]


class Pool:
    """`workers` processes, spawned when first needed and closed with `close`."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.pool: Any = None

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Answer]:
        """What became of each job. A signal lets the workers save what they are at."""
        with Stopping() as stop:
            stop.patient = True
            return self._run(jobs, stop)

    def _run(self, jobs: Sequence[Sequence[str]], stop: Stopping) -> list[Answer]:
        if self.pool is None:
            self._open()
        futures = {number: self._schedule(job) for number, job in enumerate(jobs)}
        left = dict.fromkeys(futures, ATTEMPTS)
        answers: dict[int, Answer] = {}
        while futures:
            if stop.asked:
                self.stopping.set()
            for number, future in list(futures.items()):
                if not future.done():
                    continue
                del futures[number]
                answers[number] = answer = _answer(future)
                left[number] -= 1
                if answer["status"] == "died" and left[number] and not stop.asked:
                    futures[number] = self._schedule(jobs[number])
            time.sleep(_LOOK_EVERY)
        for answer in answers.values():
            if answer["status"] == "died":
                answer["status"] = "preempted" if stop.asked else "failed"
        return [answers[number] for number in range(len(jobs))]

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool.join()
            self.slots.cleanup()
            self.pool = None

    def _open(self) -> None:
        import torch

        # A forked worker would inherit torch's locks without the threads that release them.
        spawn = multiprocessing.get_context("spawn")
        self.stopping = spawn.Event()
        self.slots = tempfile.TemporaryDirectory(prefix="transformer_norms-")
        self.pool = ProcessPool(
            max_workers=self.workers,
            initializer=_prepare,
            initargs=(self.slots.name, self.workers, torch.cuda.device_count(), self.stopping),
            context=spawn,
        )

    def _schedule(self, job: Sequence[str]) -> Any:
        from transformer_norms.run.machine import cores

        job = list(job)
        if not any(text.startswith("trainer.threads=") for text in job):
            job.append(f"trainer.threads={max(1, cores() // self.workers)}")
        return self.pool.schedule(_job, args=[job])


def _answer(future: Any) -> Answer:
    try:
        return dict(future.result())
    except ProcessExpired as error:
        return {"status": "died", "error": f"its worker {_ended(error.exitcode)}; out of memory?"}
    except Exception as error:
        return {"status": "failed", "error": " ".join(f"{type(error).__name__}: {error}".split())}


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"


@dataclass
class Worker:
    """What a worker knows of itself: the event that says stop, the open file whose lock says which
    share of the machine it has, whether a job is under way."""

    stopping: Any = None
    slot: Any = None
    at_work: bool = False


_worker = Worker()


def _job(overrides: list[str]) -> Answer:
    from transformer_norms.sweep.job import job

    _worker.at_work = True
    try:
        return {"status": "preempted"} if _worker.stopping.is_set() else job(overrides)
    finally:
        _worker.at_work = False


def _prepare(slots: str, workers: int, gpus: int, stopping: Any) -> None:
    """In a new worker, before torch: its share of the machine, and when to leave."""
    _worker.stopping = stopping
    # The terminal's Ctrl-C is the driver's to pass on: a second signal would mean "at once".
    os.setpgrp()
    number = _take_slot(Path(slots), workers)
    _take_cores(number, workers)
    _take_gpu(number, gpus)
    threading.Thread(target=_leave, args=(os.getppid(),), daemon=True).start()


def _take_slot(slots: Path, workers: int) -> int:
    """The lowest number that no living worker has: its lock dies with it."""
    while True:
        for number in range(workers):
            slot = slots / str(number)
            slot.touch()
            lock = take_lock(slot)
            if lock is not None:
                _worker.slot = lock  # which holds it while this process lives
                return number
        time.sleep(_LOOK_EVERY)  # the one whose place this is has not quite left


def _take_cores(number: int, workers: int) -> None:
    """An equal share of the cores, where there are as many as workers and the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // workers
    if share:
        os.sched_setaffinity(0, cores[number * share : (number + 1) * share])


def _take_gpu(number: int, gpus: int) -> None:
    """One of the GPUs that this command may use, turn by turn: with more workers than GPUs several
    have the same. CUDA ends a list of them at the first that is not there."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(gpu) for gpu in range(gpus)]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = names[number % gpus].strip()


def _leave(parent: int) -> None:
    """Tells the run to save and end when the driver says so, or is gone."""
    while not _worker.stopping.is_set() and os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    if _worker.at_work:
        os.kill(os.getpid(), signal.SIGTERM)
    end = time.monotonic() + _PATIENCE
    while os.getppid() == parent or (_worker.at_work and time.monotonic() < end):
        time.sleep(_LOOK_EVERY)
    os._exit(1)
