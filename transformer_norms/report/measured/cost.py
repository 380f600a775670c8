"""What a step of a variant costs, compared with its baseline's, by the runs' own measurements.

Seeds are paired, as losses are: the load and the heat of a machine change from seed to seed, and
hardly between the two runs of one seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_norms.comparison.price import Price
from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant
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
    """The seconds of training in a step. Those of a branch have its trunk's in them."""
    seconds, step = run.summary.seconds, run.summary.step
    return seconds / step if seconds and step else None


def gpu_memory(run: SavedRun) -> float | None:
    """The peak memory in bytes, on a GPU. On a CPU it is the peak of a process, which may have
    trained other runs before."""
    return None if run.value("trainer.device") == "cpu" else run.summary.peak_memory


def cost_ratio(variant: Variant, baseline: Variant, cost: Cost) -> CostRatio | None:
    """The ratio of a cost. None if fewer than FEWEST seeds have it on both sides."""
    ours, theirs = (
        {run.seed: run for run in side.ended if run.finished and cost(run)}
        for side in (variant, baseline)
    )
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < FEWEST:
        return None
    if apart := _differing_conditions([side[seed] for side in (ours, theirs) for seed in seeds]):
        return CostRatio(apart=apart)
    above, below = ([cost(side[seed]) for seed in seeds] for side in (ours, theirs))
    return CostRatio(*map(float, np.quantile(np.divide(above, below), (0.25, 0.5, 0.75))))


def _differing_conditions(runs: Sequence[SavedRun]) -> list[str]:
    """The names of the conditions that are not the same in all runs. A run that went on elsewhere
    has the seconds of several devices."""
    conditions = [_conditions_of(run) for run in runs]
    moved = any(ELSEWHERE in str(one["device"]) for one in conditions)
    apart = [name for name in conditions[0] if len({str(one[name]) for one in conditions}) > 1]
    return list(dict.fromkeys(["device"] * moved + apart))


def _conditions_of(run: SavedRun) -> dict[str, object]:
    summary = run.summary
    return {
        "device": summary.device,
        "threads": summary.threads,
        "replicas": summary.replicas or 1,
        "processes": summary.parallel_text,
        "compile": (summary.compile or "none").partition(";")[0],
        "stacked": (summary.stacked or {}).get("members", 1),
        "torch": summary.versions.get("torch"),
    }


def cost_cells(findings: Findings, variant: Variant) -> dict[str, str]:
    """The cells of a variant that has a price: its costs compared with its baseline's, and the net
    saving of seconds."""
    price, baseline = findings.prices.get(variant.name), findings.study.baseline_of(variant)
    if price is None:
        return {}
    ratios = {
        "step_time": cost_ratio(variant, baseline, step_seconds),
        "peak_memory": cost_ratio(variant, baseline, gpu_memory),
    }
    cells = {name: str(ratio) for name, ratio in ratios.items() if ratio}
    step_time = ratios["step_time"]
    return cells | (
        {"net": net_text(price, step_time)} if step_time and not step_time.apart else {}
    )


def net_text(price: Price, step_time: CostRatio) -> str:
    """The share of seconds that is saved, 1 - (1 - share of tokens saved) x ratio of the step
    times. Its interval has the ends of the tokens' interval, at the quartiles of the ratio:
    `+4 % (-1 to +10)`, `at least +3 %`, or `no bound`."""
    pairs = (
        (price.low, step_time.high),
        (price.saved, step_time.median),
        (price.high, step_time.low),
    )
    low, net, high = (
        None if saved is None else f"{100 * (1 - (1 - saved) * ratio):+z.0f}"
        for saved, ratio in pairs
    )
    if net:
        return f"{net} % ({low or 'no bound'} to {high or 'no bound'})"
    bound = f"at least {low} %" if low else f"at most {high} %" if high else "no bound"
    return f"{low} to {high} %" if low and high else bound
