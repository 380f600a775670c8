"""The audit of a study's tuning: whether every variant had the same chance, and what it cost to
miss its best value."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log10, nan
from statistics import fmean

from transformer_norms.report.study import Study, StudyRun, Variant, ended_runs, finite
from transformer_norms.report.table import number
from transformer_norms.text_tables import Table

_CHOSEN_ON = "val_loss"  # so that a test split stays unseen until the end


@dataclass(frozen=True)
class Audit:
    """The tuning of one variant. `losses`: value of the rate -> mean validation loss in nats per
    token, in which a diverged run counts as its initial loss. `curve`: the losses at the rates at
    which a run finished. `diverged`: the rates at which a run diverged."""

    variant: Variant
    points: int
    missing: int
    losses: Mapping[float, float]
    curve: Mapping[float, float]
    diverged: frozenset[float]
    sensitivity: float | None

    @property
    def best(self) -> Mapping[str, object]:
        """The chosen values; none if nothing was chosen, or if every value diverged."""
        return (self.variant.tuned.best if self.variant.tuned else None) or {}


def audits(study: Study) -> list[Audit]:
    """The audit of each variant; none if no number was tuned."""
    key = study.rate
    if key is None:
        return []
    return [_audit(variant, key, study.tune[key]) for variant in study.variants if variant.trials]


def _audit(variant: Variant, key: str, rates: Sequence[float]) -> Audit:
    """If a rate was tried together with several values of other keys, the best of them counts. The
    sensitivity is over all `rates`, so that those of two variants can be compared."""
    losses: dict[float, float] = {}
    statuses: dict[float, list[str]] = {}
    points = _points(variant)
    for trials in points:
        runs, rate = ended_runs(trials), trials[0].tuned.get(key, inf)
        if not runs or not finite(rate):
            continue
        loss = fmean(run.final_loss(_CHOSEN_ON) for run in runs)
        if loss <= losses.get(rate, loss):
            losses[rate], statuses[rate] = loss, [run.summary.status for run in runs]
    losses = dict(sorted(losses.items()))
    ended = ended_runs(variant.trials)
    initial = [run.summary.initial_loss for run in ended]
    known = [loss for loss in initial if loss is not None]
    comparable = len(rates) > 1 and known and losses.keys() >= set(rates)
    return Audit(
        variant,
        len(points),
        len(variant.trials) - len(ended),
        losses,
        {r: loss for r, loss in losses.items() if "finished" in statuses[r] and isfinite(loss)},
        frozenset(rate for rate, states in statuses.items() if "diverged" in states),
        sensitivity({r: losses[r] for r in rates}, fmean(known)) if comparable else None,
    )


def _points(variant: Variant) -> list[list[StudyRun]]:
    """The trials at each point of the grid."""
    points: dict[str, list[StudyRun]] = {}
    for trial in variant.trials:
        points.setdefault(json.dumps(trial.tuned, sort_keys=True), []).append(trial)
    return list(points.values())


def sensitivity(losses: Mapping[float, float], initial: float) -> float:
    """mean over rates of min(loss, initial) - the best loss     Wortsman et al. 2023, 2309.14322

    The keys are learning rates, which a log grid spaces evenly. The loss of a diverged rate may be
    any value that is not finite. NaN if no rate ended below `initial`: there is no best one.
    """
    capped = [loss if loss < initial else initial for loss in losses.values()]  # of NaN, initial
    best = min(capped)
    return fmean(capped) - best if best < initial else nan


def shared_seeds(variants: Sequence[Variant]) -> str:
    """The seeds that stand in tuning and in results: none, if the choice is to be a fair one."""
    tried = {trial.seed for variant in variants for trial in variant.trials}
    seeds = tried & {run.seed for variant in variants for run in variant.results}
    return ", ".join(map(str, sorted(seeds)))


def caveats(variant: Variant, baseline: Variant) -> list[str]:
    """The remarks that belong to a verdict: tuning gave the two unequal chances, or may have
    stopped before the best value."""
    lines = [
        f"the best {', '.join(side.tuned.edge)} of {side.name} is the last that was tried"
        for side in (variant, baseline)
        if side.tuned and side.tuned.edge
    ]
    points, baseline_points = len(_points(variant)), len(_points(baseline))
    if points != baseline_points:
        lines.append(
            f"{variant.name} was tuned at {points} points and {baseline.name} at {baseline_points}"
        )
    if seeds := shared_seeds([variant, baseline]):
        lines.append(f"tuning had seeds of the results: {seeds}")
    return lines


def audit_lines(study: Study) -> list[str]:
    """Explains the table of the audit, and names the faults of the tuning."""
    rows, key = audits(study), study.rate
    if not rows or key is None:
        return []
    low, high = min(study.tune[key]), max(study.tune[key])
    decades = f", {log10(high / low):.1f} decades" if low > 0 else ""
    lines = [
        f"losses at each {key} are validation losses, on which the best was chosen; sensitivity: "
        f"mean over {low:g} to {high:g}{decades} of min(loss, initial loss) - best loss, in nats "
        "(Wortsman et al. 2023, arXiv:2309.14322), of variants that have a loss at each"
    ]
    points = sorted({audit.points for audit in rows})
    if len(points) == 1:
        lines.append(f"every variant was tried at {points[0]} points")
    else:
        lines.append(f"UNEQUAL: variants were tried at {points[0]} to {points[-1]} points")
    for audit in rows:
        lines += _faults(audit)
    if all(audit.variant.tuned and not audit.variant.tuned.edge for audit in rows):
        lines.append("every best value lies inside the grid")
    seeds = sorted({trial.seed for audit in rows for trial in audit.variant.trials})
    lines.append(f"seeds of tuning: {', '.join(map(str, seeds))}")
    if shared := shared_seeds(study.variants):
        return [*lines, f"SHARED: seeds of tuning and of results: {shared}"]
    return [*lines, "tuning and results have different seeds"]


def _faults(audit: Audit) -> list[str]:
    name, tuned = audit.variant.name, audit.variant.tuned
    lines = [f"{name}: {audit.missing} of its tuning runs are missing"] if audit.missing else []
    if tuned and tuned.edge:
        edge = ", ".join(tuned.edge)
        if tuned.best is None:
            lines.append(f"{name}: EDGE: it diverged at every {edge} that was tried")
        else:
            lines.append(f"{name}: EDGE: its best {edge} is the last that was tried")
    return lines


def audit_table(study: Study) -> Table:
    """The audit by variant: points tried, the best, sensitivity, and the loss at each rate."""
    rows, key = audits(study), study.rate
    if not rows or key is None:
        return {}
    columns = {
        "variant": [audit.variant.name for audit in rows],
        "points": [str(audit.points) for audit in rows],
        f"best {key}": [_best_text(audit, key) for audit in rows],
        "sensitivity": [number(audit.sensitivity) for audit in rows],
    }
    for rate in sorted({rate for audit in rows for rate in audit.losses}):
        columns[f"{rate:g}"] = [
            number(audit.losses.get(rate)) + " (diverged)" * (rate in audit.diverged)
            for audit in rows
        ]
    return columns


def _best_text(audit: Audit, key: str) -> str:
    tuned = audit.variant.tuned
    if tuned is None:
        return "not chosen yet"
    if tuned.best is None:
        return "none"
    return f"{tuned.best.get(key)}{' (edge)' if key in tuned.edge else ''}"
