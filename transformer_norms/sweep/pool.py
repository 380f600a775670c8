"""Runs jobs in workers that stay, so that imports, data and compilation are paid for once.

This is `launcher=pool`. A worker that dies costs one attempt of one job. A fresh worker takes its
place, and the job goes on from its checkpoint.
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

from transformer_norms import processes
from transformer_norms.config.launchers import PoolSettings
from transformer_norms.errors import ConfigError, describe_error
from transformer_norms.locks import Lock, take_lock
from transformer_norms.streams import guard_streams
from transformer_norms.sweep.gpus import Mps, visible_gpus
from transformer_norms.training.stopping import Stopping

ATTEMPTS = 2  # of a job whose worker dies
_LOOK_EVERY = 0.2  # seconds
_PATIENCE = 30.0  # seconds for workers to save their runs, once told to stop


class Pool:
    """`workers` processes, spawned when first needed and ended by `close`. They share `gpus` GPUs,
    through MPS if they are several on each. `at_once` is how many runs all pools train that work
    on one sweep."""

    def __init__(self, workers: int, gpus: int = 0, share: bool = False, pools: int = 1) -> None:
        self.workers, self.gpus, self.share = workers, gpus, share
        self.at_once = workers * pools
        self.processes: Any = None

    @classmethod
    def of(cls, settings: PoolSettings) -> "Pool":
        import torch

        gpus = torch.cuda.device_count()
        if settings.per_gpu > 1 and not gpus:
            raise ConfigError(f"launcher.per_gpu={settings.per_gpu}: there is no GPU here to share")
        return cls(settings.count(gpus), gpus, settings.per_gpu > 1, settings.pools)

    def run(self, jobs: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """Runs the jobs and returns their answers. A signal lets the workers save their runs."""
        with Stopping(what="the runs stop") as stop:
            stop.patient = stop.saves = True
            return self._run(jobs, stop)

    def _run(self, jobs: Sequence[Sequence[str]], stop: Stopping) -> list[dict[str, Any]]:
        if self.processes is None:
            self._open()
        futures = {number: self._schedule(job) for number, job in enumerate(jobs)}
        attempts = dict.fromkeys(futures, 1)
        answers: dict[int, dict[str, Any]] = {}
        while futures:
            if stop.asked:
                self.stopping.set()
            for number in [number for number, future in futures.items() if future.done()]:
                answers[number] = answer = _read_answer(futures.pop(number))
                if answer["status"] != "died":
                    continue
                if attempts[number] < ATTEMPTS and not stop.asked:
                    attempts[number] += 1
                    futures[number] = self._schedule(jobs[number])
            time.sleep(_LOOK_EVERY)
        for answer in answers.values():
            if answer["status"] == "died":
                answer["status"] = "preempted" if stop.asked else "failed"
        return [answers[number] for number in range(len(jobs))]

    def close(self) -> None:
        if self.processes is not None:
            self.processes.close()
            self.processes.join()
            if self.mps:
                self.mps.close()
            self.slots.cleanup()
            self.processes = None

    def _open(self) -> None:
        # A forked worker would inherit torch's locks without the threads that release them.
        spawn = multiprocessing.get_context("spawn")
        processes.start_tracker()  # without the signals withheld: it unblocks some
        self.stopping = spawn.Event()
        self.slots = tempfile.TemporaryDirectory(prefix="transformer_norms-")
        self.mps = Mps(Path(self.slots.name)) if self.share else None
        names = visible_gpus(self.gpus, renumbered=bool(self.mps and self.mps.runs))
        with processes.withheld():
            self.processes = ProcessPool(
                max_workers=self.workers,
                initializer=_prepare_worker,
                initargs=(self.slots.name, self.workers, names, self.stopping),
                context=spawn,
            )
            self.processes.active  # noqa: B018  starts workers, and the thread that starts others

    def _schedule(self, job: Sequence[str]) -> Any:
        from transformer_norms.run.machine import cores

        job = list(job)
        if not any(text.startswith("trainer.threads=") for text in job):
            job.append(f"trainer.threads={max(1, cores() // self.workers)}")
        return self.processes.schedule(_run_in_worker, args=[job])


def _read_answer(future: Any) -> dict[str, Any]:
    try:
        return dict(future.result())
    except ProcessExpired as error:
        names = {number.value: number.name for number in signal.Signals}
        code = error.exitcode
        if code == processes.AGAIN:  # a signal came before its run had anything to save
            return {"status": "preempted"}
        cause = (
            f"ended with code {code}"
            if code >= 0
            else f"was killed by {names.get(-code, f'signal {-code}')}"
        )
        return {"status": "died", "error": f"its worker {cause}; out of memory?"}
    except Exception as error:
        return {"status": "failed", "error": describe_error(error)}


@dataclass
class Worker:
    """The state of a worker process."""

    stopping: Any = None  # the event that tells it to save and end
    slot: Lock | None = None  # locks the number of its share of the machine
    busy: bool = False


_worker = Worker()


def _run_in_worker(overrides: list[str]) -> dict[str, Any]:
    from transformer_norms.sweep.launching import run_job  # imports torch

    _worker.busy = True
    try:
        return {"status": "preempted"} if _worker.stopping.is_set() else run_job(overrides)
    finally:
        _worker.busy = False


def _prepare_worker(slots: str, workers: int, gpus: Sequence[str], stopping: Any) -> None:
    """Gives a new worker its share of the machine, before it imports torch."""
    _worker.stopping = stopping
    guard_streams()
    # The driver passes the terminal's Ctrl-C on: a second signal here would mean "at once".
    os.setpgrp()
    processes.watch_command(speaks=False)
    processes.let_through()
    number = _take_slot(Path(slots), workers)
    _take_cores(number, workers)
    _take_gpu(number, gpus)
    threading.Thread(target=_leave_when_told, args=(os.getppid(),), daemon=True).start()


def _take_slot(slots: Path, workers: int) -> int:
    """Takes the lowest number that no living worker has: the lock dies with its worker."""
    while True:
        for number in range(workers):
            slot = slots / str(number)
            slot.touch()
            if (lock := take_lock(slot)) is not None:
                _worker.slot = lock
                return number
        time.sleep(_LOOK_EVERY)  # the worker that this one replaces has not quite ended


def _take_cores(number: int, workers: int) -> None:
    """Takes an equal share of the cores, if there are enough and the system can divide them."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // workers
    if share:
        os.sched_setaffinity(0, cores[number * share : (number + 1) * share])


def _take_gpu(number: int, gpus: Sequence[str]) -> None:
    """Takes one of this command's GPUs, in turn: more workers than GPUs share them."""
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


def _leave_when_told(parent: int) -> None:
    """Lets the run save and ends the worker, once the driver says so or has ended itself."""
    while not _worker.stopping.is_set() and os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    if _worker.busy and not _was_asked():
        os.kill(os.getpid(), signal.SIGTERM)
    end = time.monotonic() + _PATIENCE
    while os.getppid() == parent or (_worker.busy and time.monotonic() < end):
        time.sleep(_LOOK_EVERY)
    os._exit(1)


def _was_asked() -> bool:
    """Whether this worker's run is about to stop already. Slurm signals all processes of a job, and
    a second signal would mean "at once"."""
    handler = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return isinstance(handler, Stopping) and handler.asked
