"""What a step of a variant costs, compared with its baseline's, by the runs' own measurements.

Seeds are paired, as losses are: the load and the heat of a machine change from seed to seed, and
hardly between the two runs of one seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from transformer_norms.comparison.price import Price
from transformer_norms.comparison.sentences import price_text
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
        {run.seed: (run, value) for run in side.ended if run.finished and (value := cost(run))}
        for side in (variant, baseline)
    )
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < FEWEST:
        return None
    if apart := _differing_conditions([side[seed][0] for side in (ours, theirs) for seed in seeds]):
        return CostRatio(apart=apart)
    ratios = [ours[seed][1] / theirs[seed][1] for seed in seeds]
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return CostRatio(low, median, high)


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


def cost_cells(findings: Findings, name: str) -> dict[str, str]:
    """The cells of a comparison that has a price: the costs of the variant compared with its
    baseline's, and the share of seconds saved."""
    costs = {"step_time": step_seconds, "peak_memory": gpu_memory}
    ratios = {key: _ratio_of(findings, name, cost) for key, cost in costs.items()}
    net = net_price(findings, name)
    cells = {key: str(ratio) for key, ratio in ratios.items() if ratio}
    return cells | ({"net": price_text(net)} if net else {})


def _ratio_of(findings: Findings, name: str, cost: Cost) -> CostRatio | None:
    pair = findings.study.asked[name].pair
    if pair is None:
        return None
    variant, baseline = map(findings.study.variant, pair)
    return cost_ratio(variant, baseline, cost)


def net_price(findings: Findings, name: str) -> Price | None:
    """The price of a comparison in seconds instead of tokens, at the median ratio of the step
    times, and for its ends at the quartiles. None where the step times are not known or not
    comparable."""
    price = findings.prices.get(name)
    step_time = _ratio_of(findings, name, step_seconds) if price else None
    if price is None or step_time is None or step_time.apart:
        return None

    def saved(share: float | None, ratio: float) -> float | None:
        if share is None:
            return None
        left = ratio * (1 - share if share > 0 else 1 / (1 + share))  # for the same loss
        return 1 - left if left < 1 else 1 / left - 1

    return replace(
        price,
        saved=saved(price.saved, step_time.median),
        low=saved(price.low, step_time.high),
        high=saved(price.high, step_time.low),
    )
