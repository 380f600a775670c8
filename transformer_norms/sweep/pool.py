"""Runs jobs in workers that stay, so that imports, data and compilation are paid for once.

This is `launcher=pool`, and with one worker `launcher=basic`. A worker that dies, at whatever
moment and with whatever code, costs one attempt of the one job that it was given. A fresh worker
takes its place, and the job goes on from its checkpoint. Jobs that train as one are given together,
and after such a death each goes on alone.

Pebble's pool, which tokenizes here, promises less. A worker of it that dies before it has taken a
job ends the whole pool. A job that ends its process with code 0 is waited for without end. All of
its workers share a lock, which one that is killed may hold.
"""

import itertools
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformer_norms import processes, signals
from transformer_norms.config.launchers import PoolSettings
from transformer_norms.errors import ConfigError
from transformer_norms.signals import Stopping
from transformer_norms.streams import guard_streams

ATTEMPTS = 2  # of a job whose worker dies
_LOOK_EVERY = 0.2  # seconds
_PATIENCE = 30.0  # seconds for workers to save their runs, once told to stop
# A forked worker would inherit torch's locks without the threads that release them.
_SPAWN = multiprocessing.get_context("spawn")

Job = Sequence[str]
Stacks = Sequence[Sequence[int]]
Answer = dict[str, Any]


class Worker:
    """A process, and a pipe that it shares with no other worker: its death blocks none of them.
    `jobs` are the numbers of those that it was given last, until their answers have been read."""

    def __init__(self, share: Sequence[Any]) -> None:
        self.jobs: Sequence[int] = ()
        self.pipe, far = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(far, *share))
        self.process.start()
        far.close()
        self.ends: list[Any] = [self.pipe, self.process.sentinel]  # ready once there is news

    @property
    def lives(self) -> bool:
        return self.process.exitcode is None

    def give(self, function: Callable[..., list[Answer]], jobs: Sequence[Job]) -> None:
        with suppress(OSError):  # it has died, which `answers` will say
            self.pipe.send((function, [list(job) for job in jobs]))

    def answers(self) -> dict[int, Answer]:
        """Returns the answers of its jobs by their numbers; none while the worker is at them."""
        ended = not self.lives  # before the look into the pipe, where it may have left its answers
        answers: list[Answer] = []
        with suppress(OSError, EOFError):
            if self.pipe.poll():
                answers = self.pipe.recv()
        if ended and not answers:
            error = _cause(self.process.exitcode)
            answers = [{"status": "died", "error": error} for _ in self.jobs]
        if not answers:
            return {}
        jobs, self.jobs = self.jobs, ()
        return dict(zip(jobs, answers, strict=True))

    def close(self) -> None:
        """Ends the worker, which reads that nobody is at the other end of its pipe."""
        self.pipe.close()
        self.process.join(_PATIENCE)
        self.process.kill()


class Pool:
    """`workers` processes, spawned when first needed and ended by `close`. They share `gpus` GPUs.
    `at_once` is how many runs all pools train that work on one sweep."""

    def __init__(
        self, workers: int, gpus: int = 0, pools: int = 1, stacked: int | str = "none"
    ) -> None:
        self.workers, self.gpus, self.stacked = workers, gpus, stacked
        self.at_once = workers * pools
        self.living: dict[int, Worker] = {}
        self.folder: Any = None  # while it is open

    @classmethod
    def of(cls, settings: PoolSettings) -> "Pool":
        import torch

        gpus = torch.cuda.device_count()
        if settings.per_gpu > 1 and not gpus:
            raise ConfigError(f"launcher.per_gpu={settings.per_gpu}: there is no GPU here to share")
        return cls(settings.count(gpus), gpus, settings.pools, settings.stacked)

    def run(self, jobs: Sequence[Job], stacks: Stacks | None = None) -> list[Answer]:
        """Runs the jobs and returns their answers. A signal lets the workers save their runs. A
        worker gets the jobs of one of `stacks` at once, which are numbers; by default, one job."""
        with Stopping(what="the runs stop") as stop:
            stop.deferring = stop.has_unsaved_steps = True
            return self._run(jobs, stacks or [[number] for number in range(len(jobs))], stop)

    def _run(self, jobs: Sequence[Job], stacks: Stacks, stop: Stopping) -> list[Answer]:
        if self.folder is None:
            self._open()
        waiting, attempts = deque(stacks), Counter[int]()
        answers: dict[int, Answer] = {}
        while len(answers) < len(jobs):
            if stop.stop_requested:
                self.stop.touch()
                answers |= dict.fromkeys(itertools.chain(*waiting), {"status": "preempted"})
                waiting.clear()
            for number in range(self.workers):
                if waiting and (worker := self._free(number)):
                    worker.jobs = waiting.popleft()
                    attempts.update(worker.jobs)
                    worker.give(_run_in_worker, [jobs[job] for job in worker.jobs])
            for worker in self._busy():
                for job, answer in worker.answers().items():
                    again = attempts[job] < ATTEMPTS and not stop.stop_requested
                    if answer["status"] == "died" and again:
                        waiting.append([job])
                    else:
                        answers[job] = answer
            wait([end for one in self._busy() for end in one.ends], _LOOK_EVERY)
        for answer in answers.values():
            if answer["status"] == "died":
                answer["status"] = "preempted" if stop.stop_requested else "failed"
        return [answers[number] for number in range(len(jobs))]

    def close(self) -> None:
        if self.folder is None:
            return
        for worker in self.living.values():
            worker.close()
        self.living.clear()
        self.folder.cleanup()
        self.folder = None

    def _open(self) -> None:
        signals.start_tracker()
        self.folder = tempfile.TemporaryDirectory(prefix="transformer_norms-")
        # A file, since a worker that is killed may hold the lock that an event has.
        self.stop = Path(self.folder.name, "stop")
        self.names = visible_gpus(self.gpus)

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
            share = (number, self.workers, self.names, self.stop)
            with signals.withhold_signals():
                self.living[number] = worker = Worker(share)
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


# The file `stop` tells a worker to save and to end, once it is there.
_state = SimpleNamespace(stop=Path(), busy=False)


def _serve(pipe: Connection, number: int, workers: int, gpus: Sequence[str], stop: Path) -> None:
    """Runs the jobs that come through the pipe, until the driver closes it."""
    guard_streams()
    # The driver passes the terminal's Ctrl-C on: a second signal here would mean "at once".
    os.setpgrp()
    signals.watch_command(speaks=False)
    signals.let_through()
    # Its share of the machine, before it imports torch.
    _take_cores(number, workers)
    _take_gpu(number, gpus)
    _state.stop = stop
    threading.Thread(target=_leave_when_told, args=(os.getppid(),), daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            function, jobs = pipe.recv()
            pipe.send(function(jobs))


def _run_in_worker(jobs: list[list[str]]) -> list[Answer]:
    from transformer_norms.sweep.launching import run_jobs  # imports torch

    _state.busy = True
    try:
        return [{"status": "preempted"}] * len(jobs) if _state.stop.exists() else run_jobs(jobs)
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


def _leave_when_told(parent: int) -> None:
    """Lets the run save and ends the worker, once the driver says so or has ended itself."""
    while not _state.stop.exists() and os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    if _state.busy and not _was_asked():
        os.kill(os.getpid(), signal.SIGTERM)
    end = time.monotonic() + _PATIENCE
    while os.getppid() == parent or (_state.busy and time.monotonic() < end):
        time.sleep(_LOOK_EVERY)
    os._exit(1)


def _was_asked() -> bool:
    """Whether this worker's run is about to stop already. Slurm signals all processes of a job, and
    a second signal would mean "at once"."""
    work = signals.current_work()
    return work is not None and work.stop_requested
