"""Runs what is missing of a sweep, stage by stage, through whichever launcher was chosen.

question.py reads what is asked, planning.py makes its jobs, record_file.py notes them, launching.py
runs them, board.py shows them, tuning.py searches for each variant's best point, looks.py says
which variants need more seeds, and ending.py reports and answers.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from transformer_norms.comparison.deciding import decide, more_seeds, verdicts
from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.sweep_record import (
    FAILED_AT_START,
    Look,
    Tuned,
    Values,
    distinct,
)
from transformer_norms.config.launchers import read_launcher
from transformer_norms.errors import ConfigError
from transformer_norms.report.findings import Findings
from transformer_norms.signals import AGAIN, Preempted, Stopping
from transformer_norms.sweep.board import Board
from transformer_norms.sweep.ending import end_sweep
from transformer_norms.sweep.launching import (
    Answer,
    launch,
    look_at_ended,
    make_batches,
    record_failure,
)
from transformer_norms.sweep.looks import SeedPlan, look_at, read_findings
from transformer_norms.sweep.planning import Job, Jobs, Pair, Stage, at_each
from transformer_norms.sweep.power_table import power_lines, read_noise
from transformer_norms.sweep.question import read_request
from transformer_norms.sweep.record_file import RecordFile
from transformer_norms.sweep.tuning import Tuner
from transformer_norms.tracking.mirror import Mirror

_folder = attrgetter("folder")  # of a job
_LOOK_EVERY = 1.0  # seconds, for runs that another process has
# After so many looks a run is tried in earnest. Its process may be on another machine, where it
# cannot be seen to end; its number may be another process's by now.
_MOST_LOOKS = 300


@cache
def plan_sweep(arguments: tuple[str, ...]) -> tuple[Jobs, list[Job]]:
    """The checked jobs of a command line. Raises ConfigError or InputError, before anything is
    written, if one of the jobs cannot be run, and Busy if another sweep has the study's record."""
    read_launcher(arguments)
    jobs = Jobs(read_request(arguments))
    first = jobs.first_stage()
    RecordFile(jobs.study, jobs.request).check(first)
    return jobs, first


def run_sweep(arguments: Sequence[str], launcher: Any) -> None:
    """Runs the sweep of a command line and prints its JSON line. Raises SystemExit with its exit
    code, if that is not 0."""
    jobs, first = plan_sweep(tuple(arguments))
    with closing(Mirror(first[0].config.tracking, lambda line: sweep.board.say(line))) as mirror:
        sweep = Sweep(jobs, launcher, mirror.follow)
        sweep.run(first)
        code = AGAIN if sweep.stopped else ConfigError.exit_code if sweep.refused else 0
        once = distinct(sweep.jobs, _folder)
        code = end_sweep(sweep.record.path, once, sweep.failed, code, sweep.board.say)
        if any(row.began for row in sweep.board.rows):
            mirror.follow(jobs.study)  # for its report
    if hasattr(launcher, "pilots") and sweep.goes_on:
        launcher.forget(jobs.study, jobs.request.name)
    if code:
        raise SystemExit(code)


class Sweep:
    """Runs the jobs of one question. `planner` makes them, `launcher` runs them, and `follow` is
    called with each folder whose run has begun."""

    def __init__(self, planner: Jobs, launcher: Any, follow: Callable[[Path], None]) -> None:
        self.planner, self.launcher, self.follow = planner, launcher, follow
        self.request, self.question = planner.request, planner.request.question
        self.jobs: list[Job] = []
        self.tuned: list[Tuned] = []
        self.looks: list[Look] = []
        self.record = RecordFile(planner.study, planner.request)
        self.failed: dict[Path, str] = {}
        self.awaited: set[Path] = set()  # the runs that another process had
        self.stopped = self.refused = False

    def run(self, first: list[Job]) -> None:
        self.stopping = Stopping(lambda line: self.board.say(line), "the runs stop")
        with self.stopping, Board(self.request.study, self.follow) as self.board:
            try:
                self.planner.prepare_data(first)
            except Preempted:
                self.jobs, self.stopped = first, True
                return
            self.stopping.deferring = self.stopping.has_unsaved_steps = True
            lines = self.planner.introduction(first) + self.record.warnings(first)
            for line in lines + power_lines(self.question, read_noise(self.planner, first[0])):
                self.board.say(line)
            self.looks = self._earlier_look(first)
            best = self._tune()
            self._run("result", at_each(self.question.first_seeds, best))
            if self.question.until_decided:
                self._add_seeds(best)
            else:  # a look at the variants whose results have all ended
                self._keep(self._look())

    def _tune(self) -> list[Pair]:
        """Runs the tuning, if something is tuned. Returns each variant with its best point."""
        question = self.question
        if not question.tune.grid:
            return [(variant, {}) for variant in question.variants]
        tuner = Tuner(
            question.tune, question.variants, question.baseline, self._allows, self.board.say
        )
        for pairs in tuner.rounds():
            self._run("tune", at_each(question.tune.seed, pairs))
            if not self.goes_on:
                return []
            tuner.read(self.jobs)
        self.tuned = tuner.choices()
        for line in tuner.lines():
            self.board.say(line)
        return [(one.variant, one.best) for one in self.tuned if one.best is not None]

    def _run(self, stage: Stage, runs: Sequence[tuple[Values, Values, int]]) -> None:
        """Runs the jobs of each variant, point and seed that have not ended, and waits for those
        that other commands run."""
        if not self.goes_on:
            return
        try:
            jobs = [self.planner.make(stage, *run) for run in runs]
        except ConfigError as error:  # other code began one of these runs, for example
            self.board.say(str(error))
            self.refused = True
            return
        begun = {job.run.place for job in self.jobs}
        self._run_jobs([job for job in jobs if job.run.place not in begun])

    def _run_jobs(self, jobs: list[Job]) -> None:
        on_board = {job.folder for job in self.jobs}
        self.jobs += jobs
        self._write_record()
        waiting = jobs = distinct(jobs, _folder)  # two variants may be the same run
        self.board.add([job for job in jobs if job.folder not in on_board])
        while waiting and not self.stopped:
            busy = []
            for batch in make_batches(self.launcher, [job for job in waiting if not job.ended]):
                if self.stopped or self.stopping.stop_requested:
                    break
                name, say = self.request.name, self.board.say
                answers = launch(self.launcher, batch, name, say, self.stopping)
                for job, answer in zip(batch, answers, strict=True):
                    self._note(job, answer)
                    if answer["status"] == "busy":
                        busy.append(job)
            waiting = self._wait_for_others(busy)
        if not self.stopped:
            for job in jobs:
                look_at_ended(job, self.board.say)
        self._write_record()
        self.board.look()

    def _write_record(self) -> None:
        unbegun = [job.run.folder for job in self.jobs
                   if job.folder in self.failed and not job.folder.is_dir()]  # fmt: skip
        self.record.write(self.jobs, self.tuned, self.looks, unbegun)

    def _note(self, job: Job, answer: Answer) -> None:
        if answer["status"] == "preempted" or self.stopping.stop_requested:
            self.stopped = True
        if remark := answer.get("remark"):
            self.board.say(f"{job}: {remark}")
        if answer["status"] == "failed":
            self.failed[job.folder] = answer["error"]
            begun = job.folder.is_dir()
            self.board.tell(job, "failed" if begun else FAILED_AT_START, answer["error"])
            traceback = answer.get("traceback", "")
            if begun:
                record_failure(job, traceback or answer["error"])
            self.board.say_once(traceback)  # ten seeds fail with one error

    def _wait_for_others(self, busy: list[Job]) -> list[Job]:
        """Waits while other processes train these runs; returns the runs that did not end."""
        new = {job.folder for job in busy} - self.awaited
        if new and not self.stopped:
            self.board.say(f"waiting for {plural(len(new), 'run')} that another process has")
        self.awaited |= new
        for job in busy:
            for _ in range(_MOST_LOOKS):
                if self.stopping.stop_requested:
                    break
                time.sleep(_LOOK_EVERY)
                if job.state != "running":
                    break
        self.stopped = self.stopped or self.stopping.stop_requested
        return [job for job in busy if not job.ended]

    def _allows(self, variant: Values, point: Values) -> bool:
        """Whether the config of a point can be composed; a line says why not."""
        refusal = self.planner.refusal(variant, point)
        if refusal:
            self.board.say_once(f"not tried: {refusal}")
        return not refusal

    @property
    def goes_on(self) -> bool:
        return not (self.stopped or self.refused)

    # ------------------------------------------------------------------- looks at the results

    def _add_seeds(self, best: Sequence[Pair]) -> None:
        """Adds seeds until each comparison is decided, and says what was decided."""
        found = self._read_findings()
        if found is None:
            return
        plan = SeedPlan.of(self.question, best, found.study)
        most, at_once = self.question.most_seeds, max(1, getattr(self.launcher, "at_once", 1))
        counts, ready = plan.counts(found.study), False
        while not ready:
            self._run("result", plan.runs(counts))
            found = self._read_findings()
            if found is None:
                return
            if (planned := plan.counts(found.study)) != counts:
                counts = planned  # another command is ahead
                continue
            decisions = decide(found.every, found.rules, most)
            self._keep(look_at(found.study, decisions))
            wanted = more_seeds(plan.undecided(found, decisions), counts, most, at_once)
            counts, ready = wanted, wanted == counts
        for line in plan.lines(counts, decisions, found):
            self.board.say(line)

    def _read_findings(self) -> Findings | None:
        """Returns what the results say: nothing if the sweep was stopped, or if runs must not be
        compared, for which the report gives the reason."""
        if self.goes_on:
            with suppress(ConfigError):
                return read_findings(self.record.path)
        return None

    def _look(self, unfinished: bool = False) -> Look | None:
        found = self._read_findings()
        return look_at(found.study, verdicts(found.every), unfinished=unfinished) if found else None

    def _keep(self, look: Look | None) -> None:
        if look and look.seen:
            self.looks.append(look)
            self._write_record()

    def _earlier_look(self, first: list[Job]) -> list[Look]:
        """Returns the look that a person may have had at variants whose results have all ended: by
        a report of a sweep that was stopped. Where this command adds seeds, those that have ended
        count, too.
        """
        record = self.record.read()
        if record is None or record.most:
            return []
        if not self.request.named and not any(job.run in record.runs for job in first):
            return []  # a bare `-m` that has nothing to do with the one before it
        look = self._look(unfinished=not {*self.question.first_seeds} <= {*record.seeds})
        return [look] if look and look.seen else []
