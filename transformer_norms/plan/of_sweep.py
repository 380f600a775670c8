"""The plan of a sweep: its runs by stage, each on one device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformer_norms.comparison.sweep_record import label
from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.plan.of_run import Hardware, RunPlan, plan_run
from transformer_norms.progress import Live
from transformer_norms.sweep.question import Question, Request, read_request


@dataclass(frozen=True)
class StagePlan:
    """`runs` are of all variants together, and so are `tokens`, `flops` and `seconds`. The seconds
    are those of one device after another."""

    name: str
    runs: int
    tokens: int
    flops: float
    seconds: float | None

    def values(self) -> dict[str, Any]:
        hours = None if self.seconds is None else self.seconds / 3600
        return {
            "runs": self.runs,
            "tokens": self.tokens,
            "flops": self.flops,
            "device_hours": hours,
        }


@dataclass(frozen=True)
class SweepPlan:
    """`runs` has the plan of one run of each variant, by its label."""

    request: Request
    hardware: Hardware
    runs: dict[str, RunPlan]
    stages: list[StagePlan]

    @property
    def fullest(self) -> str:
        """The variant whose run takes the most memory."""
        return max(self.runs, key=lambda name: self.runs[name].memory.peak)

    def values(self) -> dict[str, Any]:
        """Returns the numbers of --json."""
        return {
            "sweep": self.request.name,
            "stages": {stage.name: stage.values() for stage in self.stages},
            "runs": {name: run.values() for name, run in self.runs.items()},
        }


def plan_sweep_of(arguments: Sequence[str], hardware: Hardware, vocab: int | None) -> SweepPlan:
    """Returns the plan of a command line with sweep=NAME or several values of a key."""
    request = read_request(arguments)
    question = request.question
    # A variant is planned at the first of its tuned points: they do not change its size.
    point = question.points[0]
    alone = Hardware(1, hardware.accelerator, hardware.utilisation)
    runs = {}
    with Live() as live:
        for number, variant in enumerate(question.variants, 1):
            live("planning variant {:.0f} of {:.0f}", number, len(question.variants))
            values = {**question.fixed, **variant, **point}
            typed = [as_typed(key, value) for key, value in values.items()]
            try:
                config = compose(typed, "cuda" if hardware.accelerator else "auto")
            except ConfigError as error:
                raise ConfigError(f"{error} (in {label(variant)})") from None
            runs[label(variant)] = plan_run(config, alone, vocab)
    return SweepPlan(request, hardware, runs, _stages(question, list(runs.values())))


def _stages(question: Question, runs: Sequence[RunPlan]) -> list[StagePlan]:
    """Returns the stages and their sum. All seeds count that may be added until it is decided."""
    numbers = {"results": question.most_seeds}
    if question.tune:
        numbers = {"tuning": question.tune.budget * len(question.tune_seeds), **numbers}
    stages = [_stage(name, number, runs) for name, number in numbers.items()]
    return stages if len(stages) == 1 else [*stages, _stage("all", sum(numbers.values()), runs)]


def _stage(name: str, number: int, runs: Sequence[RunPlan]) -> StagePlan:
    """Returns the stage in which every variant has that number of runs."""
    seconds = [run.seconds for run in runs if run.seconds is not None]
    return StagePlan(
        name,
        number * len(runs),
        number * sum(run.tokens for run in runs),
        number * sum(run.flops * run.tokens for run in runs),
        number * sum(seconds) if seconds else None,
    )
