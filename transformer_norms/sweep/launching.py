"""Hands jobs to a launcher, Hydra's or ours, and trains one job in whichever process it chooses."""

import contextlib
import io
import re
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from transformer_norms import signals
from transformer_norms.config.compose import compose
from transformer_norms.config.plugins import plugin_error
from transformer_norms.config.tree import Config
from transformer_norms.errors import Busy, ConfigError, NoUsableCheckpoint, describe_error
from transformer_norms.run import checkpoint
from transformer_norms.run.folder import hold_run
from transformer_norms.run.summary import read_summary
from transformer_norms.signals import Preempted, Stopping
from transformer_norms.storage.manifest import DamagedError
from transformer_norms.sweep.planning import Job

# `status` (finished, diverged, preempted, busy, failed). Of a job that failed also its `error` in
# one line and, where there is one, its `traceback`. A `remark` says why runs were not stacked.
Answer = dict[str, Any]
FREE = ("seed=", "optimizer.lr=")  # what may differ between the runs of a stack
_TYPED_DIGITS = 10
# In a worker of one of Hydra's launchers, which has all jobs: a signal has stopped one of them.
_stopped = threading.Event()


def make_batches(launcher: Any, jobs: list[Job]) -> list[list[Job]]:
    """The jobs that the launcher gets at once. A launcher that runs one at a time gets one at a
    time: its end is told before the next one begins, a signal ends the sweep after it, and runs
    that another command has finished since are seen."""
    if getattr(launcher, "at_once", 0) == 1:
        return [[jobs[number] for number in numbers] for numbers in stacks(jobs, launcher)]
    return [jobs] if jobs else []


def stacks(jobs: Sequence[Job], launcher: Any) -> list[list[int]]:
    """Returns the numbers of the jobs that a worker gets at once: one, or up to `launcher.stacked`
    that differ in FREE keys alone."""
    most: Any = getattr(launcher, "stacked", "none")
    if most == "none":
        return [[number] for number in range(len(jobs))]
    alike: dict[Any, list[int]] = {}
    for number, job in enumerate(jobs):
        others = tuple(text for text in job.overrides if not text.startswith(FREE))
        alike.setdefault(number if _trains_alone(job.config) else others, []).append(number)
    counts = [(numbers, ceil(len(numbers) / most)) for numbers in alike.values()]
    return [numbers[i::count] for numbers, count in counts for i in range(count)]


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


def launch(
    launcher: Any, batch: list[Job], sweep: str, say: Callable[[str], None], stopping: Stopping
) -> list[Answer]:
    """Runs a batch and returns an answer for each job. Where the launcher breaks down, each job
    that has not ended gets it alone: a job that breaks it breaks it for no other. A launcher with
    pilots leaves them the whole `sweep`."""
    if all(job.ended for job in batch):
        return [{"status": "finished"}] * len(batch)
    if hasattr(launcher, "pilots"):
        answers: list[Answer] = launcher.run(batch, sweep, say, stopping)
        return answers
    try:
        return list(launcher.run([job.overrides for job in batch], stacks(batch, launcher)))
    except ConfigError:  # a setting of the launcher's is wrong
        raise
    except (Exception, SystemExit) as error:
        line = describe_error(error)
        say(f"the launcher broke down: {line}")
        if stopping.stop_requested:
            return [{"status": "preempted"}] * len(batch)
        if len(batch) == 1:
            return [{"status": "failed", "error": line}]
        return [launch(launcher, [job], sweep, say, stopping)[0] for job in batch]


def run_job(overrides: Sequence[str]) -> Answer:
    """Trains one run and returns its answer, as `run_jobs`."""
    return run_jobs([overrides])[0]


def run_jobs(jobs: Sequence[Sequence[str]]) -> list[Answer]:
    """Trains one run, or several as one stack, and returns the answers. It raises nothing, not even
    a plugin's SystemExit or BaseException, so the sweep goes on.

    The runs' own lines are dropped: the sweep shows their state next to that of the other runs.
    """
    from transformer_norms.run.run import train

    if _stopped.is_set():
        return [{"status": "preempted"}] * len(jobs)
    in_driver, stop = signals.current_work() is not None, Stopping()
    try:
        with stop, contextlib.redirect_stderr(io.StringIO()):
            configs = [compose(job) for job in jobs]
            works = [partial(train, c, weights_only=not c.trainer.keep_optimizer) for c in configs]
            if len(jobs) > 1:
                return _train_stack(configs, works, stop)
            return [_answer(work, stop) for work in works]
    except BaseException as error:
        return [_failure(error, stop)] * len(jobs)
    finally:
        if stop.stop_requested and not in_driver:
            _stopped.set()


def _train_stack(configs: Sequence[Config], works: Sequence[Any], stop: Stopping) -> list[Answer]:
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
        answers = [_answer(run.result, stop) for run in stack.run(begun, pass_on)]
    if stack.reason:
        answers[0]["remark"] = f"not stacked in every step: {stack.reason}"
    return answers


def _answer(work: Callable[[], Mapping[str, Any]], stop: Stopping) -> Answer:
    """Returns the answer of a run, whose summary `work` returns."""
    try:
        summary = work()
        keep_weights_only(Path(summary["folder"]))
    except BaseException as error:
        return _failure(error, stop)
    return {"status": summary["status"]}


def _failure(error: BaseException, stop: Stopping) -> Answer:
    """Returns the answer of a run that raised this error, while it is handled."""
    if isinstance(error, Busy):
        return {"status": "busy"}
    if stop.stop_requested or isinstance(error, Preempted):
        return {"status": "preempted"}
    if known := plugin_error(error):
        return {"status": "failed", "error": str(known)}
    trace = traceback.format_exc()
    return {"status": "failed", "error": describe_error(error), "traceback": trace}


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
        for file in folder.glob("checkpoints/step-*/optimizer.safetensors"):
            file.unlink()


def look_at_ended(job: Job, say: Callable[[str], None]) -> None:
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
        say(f"{job}: its result stands, its weights are damaged: {error}")
