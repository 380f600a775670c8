"""Comparisons at an equal budget of tokens, FLOPs or seconds, in place of equal steps.

The budget of two variants at a horizon is the smaller one of what both spent there. The loss of the
one that spent more is read at the tokens that this budget buys it, between its horizons
(comparison/price.py). Seconds are compared as step times are: their ratio is the median over the
pairs of runs. The reading moves by so much at a quartile of the ratio; that is part of its slack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean

from transformer_norms.comparison.price import LossCurve
from transformer_norms.comparison.verdict import Side, Sides
from transformer_norms.errors import ConfigError
from transformer_norms.report.horizons.prices import horizon_of, loss_curves
from transformer_norms.report.measured.cost import cost_ratio
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

    Raises ConfigError if the cost of a run is not recorded.
    """
    for run in (run for v in study.variants for run in v.ended if run.finished):
        if not (getattr(run.summary, study.at) and run.summary.tokens):
            raise ConfigError(f"--at {study.at}: {run.folder} has no record of its {study.at}")
    curves = loss_curves(study, sides)
    read: dict[str, Sides] = {}
    budgets: dict[str, EqualBudget] = {}
    for name, planned in asked.items():
        waits = study.held_looks < 2 and any(side.outcomes.missing for side in planned)
        waits |= not all(side.outcomes.losses for side in planned)
        if waits or any(side.outcomes.failed or side.at_edge for side in planned):
            read[name] = planned
            continue
        coefficients = study.asked[name].coefficients
        variants = [study.variant(one) for one in coefficients]
        readings = {v.name: _reading(study, v, variants, curves[v.name]) for v in variants}
        lacking = dict.fromkeys(side for _, side in readings.values() if isinstance(side, str))
        found = [
            side._replace(coefficient=coefficients[one])
            for one, (_, side) in readings.items()
            if isinstance(side, Side)
        ]
        read |= {} if lacking else {name: found}
        shares = {one: share for one, (share, _) in readings.items()}
        budgets[name] = EqualBudget(shares, "; ".join(lacking))
    return read, budgets


def _reading(
    study: Study, variant: Variant, variants: list[Variant], curve: LossCurve
) -> tuple[float, Side | str]:
    """The share of its tokens that the smallest budget of the variants of its horizon buys, and its
    side there, or why there is none."""
    found = [
        cost_ratio(study, variant, v, attrgetter(f"summary.{study.at}"), study.at != "seconds")
        for v in variants
        if v.horizon == variant.horizon
    ]
    if lacking := [one for one in found if not one or one.apart]:
        why = f"are {lacking[0]}" if lacking[0] else "have too few pairs of runs"
        return 1.0, f"the {study.at} of {' and '.join(v.name for v in variants)} {why}"
    ratio = max(filter(None, found), key=lambda one: (one.median, one.high))
    sides: list[Side] = []
    for one in (ratio.median, ratio.low, ratio.high):
        tokens = (horizon_of(variant) or 0) * min(1.0, 1 / one)
        if not (side := curve.side_at(tokens)):
            name, shortest = variant.name, min(curve.horizons, default=0)
            text = f"{name} would have {tokens:,.0f} tokens, and its"
            if tokens < shortest:
                return 1 / ratio.median, f"{text} shortest horizon has {shortest:,}"
            return 1 / ratio.median, f"{text} loss there needs three horizons at which it falls"
        sides.append(side)
    read, *ends = (fmean(side.outcomes.losses.values()) for side in sides)
    slack = sides[0].tuning_slack + max(abs(end - read) for end in ends)
    return 1 / ratio.median, sides[0]._replace(tuning_slack=slack)
