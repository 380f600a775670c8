"""From a question to jobs: each composed, its data and its folder looked at, before any is run."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_norms.config.compose import check_names, compose, plain
from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.run.folder import ENDED, summary_of
from transformer_norms.run.sweep_record import PlannedRun, Values, label
from transformer_norms.sweep.asking import Asked
from transformer_norms.sweep.question import MOST_RUNS


@dataclass(frozen=True)
class Job:
    """A planned run: the folder it goes to, the command that trains it, how W&B mirrors it (or
    `none`)."""

    run: PlannedRun
    folder: Path
    overrides: tuple[str, ...]
    mirror: str

    @property
    def ended(self) -> bool:
        return summary_of(self.folder).get("status") in ENDED

    def __str__(self) -> str:
        tuned = [f"{key.rpartition('.')[2]}={value}" for key, value in self.run.tuned.items()]
        return " ".join(filter(None, [label(self.run.variant), *tuned, f"s{self.run.seed}"]))


class Jobs:
    """Makes the jobs of a question, and remembers what is to be said about them."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.remarks: Counter[str] = Counter()
        self.warnings: dict[str, str] = {}  # what a run warns of -> the first variant that does
        self._made: dict[tuple[str, ...], tuple[Any, str]] = {}
        self._first: dict[str, Any] = {}  # identity -> the first plan of it

    def first(self) -> list[Job]:
        """The jobs known from the start; all that will follow them have been looked at, too.

        ConfigError or InputError, and nothing written, where one of them cannot be run.
        """
        question = self.asked.question
        seeds = question.tune_seeds or question.seeds
        points, variants = question.points, question.variants
        if len(variants) * len(points) * max(len(seeds), len(question.seeds)) > MOST_RUNS:
            raise ConfigError(f"more than {MOST_RUNS} runs; split the study")
        self._check_names(variants, points)
        if question.tune:
            for seed in question.seeds:
                self.of("result", variants[0], points[0], seed)
        stage = "tune" if question.tune else "result"
        return [
            self.of(stage, variant, point, seed)
            for seed in seeds  # seed by seed: what is there early compares all variants
            for variant in variants
            for point in points
        ]

    def of(self, stage: Any, variant: Values, tuned: Values, seed: int) -> Job:
        values = {"study": self.asked.study, **self.asked.question.fixed, **variant, **tuned}
        overrides = tuple(as_typed(key, value) for key, value in {**values, "seed": seed}.items())
        if overrides not in self._made:
            self._made[overrides] = self._look(overrides, variant)
        plan, mirror = self._made[overrides]
        run = PlannedRun(
            folder=plan.name, identity=plan.hash,
            stage=stage, variant=variant, tuned=tuned, seed=seed,
        )  # fmt: skip
        return Job(run, plan.folder, overrides, mirror)

    def _look(self, overrides: Sequence[str], variant: Values) -> tuple[Any, str]:
        try:
            config = compose(overrides)  # before torch is imported with what comes next
        except ConfigError as error:
            of = f" (in {label(variant)})" if len(self.asked.question.variants) > 1 else ""
            raise ConfigError(f"{error}{of}") from None
        from transformer_norms.run.plan import Plan

        plan = Plan(plain(config))
        self.remarks.update(plan.remarks)
        for warning in config.warnings:
            self.warnings.setdefault(str(warning), label(variant))
        mirror = config.tracking.mode if config.tracking.type == "wandb" else "none"
        # Two variants may come to one run: `auto` here is what another spells out.
        return self._first.setdefault(plan.hash, plan), mirror

    def _check_names(self, variants: Iterable[Values], points: Iterable[Values]) -> None:
        """Options that do not exist, before any job is composed."""
        pairs = [*self.asked.question.fixed.items()]
        pairs += [pair for values in (*variants, *points) for pair in values.items()]
        check_names(dict.fromkeys(as_typed(key, value) for key, value in pairs))
