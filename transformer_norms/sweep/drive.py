"""Runs what is missing of a sweep, stage by stage, through whichever launcher was chosen.

question.py reads what is asked, planning.py makes its jobs, record_file.py notes them, launching.py
runs them, board.py shows them, tuning.py searches for each variant's best point, looks.py says
which variants need more seeds, and ending.py reports and answers.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

from transformer_norms.comparison.deciding import Counts, decide, more_seeds, verdicts
from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.sweep_record import FAILED_AT_START, Look, Values, distinct
from transformer_norms.config.launchers import read_launcher
from transformer_norms.errors import ConfigError
from transformer_norms.report.findings import Findings
from transformer_norms.run.checkpoint import remove_branch
from transformer_norms.signals import AGAIN, Preempted, Stopping
from transformer_norms.sweep.board import Board
from transformer_norms.sweep.ending import end_sweep
from transformer_norms.sweep.launcher import JobEnd, Launcher
from transformer_norms.sweep.launching import launch, look_at_ended, make_stacks, record_failure
from transformer_norms.sweep.looks import SeedPlan, earlier_look, look_at, read_findings
from transformer_norms.sweep.planning import Job, Jobs, Pair, Stage, at_each, by_horizon
from transformer_norms.sweep.power_table import power_lines, read_noise
from transformer_norms.sweep.question import BRANCHES, HORIZONS, Question, Request, read_request
from transformer_norms.sweep.record_file import RecordFile
from transformer_norms.sweep.tuning import Tuner
from transformer_norms.tracking.mirror import Mirror

SMOKE = 3  # steps of a smoke test
_LOOK_EVERY = 1.0  # seconds, for runs that another process has
# After so many looks a run is tried in earnest. Its process may be on another machine, where it
# cannot be seen to end; its number may be another process's by now.
_MOST_LOOKS = 300


def plan_sweep(arguments: Sequence[str], only: str = "") -> tuple[Jobs, list[Job]]:
    """The checked jobs of a command line, or `only` those of a stage, tune or smoke. Raises
    ConfigError or InputError, before anything is written, if one of the jobs cannot be run, and
    Busy if another sweep has the study's record."""
    part = read_launcher(arguments).part
    request = replace(read_request(arguments), only=only, part=part)
    request = smoke_test(request) if only == "smoke" else request
    tunes = bool(request.question.tune.grid)
    if only == "tune" and not (tunes and part == "none"):
        why = f"not with launcher.part={part}, one machine tunes" if tunes else "nothing is tuned"
        raise ConfigError(f"--stage tune: {why}")
    jobs = Jobs(request)
    first, record = jobs.first_stage(), RecordFile(jobs.study, request)
    if part != "none":
        jobs.tuned = record.read_tuned(first) if tunes else []
        first = [jobs.make("result", *run) for run in jobs.results()]
    record.check(first)
    return jobs, first


def run_sweep(
    arguments: Sequence[str], make_launcher: Callable[[Request], Launcher], only: str = ""
) -> int:
    """Runs the sweep of a command line, or `only` a stage of it, prints its JSON line and returns
    its exit code."""
    jobs, first = plan_sweep(arguments, only)
    with (
        closing(make_launcher(jobs.request)) as launcher,
        closing(Mirror(first[0].config.tracking, lambda line: sweep.board.say(line))) as mirror,
    ):
        sweep = Sweep(jobs, launcher, mirror.follow)
        sweep.run(first)
        code = AGAIN if sweep.stopped else ConfigError.exit_code if sweep.refused else 0
        board = sweep.board
        code = end_sweep(sweep.record.path, board.rows, code, board.say, sweep.why_no_report)
        if any(row.began for row in board.rows):
            mirror.follow(jobs.study)  # for its report
        if sweep.goes_on:
            launcher.forget_sweep()
    return code


class Sweep:
    """Runs the jobs of one question. `planner` makes them, `launcher` runs them, and `follow` is
    called with each folder whose run has begun."""

    def __init__(self, planner: Jobs, launcher: Launcher, follow: Callable[[Path], None]) -> None:
        self.planner, self.launcher = planner, launcher
        self.request, self.question = planner.request, planner.request.question
        self.record = RecordFile(planner.study, planner.request)
        self.board = Board(self.request.study, follow)
        self.stopping = Stopping(self.board.say, "the runs stop")
        self.refused = False

    @property
    def stopped(self) -> bool:
        return self.stopping.stop_requested

    @property
    def goes_on(self) -> bool:
        return not (self.stopped or self.refused)

    @property
    def why_no_report(self) -> str:
        """Says what to do where the command ends without a look at results; empty if it reports."""
        only, part, study = self.request.only, self.request.part, self.planner.study
        if only == "tune":
            return f"tuned: copy {self.record.path} to the same place on each machine of a part"
        if only == "smoke":
            return "smoke test: no report, as these are not results"
        way = f"copy {study} of all parts into one; there, type the command without launcher.part"
        return f"no report of part {part}: {way}" if part != "none" else ""

    def run(self, first: list[Job]) -> None:
        with self.stopping, self.board:
            try:
                self.planner.prepare_data(first)
            except Preempted:
                self.board.add(first)
                return
            self.stopping.deferring = self.stopping.has_unsaved_steps = True
            lines = self.planner.introduction(first) + self.record.warnings(first)
            for line in lines + power_lines(self.question, read_noise(self.planner, first[0])):
                self.board.say(line)
            judges = not self.why_no_report  # a look at one part would count as one at the study
            self.record.looks = earlier_look(self.record, first) if judges else []
            self._tune()
            self._run("result", self.planner.results())
            if judges and self.question.until_decided:
                self._add_seeds(self.planner.best)
            elif judges and (found := self._read_findings()):  # at variants whose results all ended
                self._keep(look_at(found.study, verdicts(found.every)))
            if self.goes_on:
                for job in self.record.jobs:
                    if job.config.trainer.horizons:
                        remove_branch(job.folder, self.board.say)

    def _tune(self) -> None:
        """Runs the tuning, if something is tuned here."""
        question = self.question
        if question.tune.grid and self.request.part == "none":
            tuner = Tuner(
                question.tune, question.variants, question.baseline, self._allows, self.board.say
            )
            for pairs in tuner.rounds():
                self._run("tune", at_each(question.tune.seed, pairs))
                if not self.goes_on:
                    return
                tuner.read(self.record.jobs)
            self.planner.tuned = tuner.choices()
            for line in tuner.lines():
                self.board.say(line)
        self.record.tuned = self.planner.tuned

    def _allows(self, variant: Values, point: Values) -> bool:
        """Whether the config of a point can be composed; a line says why not."""
        refusal = self.planner.refusal(variant, point)
        if refusal:
            self.board.say_once(f"not tried: {refusal}")
        return not refusal

    def _add_seeds(self, best: Sequence[Pair]) -> None:
        """Adds seeds until each comparison is decided, and says what was decided."""
        most, at_once = self.question.most_seeds, max(1, self.launcher.at_once)
        plan: SeedPlan | None = None
        counts: Counts | None = None
        while found := self._read_findings():
            plan = plan or SeedPlan(self.question, best, found.study)
            planned = plan.counts(found.study)
            if planned == counts:  # and no other command is ahead
                decisions = decide(found.every, found.rules, most)
                self._keep(look_at(found.study, decisions))
                planned = more_seeds(plan.undecided(found, decisions), planned, most, at_once)
                if planned == counts:
                    for line in plan.lines(planned, decisions, found):
                        self.board.say(line)
                    return
            counts = planned
            self._run("result", plan.runs(counts))

    def _read_findings(self) -> Findings | None:
        return read_findings(self.record.path) if self.goes_on else None

    def _keep(self, look: Look) -> None:
        if look.seen:
            self.record.looks.append(look)
            self._write_record()

    # --------------------------------------------------------------------------- running the jobs

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
        begun = {job.run.place for job in self.record.jobs}
        jobs = [job for job in jobs if job.run.place not in begun]
        self.record.jobs += jobs
        self._write_record()
        jobs = distinct(jobs, lambda job: job.folder)  # two variants may be the same run
        self.board.add(jobs)
        for waiting in by_horizon(jobs):
            while waiting and not self.stopped:
                waiting = self._wait_for_others(self._launch(waiting))
        if not self.stopped:
            for job in jobs:
                look_at_ended(job, self.board.say)
        self._write_record()
        self.board.look()

    def _launch(self, jobs: Sequence[Job]) -> list[Job]:
        """Runs the jobs that have not ended, and returns those that other processes run. A launcher
        that runs one at a time gets one at a time: its end is told before the next one begins, a
        signal ends the sweep after it, and runs that another command has finished are seen."""
        stacks = make_stacks([job for job in jobs if not job.ended], self.launcher.stacked)
        busy = []
        for batch in [[stack] for stack in stacks] if self.launcher.at_once == 1 else [stacks]:
            if self.stopped:
                break
            ends = launch(self.launcher, batch, self.board.say, self.stopping)
            for job in chain(*batch):
                self._note(job, ends[job.folder])
                if ends[job.folder].status == "busy":
                    busy.append(job)
        return busy

    def _note(self, job: Job, end: JobEnd) -> None:
        if end.status == "preempted":
            self.stopping.stop_requested = True
        if end.remark:
            self.board.say(f"{job}: {end.remark}")
        if end.status == "failed":
            begun = job.folder.is_dir()
            self.board.tell(job, "failed" if begun else FAILED_AT_START, end.error)
            if begun:
                record_failure(job, end.traceback or end.error)
            self.board.say_once(end.traceback)  # ten seeds fail with one error

    def _wait_for_others(self, busy: list[Job]) -> list[Job]:
        """Waits while other processes train these runs; returns the runs that did not end."""
        if busy and not self.stopped:
            self.board.say_once(f"waiting for {plural(len(busy), 'run')} that another process has")
        for _ in range(_MOST_LOOKS if busy else 0):
            if self.stopped:
                break
            time.sleep(_LOOK_EVERY)
            if all(job.state != "running" for job in busy):
                break
        return [job for job in busy if not job.ended]

    def _write_record(self) -> None:
        self.record.write([r.job for r in self.board.rows if r.state == FAILED_AT_START])


def smoke_test(request: Request) -> Request:
    """Returns a request for a few steps of every variant, at the first seed and point, in the study
    NAME-smoke. Nothing is compared, and the horizon keeps its runs out of another report."""
    question, left_out = request.question, (*HORIZONS, BRANCHES, "trainer.average")
    fixed, *variants = (
        {key: value for key, value in values.items() if not key.startswith(left_out)}
        for values in (question.fixed | question.tune.points[0], *question.variants)
    )
    fixed |= {HORIZONS[0]: SMOKE, "study": f"{request.study}-smoke"}
    text = f"Smoke test of {request.study}, which is not a result: {SMOKE} steps of each variant"
    asked = Question(text, {}, together=variants, seeds=question.first_seeds[:1], fixed=fixed)
    return replace(request, name=f"{request.name}-smoke", question=asked)
