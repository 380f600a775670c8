"""Compares the costs of a variant and its baseline, as their runs measured them.

Seeds are paired, as losses are. The pairs of all horizons count together, because the load and the
heat of a machine change from run to run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from transformer_norms.comparison.price import Price
from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.report.study import Study, Variant
from transformer_norms.run.reader import SavedRun
from transformer_norms.run.summary import ELSEWHERE

Cost = Callable[[SavedRun], float | None]


@dataclass(frozen=True)
class CostRatio:
    """A cost of a variant divided by that of its baseline: quartiles over the paired seeds. `apart`
    names the conditions that differ between the runs: then there are no quartiles."""

    low: float = 1.0
    median: float = 1.0
    high: float = 1.0
    apart: Sequence[str] = ()

    def __str__(self) -> str:
        """`+5.1 % (+2.0 to +9.3)`, or `not comparable (device, threads)`"""
        if self.apart:
            return f"not comparable ({', '.join(self.apart)})"
        low, median, high = (f"{100 * r - 100:+z.1f}" for r in (self.low, self.median, self.high))
        return f"{median} % ({low} to {high})"


def step_seconds(run: SavedRun) -> float | None:
    """Returns the seconds of training in a step. Those of a branch count the shared steps."""
    seconds, step = run.summary.seconds, run.summary.step
    return seconds / step if seconds and step else None


def gpu_memory(run: SavedRun) -> float | None:
    """The peak memory in bytes, on a CUDA GPU. Elsewhere it is the peak of a process, which may
    have trained other runs before."""
    return run.summary.peak_memory if run.value("trainer.device") == "cuda" else None


def cost_ratio(
    study: Study, variant: Variant, baseline: Variant, cost: Cost, exact: bool = False
) -> CostRatio | None:
    """The ratio of a cost over all horizons that both kinds of variants share. None with fewer
    than FEWEST pairs of runs that have it. An `exact` cost is the same on all machines."""
    pairs: list[tuple[SavedRun, SavedRun]] = []
    kinds = ([v for v in study.variants if v.kind == one.kind] for one in (variant, baseline))
    for variants in product(*kinds):
        if variants[0].horizon == variants[1].horizon:
            ours, theirs = (
                {run.seed: run for run in one.ended if run.finished and cost(run)}
                for one in variants
            )
            pairs += [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if len(pairs) < (1 if exact else FEWEST):
        return None
    if not exact and (apart := _differing_conditions([run for pair in pairs for run in pair])):
        return CostRatio(apart=apart)
    ratios = [(cost(one) or 0) / (cost(other) or 1) for one, other in pairs]
    return CostRatio(*np.quantile(ratios, (0.25, 0.5, 0.75)).tolist())


def _differing_conditions(runs: Sequence[SavedRun]) -> list[str]:
    """The names of the conditions that are not the same in all runs. A run that went on elsewhere
    has the seconds of several devices."""
    of_runs = [run.summary for run in runs]
    values: dict[str, list[object]] = {
        "device": [part for one in of_runs for part in str(one.device).split(ELSEWHERE)],
        "threads": [one.threads for one in of_runs],
        "replicas": [one.replicas or 1 for one in of_runs],
        "processes": [one.parallel_text for one in of_runs],
        "compile": [(one.compile or "none").partition(";")[0] for one in of_runs],
        "stacked": [(one.stacked or {}).get("members", 1) for one in of_runs],
        "torch": [one.versions.get("torch") for one in of_runs],
    }
    return [name for name, found in values.items() if len({*found}) > 1]


def seconds_price(
    study: Study, variant: Variant, baseline: Variant, price: Price
) -> tuple[CostRatio | None, Price | None]:
    """The ratio of the step times of a pair, and its price in seconds: at the median of the ratio,
    and for the ends of the interval at its quartiles. None where these are not known."""
    ratio = cost_ratio(study, variant, baseline, step_seconds)
    if ratio is None or ratio.apart:
        return ratio, None

    def saved(share: float | None, ratio: float) -> float | None:
        if share is None:
            return None
        left = ratio * (1 - share if share > 0 else 1 / (1 + share))  # for the same loss
        return 1 - left if left < 1 else 1 / left - 1

    low, high = saved(price.low, ratio.high), saved(price.high, ratio.low)
    return ratio, Price(price.horizon, saved(price.saved, ratio.median), low, high)
