"""Comparisons at an equal budget of tokens, FLOPs or seconds, in place of equal steps.

The budget of two variants at a horizon is the smaller one of what both spent there. The loss of the
one that spent more is read at the tokens that this budget buys it, between its horizons
(comparison/price.py). Seconds are compared as step times are: their ratio is the median over the
pairs of runs. The reading moves by so much at a quartile of the ratio; that is part of its slack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median

from transformer_norms.comparison.price import LossCurve
from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.comparison.verdict import Side, Sides
from transformer_norms.config.overrides import HORIZONS
from transformer_norms.errors import ConfigError
from transformer_norms.report.horizons.prices import horizon_of, loss_curves
from transformer_norms.report.measured.cost import CostRatio, cost_ratio
from transformer_norms.report.study import Study, Variant
from transformer_norms.run.reader import SavedRun


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
        if not (_spent(study, run) and run.summary.tokens):
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
        found: list[Side] = []
        lacking: list[str] = []
        shares: dict[str, float] = {}
        for variant in variants:
            ratio = _ratio_to_cheapest(study, variant, variants)
            if isinstance(ratio, str):
                lacking.append(ratio)
                continue
            shares[variant.name] = 1 / ratio.median
            side = _reading(variant, curves[variant.name], ratio)
            if isinstance(side, str):
                lacking.append(side)
            else:
                found.append(side._replace(coefficient=coefficients[variant.name]))
        read |= {} if lacking else {name: found}
        budgets[name] = EqualBudget(shares, "; ".join(dict.fromkeys(lacking)))
    return read, budgets


def _spent(study: Study, run: SavedRun) -> float | None:
    return getattr(run.summary, study.at)


def _ratio_to_cheapest(study: Study, variant: Variant, variants: list[Variant]) -> CostRatio | str:
    """What a variant spent, divided by the least that one of its horizon spent; or why it is not
    known."""
    horizons = grouped(variants, lambda v: {key: v.values.get(key) for key in HORIZONS})
    ratios: list[CostRatio] = []
    for other in next(together for together in horizons if variant in together):
        if study.at == "seconds":
            ratio = cost_ratio(study, variant, other, lambda run: _spent(study, run))
        else:  # exact, whatever the machine
            mine, theirs = (
                median(_spent(study, run) or 0 for run in one.ended if run.finished)
                for one in (variant, other)
            )
            ratio = CostRatio(*[mine / theirs] * 3)
        if ratio is None:
            return f"seconds need {FEWEST} pairs of runs"
        if ratio.apart:
            return f"the seconds of {' and '.join(v.name for v in variants)} are {ratio}"
        ratios.append(ratio)
    return max(ratios, key=lambda ratio: (ratio.median, ratio.high))


def _reading(variant: Variant, curve: LossCurve, ratio: CostRatio) -> Side | str:
    """The side of a variant at its budget, or why there is none. The distance to the reading at the
    farther one of the quartiles is part of its slack."""
    horizon = horizon_of(variant) or 0
    sides: list[Side] = []
    for one in (ratio.median, ratio.low, ratio.high):
        tokens = horizon * min(1.0, 1 / one)
        if not (side := curve.side_at(tokens)):
            return _lack(variant.name, curve, tokens)
        sides.append(side)
    read, *ends = (fmean(side.outcomes.losses.values()) for side in sides)
    far = max(abs(end - read) for end in ends)
    return sides[0]._replace(tuning_slack=sides[0].tuning_slack + far)


def _lack(name: str, curve: LossCurve, tokens: float) -> str:
    """Why a curve has no loss at these tokens."""
    shortest = min(curve.horizons, default=0)
    if tokens < shortest:
        return f"{name} would have {tokens:,.0f} tokens, and its shortest horizon has {shortest:,}"
    return f"the loss of {name} at {tokens:,.0f} tokens needs three horizons at which it falls"
