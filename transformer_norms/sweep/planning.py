"""Makes the jobs of a question. Each is composed, and its data and folder checked, before any of
them runs.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.sweep_record import ORDER, PlannedRun, Values, distinct, label
from transformer_norms.config.chosen_files import check_names
from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import HORIZONS, as_typed
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import plain
from transformer_norms.run.folder import state_of
from transformer_norms.run.summary import Summary, read_summary
from transformer_norms.sweep.design import MOST_RUNS, Tuning, seed_order
from transformer_norms.sweep.question import Request
from transformer_norms.text_tables import shorten
from transformer_norms.training.schedule import SCHEDULES, shared_steps

Stage = Literal["tune", "result"]
Pair = tuple[Values, Values]  # a variant, and a point of its tuned keys
_TUNED_BY_ONE = 5  # result seeds, at most, whose rate one seed may choose


@dataclass(frozen=True)
class Job:
    """A planned run, the arguments that train it, and their plan (run/plan.py)."""

    run: PlannedRun
    overrides: tuple[str, ...]
    plan: Any

    @property
    def folder(self) -> Path:
        return self.plan.folder

    @property
    def config(self) -> Config:
        return self.plan.config

    @property
    def summary(self) -> Summary | None:
        """The summary in the run's folder. None if there is nothing, or nothing that can be read,
        or what another run has left there: whoever trains the run says why it cannot."""
        with suppress(ConfigError):
            summary = read_summary(self.folder)
            if summary and summary.identity == self.run.identity:
                return summary
        return None

    @property
    def error(self) -> str:
        """Returns the error in the summary of the run, with its traceback if there is one."""
        summary = self.summary
        return ((summary.error if summary else None) or "").strip()

    @property
    def ended(self) -> bool:
        summary = self.summary
        return summary is not None and summary.ended

    @property
    def state(self) -> str:
        summary = self.summary
        return state_of(summary) if summary else "waiting"

    def __str__(self) -> str:
        return str(self.run)


def at_each(seeds: Sequence[int], pairs: Sequence[Pair]) -> list[tuple[Values, Values, int]]:
    """Returns the pairs at each seed, seed by seed: early runs compare all variants."""
    return [(*pair, seed) for seed in seeds for pair in pairs]


def by_horizon(jobs: Sequence[Job]) -> list[list[Job]]:
    """Returns jobs with `trainer.branches` by their steps, since a longer one begins from a shorter
    one. All other jobs are one list."""

    def steps(job: Job) -> int:
        trainer = job.config.trainer
        return trainer.steps if trainer.horizons else 0

    return [[*alike] for _, alike in groupby(sorted(jobs, key=steps), steps)]


def new_steps(config: Config) -> int:
    """Returns how many steps a run trains where it begins from the next shorter branch."""
    steps, schedule = config.trainer.steps, SCHEDULES.maker(config.schedule)
    shorter = [horizon for horizon in config.trainer.horizons if horizon < steps]
    return steps - (shared_steps(schedule, shorter[-1], steps) if shorter else 0)


class Jobs:
    """Makes the jobs of a request, and says what a person should know about them."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tuned: list[Any] = []  # a Tuned of each variant
        self.study = Path("runs") / request.study
        self._plans: dict[tuple[str, ...], Any] = {}
        self._plan_of: dict[str, Any] = {}  # the first plan of each identity

    def first_stage(self) -> list[Job]:
        """The jobs that are known from the start. The jobs of stage 2 are checked as well.

        Raises ConfigError or InputError if one cannot be run. Nothing has been written then.
        """
        question = self.request.question
        tune, variants, points = question.tune, question.variants, question.tune.points
        tuning = (tune.budget + tune.most_more) * len(tune.seed)
        if len(variants) * max(tuning, question.most_seeds) > MOST_RUNS:
            raise ConfigError(f"more than {MOST_RUNS} runs; split the study")
        # Options that do not exist are refused before any job is composed.
        pairs = [pair for one in (question.fixed, *variants, *points) for pair in one.items()]
        check_names(dict.fromkeys(as_typed(key, value) for key, value in pairs))
        at_points = [(variant, point) for variant in variants for point in points]
        if not tune.grid:
            return [self.make("result", *run) for run in at_each(question.first_seeds, at_points)]
        for seed in question.first_seeds:
            self.make("result", variants[0], points[0], seed)
        return [self.make("tune", *run) for run in at_each(tune.seed, at_points)]

    @property
    def best(self) -> list[Pair]:
        """Each variant with its best point, without those that failed wherever they were tuned."""
        question = self.request.question
        if not question.tune.grid:
            return [(variant, {}) for variant in question.variants]
        return [(one.variant, one.best) for one in self.tuned if one.best is not None]

    def results(self) -> list[tuple[Values, Values, int]]:
        """Returns the first results at the best points. A part has whole seeds, so that pairs lie
        in one part. Where seeds are fewer than parts, it has variants of one seed or two, each with
        all of its horizons: a longer one begins from a shorter one. Raises ConfigError for more
        parts than variants and seeds."""
        request = self.request
        runs = at_each(request.question.first_seeds, self.best) if request.only != "tune" else []
        if request.part == "none":
            return runs
        number, parts = map(int, request.part.split("/"))
        units = [str(seed) for *_, seed in runs]  # the runs of one unit are in one part
        if len({*units}) < parts:
            units = [f"{one | dict.fromkeys(HORIZONS)} {seed}" for one, _, seed in runs]
        place = {unit: i for i, unit in enumerate(dict.fromkeys(units))}
        if (count := len(place)) < parts:
            most = f"{plural(count, 'pair')} of a variant and a seed, and so many parts"
            raise ConfigError(f"launcher.part={request.part}: there are {most} at most")
        pairs = zip(runs, units, strict=True)
        return [run for run, unit in pairs if place[unit] * parts // count == number - 1]

    def make(self, stage: Stage, variant: Values, tuned: Values, seed: int) -> Job:
        # Variants that differ in the order of their batches are tuned once, on other orders.
        values = {k: v for k, v in variant.items() if stage != "tune" or k != ORDER}
        overrides = self._overrides(values, tuned, seed)
        if overrides not in self._plans:
            config = self._compose(overrides, variant)  # before torch is imported
            from transformer_norms.run.plan import Plan

            plan = Plan(config)
            # Two variants may be one run: `auto` in one of them is what the other spells out.
            self._plans[overrides] = self._plan_of.setdefault(plan.hash, plan)
        plan = self._plans[overrides]
        run = PlannedRun(plan.name, plan.hash, stage, variant, tuned, seed)
        return Job(run, overrides, plan)

    def _compose(self, overrides: Sequence[str], variant: Values) -> Config:
        """The config of a job. Raises ConfigError, which says what to write where some variants
        have a key and others have not."""
        try:
            return compose(overrides)
        except ConfigError as error:
            question, key = self.request.question, str(error).partition("=")[0]
            where = f" (in {label(variant)})" if len(question.variants) > 1 else ""
            own = {one: value for one, value in variant.items() if one != key}
            fits = (one for one in question.variants[:20] if not self.refusal(one, {}))
            if own and key in {**question.fixed, **variant} and (having := next(fits, None)):
                each = [{key: question.fixed.get(key), **having}, own]
                where += f"; a sweep's file gives it to one variant, together: {each}"
            raise ConfigError(f"{error}{where}") from None

    def refusal(self, variant: Values, tuned: Values) -> str:
        """Why the config of a variant at a tuned point is not allowed; empty if it is."""
        try:
            compose(self._overrides(variant, tuned, seed=0))
        except ConfigError as error:
            return f"{error} (in {label(variant)})"
        return ""

    def _overrides(self, variant: Values, tuned: Values, seed: int) -> tuple[str, ...]:
        values = {"study": self.request.study, **self.request.question.fixed, **variant, **tuned}
        return tuple(as_typed(key, value) for key, value in {**values, "seed": seed}.items())

    def prepare_data(self, jobs: Sequence[Job]) -> None:
        """Prepares the tokens of the jobs that are to be trained, if all of them read the same. A
        corpus or a vocabulary that cannot be had is then said once, before anything is written,
        and not by each job. Raises InputError."""
        plans = [job.plan for job in jobs if not job.ended]
        sources = {
            str([{**plain(config.data), "seed": 0, "val_tokens": 0}, plain(config.tokenizer)])
            for config in (plan.config for plan in plans)
        }
        if len(sources) == 1:
            plans[0].tokens()

    def introduction(self, first: Sequence[Job]) -> list[str]:
        """The lines before the first job: the question, the number of runs, remarks, warnings, and
        what to type or write where another sweep would say more."""
        request, question = self.request, self.request.question
        lines = [f"{request.name}: {question.question}"] if question.question else []
        jobs = distinct(first, lambda job: job.folder)
        ended = sum(job.ended for job in jobs)
        sizes = f"{plural(len(jobs), 'run')} in {self.study}"
        sizes += f", {ended} there already" if ended else ""
        remarks = Counter(remark for job in jobs for remark in job.plan.remarks)
        warnings: dict[str, str] = {}  # each with the first variant that has it
        for job in first:
            for warning in job.config.warnings:
                warnings.setdefault(str(warning), label(job.run.variant))
        if request.part != "none":
            seeds = ", ".join(dict.fromkeys(str(job.run.seed) for job in jobs))
            cut = len(question.first_seeds) < int(request.part.partition("/")[2])
            apart = "; fewer seeds than parts: pairs lie apart, so compare no step times" * cut
            lines += [f"part {request.part} of the results: seed {seeds}{apart}"]
        elif (tuning := question.tune).grid:
            sizes += " to begin with"
            results = question.until_decided or plural(question.most_seeds, "other seed")
            lines += [
                f"tuning of {plural(len(question.variants), 'variant')}: {tuning.description} x "
                f"{plural(len(tuning.seed), 'seed')}, equal for all variants; then each at its "
                f"best, {results}",
                tuning.more_text,
                self._more_tuning_seeds(tuning),
            ]
        elif question.until_decided:
            lines += [str(question.until_decided)]
            sizes += " to begin with"
        lines += [sizes, *_shared_steps(jobs), *request.remarks]
        lines += [f"{number} of them {remark}" for remark, number in remarks.items()]
        lines += [f"warning ({variant}): {warning}" for warning, variant in warnings.items()]
        return [line for line in [*lines, _one_start(first)] if line]

    def _more_tuning_seeds(self, tuning: Tuning) -> str:
        """Says that one seed tunes what many decide, and what to write; empty if it does not."""
        question = self.request.question
        if question.most_seeds <= _TUNED_BY_ONE or len(tuning.seed) > 1:
            return ""
        two = seed_order(2, question.first_seeds, tuning.seed)
        return (
            f"warning: {question.most_seeds} seeds decide and 1 tunes, but the best value moves "
            f"from seed to seed; write seed: {two} under tune in the sweep's file"
        )


def _shared_steps(jobs: Sequence[Job]) -> list[str]:
    """Says how many steps branches save."""
    steps = sum(job.config.trainer.steps for job in jobs)
    if (new := sum(new_steps(job.config) for job in jobs)) == steps:
        return []
    return [f"branches: {new:,} steps are trained, and separate runs would train {steps:,}"]


def _one_start(jobs: Sequence[Job]) -> str:
    """Says which starts the variants bring, and what to type for one start; empty if they bring the
    same one, or if the sweep asks about starts."""
    starts: dict[str, set[str]] = {}
    for job in jobs:
        starts.setdefault(job.config.choices.init, set()).add(label(job.run.variant))
    if len(starts) == 1 or any("init" in {**job.run.variant, **job.run.tuned} for job in jobs):
        return ""
    listed = [f"init={init} ({shorten(', '.join(sorted(n)))})" for init, n in starts.items()]
    tied = {job.config.architecture.tied for job in jobs}
    typed = "init=mup architecture.tied=true" if len(tied) > 1 else "init=mup"
    return f"the variants start differently: {', '.join(listed)}; for one start, type {typed}"
