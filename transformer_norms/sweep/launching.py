"""Hands jobs to a launcher, Hydra's or ours, and trains one job in whichever process it chooses."""

import contextlib
import io
import re
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

from transformer_norms import signals
from transformer_norms.config.compose import compose
from transformer_norms.config.plugins import plugin_error
from transformer_norms.config.tree import Config
from transformer_norms.errors import (
    Busy,
    ConfigError,
    NoUsableCheckpoint,
    StorageError,
    describe_error,
)
from transformer_norms.progress import Say
from transformer_norms.run import checkpoint
from transformer_norms.run.folder import hold_run
from transformer_norms.run.summary import read_summary
from transformer_norms.signals import Preempted, Stopping
from transformer_norms.storage.manifest import DamagedError
from transformer_norms.sweep.launcher import JobEnd, Launcher, Stacks
from transformer_norms.sweep.planning import Job

FREE = ("seed=", "optimizer.lr=")  # what may differ between the runs of a stack
_TYPED_DIGITS = 10
# In a worker of one of Hydra's launchers, which has all jobs: a signal has stopped one of them.
_stopped = threading.Event()


def make_stacks(jobs: Sequence[Job], most: int | str) -> list[list[Job]]:
    """Returns the jobs that a worker gets at once: one, or up to `most` that differ in FREE keys
    alone."""
    if not isinstance(most, int):
        return [[job] for job in jobs]
    alike: dict[Any, list[Job]] = {}
    for job in jobs:
        others = tuple(text for text in job.overrides if not text.startswith(FREE))
        alike.setdefault(job.folder if _trains_alone(job.config) else others, []).append(job)
    counts = [(same, ceil(len(same) / most)) for same in alike.values()]
    return [same[i::count] for same, count in counts for i in range(count)]


def _trains_alone(config: Config) -> bool:
    """Whether a run cannot be in a stack, which has one model of each run, and knows neither hooks
    nor what others draw."""
    keys = config.trainer
    return bool(
        keys.replicas not in ("auto", 1)
        or keys.compile not in ("auto", "none")
        or keys.qk_clip != "none"
        or keys.activation_checkpointing
        or config.model.dropout
    )


def launch(launcher: Launcher, stacks: Stacks, say: Say, stopping: Stopping) -> dict[Path, JobEnd]:
    """Runs stacks of jobs and returns how each job ended, by its folder. Where the launcher breaks
    down, it gets each job alone, if it `can_run_alone`: a job that breaks it breaks it for no
    other."""
    jobs = list(chain(*stacks))
    if all(job.ended for job in jobs):
        return {job.folder: JobEnd("finished") for job in jobs}
    try:
        return launcher.run(stacks, stopping)
    except (ConfigError, StorageError):  # a setting of the launcher's is wrong, or the disk is full
        raise
    except (Exception, SystemExit) as error:
        if not launcher.can_run_alone:
            raise
        line = describe_error(error)
        say(f"the launcher broke down: {line}")
        if stopping.stop_requested:
            return {job.folder: JobEnd("preempted") for job in jobs}
        if len(jobs) == 1:
            return {jobs[0].folder: JobEnd("failed", line)}
        alone = [launch(launcher, [[job]], say, stopping) for job in jobs]
        return {folder: end for ends in alone for folder, end in ends.items()}


def run_jobs(jobs: Sequence[Sequence[str]]) -> list[JobEnd]:
    """Trains one run, or several as one stack, and returns how each ended. `jobs` are their
    overrides. It raises nothing, not even a plugin's SystemExit or BaseException, so the sweep goes
    on.

    The runs' own lines are dropped: the sweep shows their state next to that of the other runs.
    """
    from transformer_norms.run.run import train

    if _stopped.is_set():
        return [JobEnd("preempted")] * len(jobs)
    in_driver, stop = signals.current_work() is not None, Stopping()
    try:
        with stop, contextlib.redirect_stderr(io.StringIO()):
            configs = [compose(job) for job in jobs]
            works = [partial(train, c, weights_only=not c.trainer.keep_optimizer) for c in configs]
            if len(jobs) > 1:
                return _train_stack(configs, works, stop)
            return [_end_of(works[0], stop)]
    except BaseException as error:
        return [_failure(error, stop)] * len(jobs)
    finally:
        if stop.stop_requested and not in_driver:
            _stopped.set()


def _train_stack(configs: Sequence[Config], works: Sequence[Any], stop: Stopping) -> list[JobEnd]:
    """Trains runs as one stack. The seconds of each are those in which all of them trained."""
    import torch._dynamo  # each run imports it in a thread, and two imports at once fail

    from transformer_norms.run import machine
    from transformer_norms.run.plan import Plan
    from transformer_norms.training.parallel.stacks import Stack, StackedLoss

    stop.deferring = stop.has_unsaved_steps = True
    device, compiler = configs[0].trainer.device, None
    if device == "cuda":
        torch.compiler.reset()  # the limit of recompilation counts what earlier stacks compiled
        compiler = partial(torch.compile, dynamic=False, fullgraph=True)
    stack = Stack(compiler, [Plan(config).folder.name for config in configs])
    stops = [Stopping() for _ in works]
    begun = [
        partial(work, stopping=stops[i], loss=partial(StackedLoss, stack=stack, place=i))
        for i, work in enumerate(works)
    ]

    def pass_on() -> None:
        for one in stops:
            one.stop_requested |= stop.stop_requested

    with machine.deterministic(device):
        ends = [_end_of(run.result, stop) for run in stack.run(begun, pass_on)]
    if stack.reason:
        ends[0] = replace(ends[0], remark=f"not stacked in every step: {stack.reason}")
    return ends


def _end_of(work: Callable[[], Mapping[str, Any]], stop: Stopping) -> JobEnd:
    """Returns how a run ended, whose summary `work` returns."""
    try:
        summary = work()
        keep_weights_only(Path(summary["folder"]))
    except BaseException as error:
        return _failure(error, stop)
    return JobEnd(summary["status"])


def _failure(error: BaseException, stop: Stopping) -> JobEnd:
    """Returns how a run ended that raised this error."""
    if isinstance(error, Busy):
        return JobEnd("busy")
    if stop.stop_requested or isinstance(error, Preempted):
        return JobEnd("preempted")
    if known := plugin_error(error):
        return JobEnd("failed", str(known))
    return JobEnd("failed", describe_error(error), "".join(traceback.format_exception(error)))


def shorten(override: str) -> str:
    """Returns `lr=0.0036370446707501072` as `lr=0.003637`: a number that no person typed, but a
    sampler drew. Names of variants and tables stay readable, and the run is what they say."""
    key, _, value = override.partition("=")
    if len(re.sub(r"\D", "", value)) <= _TYPED_DIGITS:
        return override
    try:
        return f"{key}={float(value):.4g}"
    except ValueError:
        return override


def record_failure(job: Job, error: str) -> None:
    """Marks a run as failed that could not do so itself: its process is gone, or the disk is full.
    A disk that is still full does not end the sweep, nor does a summary that cannot be read. The
    summary of a run that was not begun this time stays as it is."""
    with contextlib.suppress(Busy, OSError), hold_run(job.folder):
        summary = job.summary
        if summary and summary.status == "running":
            replace(summary, status="failed", error=error).write(job.folder)


def keep_weights_only(folder: Path) -> None:
    """Deletes the optimizer's state of a finished run of a sweep, so that hundreds of runs fit on a
    disk. A run that was trained outside of a sweep, or with keep_optimizer, keeps it."""
    summary = read_summary(folder)
    if not (summary and summary.status == "finished" and summary.weights_only):
        return
    with hold_run(folder):
        for file in folder.glob("checkpoints/step-*/*"):
            if file.name in checkpoint.OPTIONAL:
                file.unlink()


def look_at_ended(job: Job, say: Say) -> None:
    """Deletes what a run could not delete that was killed at its end. Says which of its checkpoints
    does not verify: what the run has measured is still its result."""
    summary = job.summary
    if summary is None or not summary.ended:
        return
    try:
        keep_weights_only(job.folder)
        folder = job.folder / "checkpoints"
        checkpoint.newest(folder, summary.identity, lambda line: say(f"{job}: {line}"))
    except Busy:
        pass
    except (ConfigError, DamagedError, NoUsableCheckpoint) as error:
        say(f"{job}: its result counts, its weights are damaged: {error}")
