"""The audit of a study's tuning: whether every variant had the same chance, and what it cost to
miss its best value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log10, nan
from statistics import fmean
from typing import Any

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.statistics import finite
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.report.findings import outcomes_of
from transformer_norms.report.study import TUNED_ON, Study, Variant, ended_runs
from transformer_norms.report.table import number
from transformer_norms.report.texts import render_lines
from transformer_norms.text_tables import Table, show


@dataclass(frozen=True)
class Audit:
    """The tuning of one variant: rate -> the outcomes there by seed, of the validation loss.

    `place` is that of the variant in the study, and sets the style of its line. `chosen` is the
    rate of its results, None if nothing was chosen. `failed_points` names the points at which a run
    failed.
    """

    variant: Variant
    place: int
    outcomes: Mapping[float, Outcomes]
    chosen: Any
    failed_points: Sequence[str]
    sensitivity: float | None

    @property
    def means(self) -> dict[float, float]:
        """The mean over the runs that trained, at each rate at which one did."""
        return {rate: o.mean for rate, o in self.outcomes.items() if o.mean is not None}

    @property
    def training(self) -> list[float]:
        """The rates at which no trial failed."""
        return [rate for rate, outcomes in self.outcomes.items() if not outcomes.failed]

    @property
    def lowest(self) -> float:
        """The lowest mean of a rate at which no run failed, of any rate if there is none: a mean
        over the seeds that were left is one over easier seeds."""
        whole = [mean for rate, mean in self.means.items() if rate in self.training]
        return min(whole or self.means.values(), default=inf)


def audits(study: Study) -> list[Audit]:
    """The audit of each variant that was tuned; none if no number was tuned. If a rate was tried
    together with several values of other keys, the best of them counts: that with the fewest
    failures, then with the lowest mean."""
    key = study.rate
    if key is None:
        return []
    found = []
    for place, variant in enumerate(study.variants):
        outcomes: dict[float, Outcomes] = {}
        failed = []
        for trials in variant.points:
            point, here = trials[0].tuned, outcomes_of(trials, TUNED_ON, study.trial_failures)
            if finite(rate := point.get(key, inf)) and here.ended:
                outcomes[rate] = min(outcomes.get(rate, here), here, key=_order)
            if here.failed:
                text = " ".join(f"{name}={show(value)}" for name, value in point.items())
                failed.append(f"{text} ({len(here.failed)} of {here.ended})")
        trained = any(one.losses for one in outcomes.values())
        sensitive = _sensitivity_of(variant, key, study.tune[key]) if trained else None
        best = (variant.tuned.best if variant.tuned else None) or {}
        by_rate = dict(sorted(outcomes.items()))
        found.append(Audit(variant, place, by_rate, best.get(key), failed, sensitive))
    return [audit for audit in found if audit.variant.trials]


def rate_lines(study: Study) -> list[Audit]:
    """The audits that have a loss at some rate: a figure draws a line of each."""
    return [audit for audit in audits(study) if audit.outcomes]


def _order(outcomes: Outcomes) -> tuple[int, float]:
    return len(outcomes.failed), inf if outcomes.mean is None else outcomes.mean


def _sensitivity_of(variant: Variant, key: str, rates: Sequence[float]) -> float | None:
    """The sensitivity over all `rates`, so that those of two variants can be compared, at the best
    of the values of other keys that were tried at each rate. None if no values of the other keys
    were tried at all rates."""
    ended = [trial for trial in variant.trials if trial.ended]
    curves = [
        {
            point[0].tuned.get(key, inf): fmean(r.final_loss(TUNED_ON) for r in ended_runs(point))
            for point in grouped(trials, lambda trial: trial.tuned)
        }
        for trials in grouped(ended, lambda trial: {**trial.tuned, key: None})
    ]
    initial = [run.summary.initial_loss for run in ended_runs(ended)]
    known = [loss for loss in initial if loss is not None]
    whole = [curve for curve in curves if curve.keys() >= set(rates)]
    if not (whole and known and len(set(rates)) > 1):
        return None
    return sensitivity({rate: min(curve[rate] for curve in whole) for rate in rates}, fmean(known))


def sensitivity(losses: Mapping[float, float], initial: float) -> float:
    """mean over rates of min(loss, initial) - the best loss     Wortsman et al. 2023, 2309.14322

    The keys are learning rates, which a log grid spaces evenly. The loss of a diverged rate may be
    any value that is not finite. NaN if no rate ended below `initial`: there is no best one.
    """
    capped = [loss if loss < initial else initial for loss in losses.values()]  # of NaN, initial
    best = min(capped)
    return fmean(capped) - best if best < initial else nan


def shared_seeds(variants: Sequence[Variant]) -> str:
    """The seeds that are in tuning and in results: none, if the choice is to be a fair one."""
    tried = {trial.seed for variant in variants for trial in variant.trials}
    seeds = tried & {run.seed for variant in variants for run in variant.results}
    return ", ".join(map(str, sorted(seeds)))


def grid_points(study: Study, variant: Variant) -> int:
    """The number of points of the grid, which all variants share, that a variant tried. Its search
    beyond them goes on until its best is inside."""
    points = (trials[0].tuned for trials in variant.points)
    return sum(all(v in study.tune.get(k, ()) for k, v in point.items()) for point in points)


def caveats(study: Study, variant: Variant, baseline: Variant) -> list[str]:
    """The remarks that belong to a verdict: tuning gave the two unequal chances."""
    lines = []
    points, baseline_points = grid_points(study, variant), grid_points(study, baseline)
    if points != baseline_points:
        lines.append(
            f"{variant.name} was tuned at {points} points and {baseline.name} at {baseline_points}"
        )
    if seeds := shared_seeds([variant, baseline]):
        lines.append(f"tuning had seeds of the results: {seeds}")
    return lines


def same_data_note(study: Study) -> str:
    """A sentence if the data that chose the tuned values are those of the results, because the
    split has no test part; empty if they are not."""
    if study.loss != TUNED_ON or not any(variant.trials for variant in study.variants):
        return ""
    return (
        f"The tuned values ({', '.join(study.tune)}) were chosen on the data of the results, "
        "validation, though on other seeds: the split has no test part."
    )


def audit_lines(study: Study) -> list[str]:
    """Explains the table of the audit, and names the faults of the tuning."""
    rows, key = audits(study), study.rate
    if not rows or key is None:
        return []
    low, high = min(study.tune[key]), max(study.tune[key])
    points = [grid_points(study, row.variant) for row in rows]
    repeats = [len({trial.seed for trial in row.variant.trials}) for row in rows]
    counts = {"points": points, "seeds": repeats}.items()
    return render_lines(
        "audit.txt",
        audits=rows,
        key=key,
        low=f"{low:g}",
        high=f"{high:g}",
        decades=f", {log10(high / low):.1f} decades" if low > 0 else "",
        points=points[0],
        repeats=repeats[0],
        seeds=sorted({trial.seed for row in rows for trial in row.variant.trials}),
        unequal=[f"{min(of)} to {max(of)} {what}" for what, of in counts if min(of) < max(of)],
        shared=shared_seeds(study.variants),
        same_data=same_data_note(study),
    )


def audit_table(study: Study) -> Table:
    """The audit by variant: points tried, the best, sensitivity, and the loss at each rate."""
    rows, key = audits(study), study.rate
    if not rows or key is None:
        return {}
    columns = {
        "variant": [audit.variant.name for audit in rows],
        "points": [str(len(audit.variant.points)) for audit in rows],
        f"best {key}": [
            audit.variant.best_text(key) or ("none" if audit.variant.tuned else "not chosen yet")
            for audit in rows
        ],
        "sensitivity": [number(audit.sensitivity) for audit in rows],
    }
    common = sorted({rate for audit in rows for rate in audit.outcomes if rate in study.tune[key]})
    for rate in common:
        columns[f"{rate:g}"] = [loss_text(audit, rate) for audit in rows]
    around = [
        ", ".join(
            f"{rate:g}: {loss_text(audit, rate)}" for rate in audit.outcomes if rate not in common
        )
        for audit in rows
    ]
    return columns | ({"at other rates": around} if any(around) else {})


def loss_text(audit: Audit, rate: float) -> str:
    """The mean over the runs that trained; `failed` or `diverged` with it where a run failed, and
    alone where none trained."""
    outcomes = audit.outcomes.get(rate, Outcomes({}))
    reasons = outcomes.failed.values()
    word = "diverged" if "diverged" in reasons else "failed" if reasons else ""
    if outcomes.mean is None:
        return word
    return number(outcomes.mean) + (f" ({word})" if word else "")
