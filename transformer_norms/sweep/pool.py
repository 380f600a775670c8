"""Runs jobs in workers that stay, so that imports, data and compilation are paid for once.

This is `launcher=pool`, and with one worker `launcher=basic`. A worker that dies, at any moment and
with any code, costs one attempt of the one job that it was given. A fresh worker takes its place,
and the job goes on from its checkpoint. Jobs that train as one are given together, and after such a
death each goes on alone.

Pebble's pool, which tokenizes here, promises less. A worker of it that dies before it has taken a
job ends the whole pool. A job that ends its process with code 0 is waited for without end. All of
its workers share a lock, which one that is killed may hold.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transformer_norms import processes, signals
from transformer_norms.config.launchers import PoolSettings
from transformer_norms.errors import ConfigError
from transformer_norms.signals import Stopping
from transformer_norms.streams import guard_streams
from transformer_norms.sweep.launcher import JobEnd, Launcher, Stacks

if TYPE_CHECKING:
    from transformer_norms.sweep.planning import Job

ATTEMPTS = 2  # of a job whose worker dies
_LOOK_EVERY = 0.2  # seconds
_PATIENCE = 30.0  # seconds for workers to save their runs, once told to stop
# A forked worker would inherit torch's locks without the threads that release them.
_SPAWN = multiprocessing.get_context("spawn")


class Worker:
    """A process, and a pipe that it shares with no other worker: its death blocks none of them.
    `jobs` are those that it was given last, until it has been read how they ended."""

    def __init__(self, share: Sequence[Any]) -> None:
        self.jobs: Sequence[Job] = ()
        self.pipe, far = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(far, *share))
        self.process.start()
        far.close()
        self.ends: list[Any] = [self.pipe, self.process.sentinel]  # ready once there is news

    @property
    def lives(self) -> bool:
        return self.process.exitcode is None

    def give(self, jobs: Sequence["Job"]) -> None:
        self.jobs = jobs
        with suppress(OSError):  # it has died, which `ended_jobs` will say
            self.pipe.send((_run_in_worker, [list(job.overrides) for job in jobs]))

    def ended_jobs(self) -> list[tuple["Job", JobEnd]]:
        """Returns its jobs and how they ended; none while the worker is at them."""
        died = not self.lives  # before the look into the pipe, where it may have left its answer
        ends: list[JobEnd] = []
        with suppress(OSError, EOFError):
            if self.pipe.poll():
                ends = self.pipe.recv()
        if died and not ends:
            ends = [JobEnd("died", _cause(self.process.exitcode))] * len(self.jobs)
        if not ends:
            return []
        jobs, self.jobs = self.jobs, ()
        return list(zip(jobs, ends, strict=True))

    def stop(self) -> None:
        """Lets it save its run."""
        with suppress(OSError):
            self.pipe.send(None)

    def close(self) -> None:
        """Ends the worker, which reads that nobody is at the other end of its pipe."""
        self.pipe.close()
        self.process.join(_PATIENCE)
        self.process.kill()


class Pool(Launcher):
    """`workers` processes, spawned when first needed and ended by `close`. They share `gpus` GPUs.
    `at_once` is how many runs all pools train that work on one sweep."""

    def __init__(
        self, workers: int, gpus: int = 0, pools: int = 1, stacked: int | str = "none"
    ) -> None:
        self.workers, self.gpus, self.stacked = workers, visible_gpus(gpus), stacked
        self.at_once = workers * pools
        self.living: dict[int, Worker] = {}

    @classmethod
    def of(cls, settings: PoolSettings) -> "Pool":
        import torch

        gpus = torch.cuda.device_count()
        if settings.per_gpu > 1 and not gpus:
            raise ConfigError(f"launcher.per_gpu={settings.per_gpu}: there is no GPU here to share")
        return cls(settings.count(gpus), gpus, settings.pools, settings.stacked)

    def run(self, stacks: Stacks, stopping: Stopping) -> dict[Path, JobEnd]:
        waiting, attempts, ends = deque(stacks), Counter[Path](), dict[Path, JobEnd]()
        missing, told = sum(map(len, stacks)), False
        while len(ends) < missing:
            if stopping.stop_requested:
                for busy in [] if told else self._busy():
                    busy.stop()
                ends |= {job.folder: JobEnd("preempted") for job in chain(*waiting)}
                waiting.clear()
                told = True
            for number in range(self.workers):
                if waiting and (worker := self._free(number)):
                    worker.give(waiting.popleft())
                    attempts.update(job.folder for job in worker.jobs)
            for job, end in chain(*(worker.ended_jobs() for worker in self._busy())):
                if end.status != "died":
                    ends[job.folder] = end
                elif stopping.stop_requested:
                    ends[job.folder] = JobEnd("preempted")
                elif attempts[job.folder] < ATTEMPTS:
                    waiting.append([job])
                else:
                    ends[job.folder] = replace(end, status="failed")
            wait([end for one in self._busy() for end in one.ends], _LOOK_EVERY)
        return ends

    def close(self) -> None:
        for worker in self.living.values():
            worker.close()
        self.living.clear()

    def _busy(self) -> list[Worker]:
        return [worker for worker in self.living.values() if worker.jobs]

    def _free(self, number: int) -> Worker | None:
        """Returns the worker of that number, a fresh one in the place of one that has died; None
        if it is at work."""
        worker = self.living.get(number)
        if worker and worker.jobs:
            return None
        if worker and not worker.lives:
            worker.close()
            worker = None
        if worker is None:
            with signals.withhold_signals():
                self.living[number] = worker = Worker((number, self.workers, self.gpus))
        return worker


def visible_gpus(gpus: int) -> list[str]:
    """Returns the names of the `gpus` GPUs that CUDA sees here, for CUDA_VISIBLE_DEVICES. CUDA ends
    that list at the first GPU that does not exist."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(gpus))
    return [name.strip() for name in names][:gpus]


def _cause(code: int | None) -> str:
    """Says how a worker ended."""
    if code is None or code >= 0:
        return f"its worker ended with code {code}"
    names = {number.value: number.name for number in signal.Signals}
    memory = "; out of memory?" if -code == signal.SIGKILL else ""
    return f"its worker was killed by {names.get(-code, f'signal {-code}')}{memory}"


# ---------------------------------------------------------------------------------- in the worker


_state = SimpleNamespace(busy=False, told_to_stop=False)


def _serve(pipe: Connection, number: int, workers: int, gpus: Sequence[str]) -> None:
    """Runs the jobs that come through the pipe, until the driver closes it."""
    guard_streams()
    # The driver passes the terminal's Ctrl-C on: a second signal here would mean "at once".
    os.setpgrp()
    signals.watch_command(speaks=False)
    signals.let_through()
    # Its share of the machine, before it imports torch.
    _take_cores(number, workers)
    _take_gpu(number, gpus)
    given = SimpleQueue[Any]()
    threading.Thread(target=_listen, args=(pipe, given), daemon=True).start()
    with suppress(OSError):  # the driver has ended
        for function, jobs in iter(given.get, None):
            pipe.send(function(jobs))


def _listen(pipe: Connection, given: "SimpleQueue[Any]") -> None:
    """Passes on the jobs that the driver gives. Lets the run save once the driver says so, or has
    ended itself; then the worker ends as well."""
    with suppress(OSError, EOFError):
        while True:
            if jobs := pipe.recv():
                given.put(jobs)
            else:
                _stop_run()
    _stop_run()
    given.put(None)
    time.sleep(_PATIENCE)
    os._exit(1)


def _stop_run() -> None:
    """Stops the run of this worker, unless a signal has done so: Slurm signals all processes of a
    job, at about the same time, and a second signal would mean "at once"."""
    _state.told_to_stop = True
    time.sleep(_LOOK_EVERY)
    if _state.busy and not _was_asked():
        os.kill(os.getpid(), signal.SIGTERM)


def _run_in_worker(jobs: list[list[str]]) -> list[JobEnd]:
    from transformer_norms.sweep.launching import run_jobs  # imports torch

    _state.busy = True
    try:
        return [JobEnd("preempted")] * len(jobs) if _state.told_to_stop else run_jobs(jobs)
    finally:
        _state.busy = False


def _take_cores(number: int, workers: int) -> None:
    """Takes an equal share of the cores, and one core where there are not enough. One of several
    workers chooses which ones, where the system lets it."""
    os.environ[processes.SHARE] = str(max(1, processes.cores() // workers))
    if workers > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        share = len(cores) // workers
        os.sched_setaffinity(0, cores[number * share : (number + 1) * share] or cores)


def _take_gpu(number: int, gpus: Sequence[str]) -> None:
    """Takes one of this command's GPUs, in turn: more workers than GPUs share them."""
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


def _was_asked() -> bool:
    """Whether this worker's run is about to stop already."""
    work = signals.current_work()
    return work is not None and work.stop_requested
