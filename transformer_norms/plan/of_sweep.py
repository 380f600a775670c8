"""The plan of a sweep: its runs by stage, each on one device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformer_norms.comparison.sweep_record import label
from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.plan.of_run import RunPlan, plan_run
from transformer_norms.progress import Live, track
from transformer_norms.sweep.question import Question, Request, read_request


@dataclass(frozen=True)
class SweepPlan:
    """`runs` has the plan of one run of each variant, by its label. `stages` has the number of runs
    of each variant, by stage. All seeds count that may be added until it is decided."""

    request: Request
    runs: dict[str, RunPlan]
    stages: dict[str, int]

    @property
    def fullest(self) -> str:
        """The variant whose run takes the most memory."""
        return max(self.runs, key=lambda name: self.runs[name].memory.peak)

    @property
    def totals(self) -> dict[str, dict[str, float]]:
        """Runs, tokens and FLOPs of all variants together, by stage."""
        runs = self.runs.values()
        tokens, flops = sum(r.tokens for r in runs), sum(r.flops * r.tokens for r in runs)
        return {
            stage: {"runs": n * len(runs), "tokens": n * tokens, "flops": n * flops}
            for stage, n in self.stages.items()
        }

    def values(self) -> dict[str, Any]:
        """Returns the numbers of --json."""
        return {
            "sweep": self.request.name,
            "stages": self.totals,
            "runs": {name: run.values() for name, run in self.runs.items()},
        }


def plan_sweep_of(arguments: Sequence[str], device: str, vocab: int | None) -> SweepPlan:
    """Returns the plan of a command line with sweep=NAME or several values of a key."""
    request = read_request(arguments)
    question = request.question
    # A variant is planned at the first of its tuned points: they do not change its size.
    point = question.points[0]
    runs = {}
    with Live() as live:
        for variant in track(live, "planning variants, {:.0f} of {:.0f}", question.variants):
            values = {**question.fixed, **variant, **point}
            try:
                config = compose([as_typed(key, value) for key, value in values.items()], device)
            except ConfigError as error:
                raise ConfigError(f"{error} (in {label(variant)})") from None
            runs[label(variant)] = plan_run(config, vocab)
    return SweepPlan(request, runs, _stages(question))


def _stages(question: Question) -> dict[str, int]:
    results = question.most_seeds
    if question.tune is None:
        return {"results": results}
    tuning = question.tune.budget * len(question.tune_seeds)
    return {"tuning": tuning, "results": results, "all": tuning + results}
