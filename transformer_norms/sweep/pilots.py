"""`launcher=slurm`: jobs of Slurm that run a sweep together, and the command that looks after them.

Such a job is a pilot. It runs the whole sweep, all stages, as a command with `launcher=pool` would,
and shares the study's runs with the other pilots. The command that is typed trains nothing. It
submits the pilots, says how far they are, and ends in the report once they have trained all runs.
"""

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from transformer_norms.comparison.sentences import plural
from transformer_norms.config.launchers import (
    PoolSettings,
    SlurmSettings,
    read_launcher,
    read_options,
)
from transformer_norms.errors import Busy, ConfigError
from transformer_norms.progress import say
from transformer_norms.run.folder import path_text
from transformer_norms.signals import AGAIN, Stopping
from transformer_norms.storage.files import make_folder, remove_leftovers, write_json
from transformer_norms.storage.locks import wait_for_lock
from transformer_norms.storage.reading import is_there, read_typed
from transformer_norms.sweep.drive import run_sweep
from transformer_norms.sweep.launcher import JobEnd, Launcher, Stacks
from transformer_norms.sweep.planning import Job
from transformer_norms.sweep.pool import Pool
from transformer_norms.sweep.question import Request

FOLDER = "slurm"  # in the study's folder: the pilots' logs, and what was submitted
SIGNAL = "USR1"  # from Slurm, before the time limit; a run that gets it saves itself
_LOOK_EVERY = 10.0  # seconds
_MOST_REQUEUES = 1000  # at the time limit; a preempted pilot does not count
_OURS, _PART = ("launcher=", "launcher."), "launcher.part="


@dataclass(frozen=True)
class Submission:
    """An array of pilots, as Slurm knows it."""

    job: str


class Pilots(Launcher):
    """The pilots of one sweep, as the command that was typed sees them."""

    can_run_alone = False  # pilots run the whole sweep, and each call may submit others

    def __init__(self, settings: SlurmSettings, command: Sequence[str], request: Request) -> None:
        _check_slurm()
        self.settings, self.name = settings, request.name
        kept = (text for text in command if not text.startswith(_OURS) or text.startswith(_PART))
        self.pilot = Pilot(os.getcwd(), tuple(kept), settings.pool, request.only)
        self.at_once = settings.pool.count(settings.gpus) * settings.pilots
        self.folder = Path("runs") / request.study / FOLDER
        self.record = self.folder / f"{self.name}.json"
        self.logs = f"their logs are in {path_text(self.folder)}"

    def run(self, stacks: Stacks, stopping: Stopping) -> dict[Path, JobEnd]:
        """Returns how each of these runs ended, of which some have not. While pilots have work to
        do that is `preempted`: again later. With `launcher.wait` that is so only where a signal has
        come, or where Slurm does not answer."""
        jobs = list(chain(*stacks))
        make_folder(self.folder)
        remove_leftovers(self.folder)
        try:
            at_work, missing = self._look_or_submit(jobs), _count_missing(jobs)
            while at_work and self.settings.wait and not stopping.stop_requested:
                _pause(stopping)
                if stopping.stop_requested:
                    break
                if not (_count_missing(jobs) and pilot_states(at_work)):
                    # Other pilots are submitted where these have ended after some progress.
                    before, missing = missing, _count_missing(jobs)
                    at_work = self._look_or_submit(jobs) if 0 < missing < before else None
        except Busy as error:
            say(str(error))
            at_work = "unknown"
        return {j.folder: JobEnd("preempted") if at_work else self._end_of(j) for j in jobs}

    def _look_or_submit(self, jobs: Sequence[Job]) -> str | None:
        """Returns the array of the pilots that live or have just been submitted. None if nothing
        more is to be done: the pilots have ended, and at least one of them after it had tried every
        run."""
        missing = plural(_count_missing(jobs), "run")
        with wait_for_lock(self.folder):  # one command at a time submits
            if is_there(self.record):
                before = read_typed(self.record, Submission).job
                if states := pilot_states(before):
                    runs = Counter(job.state for job in jobs if not job.ended)
                    say(f"slurm: job {before}: {_text(states)}; not ended: {_text(runs)}")
                    return before
                if any(self.folder.glob(f"{before}_*result.pkl")):  # which submitit writes
                    return None
                say(f"slurm: the pilots of job {before} have ended without {missing}; {self.logs}")
            now = submit(self.settings, self.pilot, self.folder, self.name)
            write_json(self.record, asdict(Submission(now)))
        say(
            f"slurm: submitted job {now}, {plural(self.settings.pilots, 'pilot')} for {missing}; "
            f"squeue --jobs={now} shows them, scancel {now} ends them, {self.logs}"
        )
        return now

    def _end_of(self, job: Job) -> JobEnd:
        if job.ended:
            return JobEnd("finished")
        error = job.error.rpartition("\n")[2]
        return JobEnd("failed", error or f"the pilots ended without it; {self.logs}")

    def forget_sweep(self) -> None:
        """The next command submits other pilots for runs that failed, or that are added."""
        self.record.unlink(missing_ok=True)


@dataclass
class Pilot:
    """The work of a job of Slurm: the sweep, with a pool, in the folder where it was typed."""

    folder: str
    command: tuple[str, ...]
    pool: PoolSettings
    only: str

    def __call__(self) -> int:
        from submitit import JobEnvironment

        os.chdir(self.folder)
        code = run_sweep(self.command, lambda request: Pool.of(self.pool), self.only)
        if code != AGAIN:
            return code
        # The runs are saved. submitit's handler puts the job into the queue again. It would do so
        # with a job that was cancelled, which has another state by now. Where Slurm does not
        # answer, the pilot ends, and the command that was typed submits others.
        with suppress(Busy, subprocess.SubprocessError):
            if "RUNNING" in pilot_states(JobEnvironment().job_id):
                signal.raise_signal(getattr(signal, f"SIG{SIGNAL}"))
        raise SystemExit(code)  # which leaves no result: not every run was tried

    def checkpoint(self) -> Any:
        """Returns what the job runs after it was queued again: the same. submitit calls it at
        Slurm's signal, also where that comes before the sweep has begun."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def make_launcher(command: Sequence[str], request: Request) -> Launcher:
    """Returns the launcher that the command of a sweep chooses."""
    settings = read_launcher(command)
    if isinstance(settings, SlurmSettings):
        return Pilots(settings, command, request)
    return Pool.of(settings)


def submit(settings: SlurmSettings, pilot: Pilot, folder: Path, name: str) -> str:
    """Submits the pilots and returns the number of their array, as Slurm knows it. Raises
    ConfigError with sbatch's own words if it refuses them."""
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError, environment_variables
    from submitit.helpers import clean_env

    executor = SlurmExecutor(folder, max_num_timeout=_MOST_REQUEUES)
    executor.update_parameters(job_name=name, **_parameters(settings))
    with ExitStack() as stack:
        if "SLURM_JOB_ID" in os.environ:  # submitted from a job: its variables are not ours
            kept = {key: os.environ[key] for key in ("SLURM_CONF",) if key in os.environ}
            stack.enter_context(clean_env())
            stack.enter_context(environment_variables(**kept))
        try:
            jobs = executor.submit_array([pilot] * settings.pilots)
        except (FailedJobError, FailedSubmissionError) as error:
            lines = str(error).strip().splitlines() or [""]
            raise ConfigError(f"sbatch: {lines[-1].removeprefix('sbatch: ')}") from None
    return jobs[0].job_id.partition("_")[0]


def _parameters(settings: SlurmSettings) -> dict[str, Any]:
    """Returns what submitit writes into the script for sbatch."""
    memory = settings.memory if settings.memory == "none" else f"{round(settings.memory * 1024)}M"
    chosen = {
        "partition": settings.partition,
        "mem": memory,
        "gpus_per_node": settings.gpus or "none",
    }
    return {
        "time": settings.time,
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": settings.cpus,
        "srun_args": [f"--cpus-per-task={settings.cpus}"],  # which srun takes from nowhere else
        "setup": [f"export SUBMITIT_PREEMPT_SIGNAL={SIGNAL}"],
        "wckey": None,
        "additional_parameters": {"requeue": True, **read_options(settings.options)},
        **{key: value for key, value in chosen.items() if value != "none"},
    }


def pilot_states(job: str) -> Counter[str]:
    """Returns how many jobs of an array are in each state, RUNNING or PENDING (Resources) for
    example; nothing if all have ended. Raises Busy if Slurm does not answer."""
    command = ["squeue", "--noheader", "--array", f"--jobs={job}", "--format=%T %r"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Busy(f"squeue: {error}") from None
    if done.returncode and "Invalid job id" in done.stderr:  # ended, and forgotten
        return Counter()
    if done.returncode:
        raise Busy(f"squeue: {' '.join(done.stderr.split())}")
    states = (line.split(maxsplit=1) for line in done.stdout.splitlines() if line.strip())
    return Counter(
        state if why == ["None"] else f"{state} ({' '.join(why)})" for state, *why in states
    )


def _check_slurm() -> None:
    """Raises ConfigError where nothing can be submitted, and ModuleNotFoundError."""
    os.environ["SUBMITIT_PREEMPT_SIGNAL"] = SIGNAL  # submitit reads it when it is imported
    import submitit  # noqa: F401

    if missing := [name for name in ("sbatch", "srun", "squeue") if not shutil.which(name)]:
        raise ConfigError(
            f"launcher=slurm: there is no {missing[0]} here; type it where Slurm's commands are"
        )


def _pause(stopping: Stopping) -> None:
    """Waits until it is time for the next look at Slurm, or a signal has come."""
    end = time.monotonic() + _LOOK_EVERY
    while time.monotonic() < end and not stopping.stop_requested:
        time.sleep(0.1)


def _count_missing(jobs: Sequence[Job]) -> int:
    return sum(not job.ended for job in jobs)


def _text(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
