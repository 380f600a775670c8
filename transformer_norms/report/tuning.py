"""The audit of a study's tuning: whether every variant had the same chance, and what it cost to
miss its best value."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, isnan, log10, nan
from statistics import fmean

from transformer_norms.report.study import Study, StudyRun, Variant, finite
from transformer_norms.run.reader import SavedRun

Table = dict[str, list[str]]  # heading -> a cell for each variant
CHOSEN_ON = "val_loss"  # so that a test split stays unseen until the end


@dataclass(frozen=True)
class Audit:
    """The tuning of one variant. `losses`: value of the rate -> mean validation loss in nats per
    token, in which a diverged run counts as its initial loss. `diverged`: the rates at which a run
    diverged. `lost`: the rates at which every run diverged."""

    variant: Variant
    points: int
    missing: int
    losses: Mapping[float, float]
    diverged: frozenset[float]
    lost: frozenset[float]
    sensitivity: float | None


def audits(study: Study) -> list[Audit]:
    """The audit of each variant; none if no number was tuned."""
    key = study.rate
    return [
        _audit(variant, key, study.tune[key])
        for variant in study.variants
        if variant.trials and key
    ]


def _audit(variant: Variant, key: str, rates: Sequence[float]) -> Audit:
    """A rate that was tried together with several values of other keys has the best of them. The
    sensitivity is that over all `rates`, so that those of two variants can be compared."""
    points = _points(variant)
    losses: dict[float, float] = {}
    statuses: dict[float, list[str]] = {}
    for trials in points:
        runs, rate = _ended(trials), trials[0].tuned.get(key, inf)
        if not runs or not finite(rate):
            continue
        loss = fmean(run.final_loss(CHOSEN_ON) for run in runs)
        if loss <= losses.get(rate, loss):
            losses[rate], statuses[rate] = loss, [run.summary.status for run in runs]
    missing = len(variant.trials) - len(_ended(variant.trials))
    initial = [run.summary.initial_loss for run in _ended(variant.trials)]
    known = [loss for loss in initial if loss is not None]
    whole = len(rates) > 1 and known and all(rate in losses for rate in rates)
    spread = sensitivity({rate: losses[rate] for rate in rates}, fmean(known)) if whole else None
    ordered = dict(sorted(losses.items()))
    diverged = frozenset(rate for rate, ended in statuses.items() if "diverged" in ended)
    lost = frozenset(rate for rate, ended in statuses.items() if "finished" not in ended)
    return Audit(variant, len(points), missing, ordered, diverged, lost, spread)


def _points(variant: Variant) -> list[list[StudyRun]]:
    """The trials at each point of the grid."""
    points: dict[str, list[StudyRun]] = {}
    for trial in variant.trials:
        points.setdefault(json.dumps(trial.tuned, sort_keys=True), []).append(trial)
    return list(points.values())


def caveats(variant: Variant, baseline: Variant) -> list[str]:
    """The remarks that belong to a verdict: tuning gave the two unequal chances, or may have
    stopped before the best value."""
    lines = [
        f"the best {', '.join(one.tuned.edge)} of {one.name} is the last that was tried"
        for one in (variant, baseline)
        if one.tuned and one.tuned.edge
    ]
    ours, theirs = len(_points(variant)), len(_points(baseline))
    if ours != theirs:
        lines.append(f"{variant.name} was tuned at {ours} points and {baseline.name} at {theirs}")
    if shared := shared_seeds([variant, baseline]):
        listed = ", ".join(map(str, shared))
        lines.append(f"tuning had seeds of the results: {listed}")
    return lines


def sensitivity(losses: Mapping[float, float], initial: float) -> float:
    """mean over rates of min(loss, initial) - the best loss     Wortsman et al. 2023, 2309.14322

    By learning rate, which a log grid spaces evenly; of a rate that diverged any loss that is not
    finite may be given. NaN where no rate ended below `initial`: there is no best one.
    """
    capped = [loss if loss < initial else initial for loss in losses.values()]  # of NaN, initial
    best = min(capped)
    return fmean(capped) - best if best < initial else nan


def shared_seeds(variants: Sequence[Variant]) -> list[int]:
    """The seeds that stand in tuning and in results: none, if the choice is to be a fair one."""
    tried = {trial.seed for variant in variants for trial in variant.trials}
    return sorted(tried & {run.seed for variant in variants for run in variant.results})


def _ended(trials: Sequence[StudyRun]) -> list[SavedRun]:
    return [trial.run for trial in trials if trial.run and trial.ended]


def audit_lines(study: Study) -> list[str]:
    """Explains the table of the audit, and names the faults of the tuning."""
    every, key = audits(study), study.rate
    if not every or key is None:
        return []
    low, high = min(study.tune[key]), max(study.tune[key])
    decades = f", {log10(high / low):.1f} decades" if low > 0 else ""
    lines = [
        f"losses at each {key} are validation losses, on which the best was chosen; sensitivity: "
        f"mean over {low:g} to {high:g}{decades} of min(loss, initial loss) - best loss, in nats "
        "(Wortsman et al. 2023, arXiv:2309.14322), of variants that have a loss at each"
    ]
    points = sorted({audit.points for audit in every})
    if len(points) == 1:
        lines.append(f"every variant was tried at {points[0]} points")
    else:
        lines.append(f"UNEQUAL: variants were tried at {points[0]} to {points[-1]} points")
    for audit in every:
        if audit.missing:
            lines.append(f"{audit.variant.name}: {audit.missing} of its tuning runs are missing")
        tuned = audit.variant.tuned
        if tuned and (edge := ", ".join(tuned.edge)):
            last = f"its best {edge} is the last that was tried"
            none = f"it diverged at every {edge} that was tried"
            lines.append(f"{audit.variant.name}: EDGE: {none if tuned.best is None else last}")
    shared = ", ".join(map(str, shared_seeds(study.variants)))
    if all(tuned and not tuned.edge for tuned in (audit.variant.tuned for audit in every)):
        lines.append("every best value lies inside the grid")
    seeds = sorted({trial.seed for audit in every for trial in audit.variant.trials})
    lines.append(f"seeds of tuning: {', '.join(map(str, seeds))}")
    apart = "tuning and results have different seeds"
    return [*lines, f"SHARED: seeds of tuning and of results: {shared}" if shared else apart]


def audit_table(study: Study) -> Table:
    """The audit by variant: points tried, the best, sensitivity, and the loss at each rate."""
    every, key = audits(study), study.rate
    if not every:
        return {}
    columns = {
        "variant": [audit.variant.name for audit in every],
        "points": [str(audit.points) for audit in every],
        f"best {key}": [_best(audit, key or "") for audit in every],
        "sensitivity": [number(audit.sensitivity) for audit in every],
    }
    for rate in sorted({rate for audit in every for rate in audit.losses}):
        columns[f"{rate:g}"] = [_at(audit, rate) for audit in every]
    return columns


def _best(audit: Audit, key: str) -> str:
    chosen = audit.variant.tuned
    if chosen is None:
        return "not chosen yet"
    if chosen.best is None:
        return "none"
    return f"{chosen.best.get(key)}{' (edge)' if key in chosen.edge else ''}"


def _at(audit: Audit, rate: float) -> str:
    text = number(audit.losses.get(rate))
    return f"{text} (diverged)" if rate in audit.diverged else text


def number(value: float | None, digits: int = 4, sign: bool = False) -> str:
    """Empty for None and NaN; `diverged` for infinity, which is a diverged run's loss."""
    if value is None or isnan(value):
        return ""
    if isinf(value):
        return "diverged"
    return f"{value:{'+' if sign else ''}.{digits}f}"
