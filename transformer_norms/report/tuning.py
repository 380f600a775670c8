"""The audit of a study's tuning: whether every variant had the same chance, and what it cost to
miss its best value."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log10
from statistics import fmean

from transformer_norms.report.findings import final_loss
from transformer_norms.report.reading import Run
from transformer_norms.report.statistics import sensitivity
from transformer_norms.report.study import Study, StudyRun, Variant, finite
from transformer_norms.report.table import Table, number

CHOSEN_ON = "val_loss"  # so that a test split stays unseen until the end


@dataclass(frozen=True)
class Audit:
    """What was tried of one variant. `losses`: value of the rate -> mean validation loss in nats
    per token, of diverged runs their initial loss; `diverged`: the rates at which a run did."""

    variant: Variant
    points: int
    missing: int
    losses: Mapping[float, float]
    diverged: frozenset[float]
    sensitivity: float | None


def audits(study: Study) -> list[Audit]:
    """One a variant; none where no number was tuned."""
    key = study.rate
    return [_audit(variant, key) for variant in study.variants if variant.trials and key]


def _audit(variant: Variant, key: str) -> Audit:
    """A rate that was tried together with several values of other keys has the best of them."""
    points: dict[str, list[StudyRun]] = {}
    for trial in variant.trials:
        points.setdefault(json.dumps(trial.tuned, sort_keys=True), []).append(trial)
    losses: dict[float, float] = {}
    diverged = set()
    for trials in points.values():
        runs, rate = _ended(trials), trials[0].tuned.get(key, inf)
        if not runs or not finite(rate):
            continue
        loss = fmean(final_loss(run, CHOSEN_ON) for run in runs)
        if loss <= losses.get(rate, loss):
            losses[rate] = loss
            diverged.discard(rate)
            diverged |= {rate for run in runs if run.summary.status == "diverged"}
    missing = len(variant.trials) - len(_ended(variant.trials))
    initial = [run.summary.initial_loss for run in _ended(variant.trials)]
    known = [loss for loss in initial if loss is not None]
    spread = sensitivity(losses, fmean(known)) if len(losses) > 1 and known else None
    ordered = dict(sorted(losses.items()))
    return Audit(variant, len(points), missing, ordered, frozenset(diverged), spread)


def shared_seeds(study: Study) -> list[int]:
    """The seeds that stand in tuning and in results: none, if the choice is to be a fair one."""
    tried = {trial.seed for variant in study.variants for trial in variant.trials}
    return sorted(tried & {run.seed for variant in study.variants for run in variant.results})


def _ended(trials: Sequence[StudyRun]) -> list[Run]:
    return [trial.run for trial in trials if trial.run and trial.ended]


def audit_table(study: Study) -> Table:
    """The audit by variant: points tried, the best, sensitivity, and the loss at each rate."""
    found, key = audits(study), study.rate
    if not found:
        return {}
    columns = {
        "variant": [audit.variant.name for audit in found],
        "points": [str(audit.points) for audit in found],
        f"best {key}": [_best(audit, key or "") for audit in found],
        "sensitivity": [number(audit.sensitivity) for audit in found],
    }
    for rate in sorted({rate for audit in found for rate in audit.losses}):
        columns[f"{rate:g}"] = [_at(audit, rate) for audit in found]
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


def audit_lines(study: Study) -> list[str]:
    """What the table of the audit means, and what is wrong with the tuning, if anything is."""
    found, key = audits(study), study.rate
    if not found or key is None:
        return []
    low, high = min(study.tune[key]), max(study.tune[key])
    decades = f", {log10(high / low):.1f} decades" if low > 0 else ""
    lines = [
        f"losses at each {key} are validation losses, on which the best was chosen; sensitivity: "
        f"mean over {low:g} to {high:g}{decades} of min(loss, initial loss) - best loss, in nats "
        "(Wortsman et al. 2023, arXiv:2309.14322)"
    ]
    points = sorted({audit.points for audit in found})
    if len(points) == 1:
        lines.append(f"every variant was tried at {points[0]} points")
    else:
        lines.append(f"UNEQUAL: variants were tried at {points[0]} to {points[-1]} points")
    for audit in found:
        if audit.missing:
            lines.append(f"{audit.variant.name}: {audit.missing} of its tuning runs are missing")
        tuned = audit.variant.tuned
        if tuned and (edge := ", ".join(tuned.edge)):
            last = f"its best {edge} is the last that was tried"
            none = f"it diverged at every {edge} that was tried"
            lines.append(f"{audit.variant.name}: EDGE: {none if tuned.best is None else last}")
    shared = ", ".join(map(str, shared_seeds(study)))
    apart = "no seed was used for tuning and for a result"
    return [*lines, f"SHARED: seeds of tuning and of results: {shared}" if shared else apart]
