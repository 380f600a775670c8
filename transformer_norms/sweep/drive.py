"""Runs a sweep: what is missing of it, stage by stage, through whichever launcher was chosen."""

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from transformer_norms.config.compose import check_hydras
from transformer_norms.errors import Busy, ConfigError
from transformer_norms.locks import Lock, is_locked, wait_for_lock
from transformer_norms.run.sweep_record import (
    SweepRecord,
    Tuned,
    Values,
    label,
    merged,
    path_of,
    read_record,
)
from transformer_norms.sweep.asking import asked
from transformer_norms.sweep.board import Board
from transformer_norms.sweep.ending import AGAIN, REFUSED, answered
from transformer_norms.sweep.job import keep_weights_only, record_failure
from transformer_norms.sweep.launch import batches, launched
from transformer_norms.sweep.mirrors import Mirrors
from transformer_norms.sweep.opening import counted, introduced
from transformer_norms.sweep.planning import Job, Jobs
from transformer_norms.sweep.tuning import Grid, chosen, extended, missing_from
from transformer_norms.training.stopping import Stopping

_HYDRAS = ("hydra/", "hydra.", "launcher=", "launcher.", "parallel=")
_LOOK_EVERY = 1.0  # seconds, for runs that another process has


@cache
def planned(arguments: tuple[str, ...]) -> tuple[Jobs, list[Job]]:
    """The jobs of a command line, checked; ConfigError or InputError, and nothing written, where
    one of them cannot be run."""
    check_hydras([text for text in arguments if text.startswith(_HYDRAS)])
    jobs = Jobs(asked(text for text in arguments if not text.startswith(("hydra/", "hydra."))))
    return jobs, jobs.first()


def run(arguments: Sequence[str], launcher: Any) -> None:
    """What Hydra's `-m` calls. Ends with the sweep's JSON line; SystemExit with its exit code."""
    jobs, first = planned(tuple(arguments))
    with closing(Mirrors()) as mirrors:
        sweep = Sweep(jobs, launcher, mirrors)
        sweep.run(first)
        record, ran = path_of(sweep.study, jobs.asked.name), _distinct(sweep.all)
        known = AGAIN if sweep.stopped else REFUSED if sweep.refused else 0
        code = answered(record, ran, sweep.failed, known, sweep.board.say)
        mirrors.report(sweep.study)
    if code:
        raise SystemExit(code)


class Sweep:
    """A question being answered: `jobs` makes its jobs, `launcher` is Hydra's, `mirrors` show its
    runs in W&B."""

    def __init__(self, jobs: Jobs, launcher: Any, mirrors: Mirrors) -> None:
        self.jobs, self.launcher, self.mirrors = jobs, launcher, mirrors
        self.asked, self.question = jobs.asked, jobs.asked.question
        self.study = Path("runs") / self.asked.study
        self.all: list[Job] = []
        self.tuned: list[Tuned] = []
        self.grid: Grid = {key: list(self.question.tune[key]) for key in self.question.tuned_keys}
        self.failed: dict[Path, str] = {}
        self.told: set[str] = set()  # tracebacks
        self.stopped = self.refused = False

    def run(self, first: list[Job]) -> None:
        stopping = Stopping()
        stopping.patient = True
        with stopping, Board(self.asked.name, self.mirrors.follow) as self.board:
            self.stopping = stopping
            for line in introduced(self.jobs, first, self.study):
                self.board.say(line)
            self._stage(first)
            if self.question.tune and not self.stopped:
                self._tune()
            if self.question.tune and not self.stopped:
                self._results()

    def _stage(self, jobs: list[Job]) -> None:
        """Runs those of `jobs` that have not ended, and waits for those that others run."""
        known = {job.folder for job in self.all}
        self.all += jobs
        self._record()
        self.board.add([job for job in _distinct(jobs) if job.folder not in known])
        waiting = _distinct(jobs)
        while waiting and not self.stopped:
            busy = []
            for batch in batches(self.launcher, [job for job in waiting if not job.ended]):
                if self.stopped:
                    break
                answers = launched(self.launcher, batch, self.board.say)
                for job, answer in zip(batch, answers, strict=True):
                    self._heard(job, answer)
                    if answer["status"] == "busy":
                        busy.append(job)
            waiting = self._released(busy)
        for job in _distinct(jobs):
            with suppress(Busy):  # one was killed between its end and this
                keep_weights_only(job.folder)
        self.board.look()

    def _heard(self, job: Job, answer: dict[str, Any]) -> None:
        if answer["status"] == "preempted" or self.stopping.asked:
            self.stopped = True
        if answer["status"] == "failed":
            self.failed[job.folder] = answer["error"]
            self.board.tell(job, "failed", answer["error"])
            if job.folder.is_dir():
                record_failure(job.folder, answer["error"])
            trace = answer.get("traceback", "")
            if trace not in self.told:  # one error of ten seeds is one
                self.told.add(trace)
                for line in trace.splitlines():
                    self.board.say(line)

    def _released(self, busy: list[Job]) -> list[Job]:
        """Waits until none of the runs that other processes have is held; those not ended then."""
        if busy and not self.stopped:
            self.board.say(f"waiting for {counted(len(busy), 'run')} that another process has")
        for job in busy:
            while not self.stopping.asked and is_locked(job.folder):
                time.sleep(_LOOK_EVERY)
        self.stopped = self.stopped or self.stopping.asked
        return [job for job in busy if not job.ended]

    def _tune(self) -> None:
        """Chooses each variant's best point; once more on a wider grid where one was at an edge."""
        found = self._chosen()
        wider = extended(self.grid, found)
        if wider != self.grid and (more := self._more(wider)):
            self.grid = wider
            self._stage(more)
            if self.stopped:
                return
            found = self._chosen()
        self.tuned = found
        for one in found:
            if one.best is None:
                self.board.say(f"{label(one.variant)}: diverged wherever it was tried")
                continue
            edge = f"; still the edge of {', '.join(one.edge)}" if one.edge else ""
            self.board.say(f"{label(one.variant)}: best at {_shown(one.best)}{edge}")

    def _chosen(self) -> list[Tuned]:
        """Of the variants whose trials have all ended; another waits for the next command."""
        found = []
        for variant in self.question.variants:
            trials = [job for job in self.all if job.run.variant == variant]
            if all(job.ended for job in trials):
                points = [(job.run.tuned, job.folder) for job in trials]
                found.append(chosen(variant, points, self.grid))
            else:
                self.board.say(f"{label(variant)}: not all of its tuning runs have ended")
        return found

    def _more(self, wider: Grid) -> list[Job]:
        """The trials that a wider grid adds, or none where one of them is not allowed."""
        points = replace(self.question, tune={**self.question.tune, **wider}).points
        new = missing_from(self.grid, points)
        try:
            more = [
                self.jobs.of("tune", variant, point, seed)
                for seed in self.question.tune_seeds
                for variant in self.question.variants
                for point in new
            ]
        except ConfigError as error:
            self.board.say(f"the best was at an edge of the grid, which ends there: {error}")
            return []
        for key in wider:
            steps = ", ".join(str(value) for value in wider[key])
            self.board.say(f"a best was at an edge of the grid: {key} now in {steps}, for all")
        return more

    def _results(self) -> None:
        """Stage 2: each variant at its best, on seeds that the tuning has not seen."""
        try:
            jobs = [
                self.jobs.of("result", tuned.variant, tuned.best, seed)
                for seed in self.question.seeds
                for tuned in self.tuned
                if tuned.best is not None
            ]
        except ConfigError as error:  # one was begun by other code, say
            self.board.say(str(error))
            self.refused = True
        else:
            self._stage(jobs)

    def _record(self) -> None:
        """Writes sweep-NAME.json. A named sweep's planned runs stay planned whatever is typed next,
        so that none is lost; a bare `-m` has no name to come back to, and is the last one typed."""
        record = SweepRecord(
            name=self.asked.name,
            question=self.question.question,
            axes=self.question.axes,
            baseline=self.question.baseline,
            tune=self.grid,
            tune_seeds=self.question.tune_seeds,
            seeds=self.question.seeds,
            effect=self.question.effect,
            runs=[job.run for job in self.all],
            tuned=self.tuned,
        )
        path = path_of(self.study, record.name)
        with _alone(self.study):
            if self.asked.named and path.is_file():
                record = merged(read_record(path), record)
            record.write(self.study)


def _distinct(jobs: list[Job]) -> list[Job]:
    """Each folder once: two variants may come to the same run."""
    return list({job.folder: job for job in reversed(jobs)}.values())[::-1]


def _shown(values: Values) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _alone(study: Path) -> Lock:
    """One driver at a time reads and writes the study's record."""
    study.mkdir(parents=True, exist_ok=True)
    return wait_for_lock(study)
