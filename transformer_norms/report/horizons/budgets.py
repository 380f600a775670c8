"""Comparisons at an equal budget of tokens, FLOPs or seconds, in place of equal steps.

The budget of two variants at a horizon is the smaller one of what both spent there. The loss of the
one that spent more is read at the tokens that this budget buys it, between its horizons
(comparison/price.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from transformer_norms.comparison.price import LossCurve
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.comparison.verdict import Side, Sides
from transformer_norms.config.overrides import HORIZONS
from transformer_norms.errors import ConfigError
from transformer_norms.report.horizons.prices import horizon_of, loss_curves
from transformer_norms.report.study import Study, Variant


@dataclass(frozen=True)
class EqualBudget:
    """`shares`: by variant, the share of its tokens at which its loss is read. `lacking`: why a
    comparison has no value at an equal budget; empty if it has one."""

    shares: Mapping[str, float]
    lacking: str = ""


def at_equal_budgets(
    study: Study, asked: Mapping[str, Sides], sides: Mapping[str, Side]
) -> tuple[dict[str, Sides], dict[str, EqualBudget]]:
    """The sides of each comparison at its budgets, and the budgets, by its name. A comparison of
    which a run failed, or that waits for runs, stays as it is: it has no value in any case.

    Raises ConfigError if the cost of a run is not recorded, or if machines differ in seconds.
    """
    curves, costs = loss_curves(study, sides), _costs_per_token(study)
    read: dict[str, Sides] = {}
    budgets: dict[str, EqualBudget] = {}
    for name, planned in asked.items():
        waits = study.held_looks < 2 and any(side.outcomes.missing for side in planned)
        waits |= not all(side.outcomes.losses for side in planned)
        if waits or any(side.outcomes.failed or side.at_edge for side in planned):
            read[name] = planned
            continue
        coefficients = study.asked[name].coefficients
        shares = _affordable_shares(map(study.variant, coefficients), costs)
        found, lacking = [], []
        for one, share in shares.items():
            tokens = share * (horizon_of(study.variant(one)) or 0)
            if side := curves[one].side_at(tokens):
                found.append(side._replace(coefficient=coefficients[one]))
            else:
                lacking.append(_lack(one, curves[one], tokens))
        read |= {} if lacking else {name: found}
        budgets[name] = EqualBudget(shares, "; ".join(lacking))
    return read, budgets


def _lack(name: str, curve: LossCurve, tokens: float) -> str:
    """Why a curve has no loss at these tokens."""
    shortest = min(curve.horizons, default=0)
    if tokens < shortest:
        return f"{name} would have {tokens:,.0f} tokens, and its shortest horizon has {shortest:,}"
    return f"the loss of {name} at {tokens:,.0f} tokens needs three horizons at which it falls"


def _affordable_shares(variants: Iterable[Variant], costs: Mapping[str, float]) -> dict[str, float]:
    """The share of its tokens, by variant, that the smallest budget of its horizon buys."""
    shares: dict[str, float] = {}
    for together in grouped(variants, lambda v: {key: v.values.get(key) for key in HORIZONS}):
        spent = {v.name: costs[v.name] * (horizon_of(v) or 0) for v in together}
        shares |= {name: min(spent.values()) / one for name, one in spent.items()}
    return shares


def _costs_per_token(study: Study) -> dict[str, float]:
    """The cost of a token, by the name of each variant that has finished runs, in the unit of the
    budget. Seconds are the median over these runs, in training steps alone."""
    finished = {v.name: [run for run in v.ended if run.finished] for v in study.variants}
    every = [run for runs in finished.values() for run in runs]
    machines = {f"{run.summary.device}, threads {run.summary.threads}" for run in every}
    if study.at == "seconds" and len(machines) > 1:
        raise ConfigError(
            f"--at seconds: the runs are of {len(machines)} machines "
            f"({'; '.join(sorted(machines))}); seconds are compared on one, FLOPs on any"
        )
    for run in every:
        if not (getattr(run.summary, study.at) and run.summary.tokens):
            raise ConfigError(f"--at {study.at}: {run.folder} has no record of its {study.at}")
    return {
        name: median(getattr(run.summary, study.at) / run.summary.tokens for run in runs)
        for name, runs in finished.items()
        if runs
    }
