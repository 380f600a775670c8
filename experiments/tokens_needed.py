"""The tokens that a placement needs beside pre-norm, for the lower loss that one of both has at a
horizon. It is read between the horizons of the other one, so that the shortest horizon has an
answer, which a price, that is read backward, does not have."""

import math
from collections.abc import Mapping

from ladder import estimate
from scipy import optimize

from transformer_norms.comparison.price import LossCurve
from transformer_norms.comparison.verdict import Side
from transformer_norms.report.findings import Findings
from transformer_norms.report.horizons.prices import horizon_of, loss_curves
from transformer_norms.text_tables import markdown_table


def needed_text(found: Findings) -> str:
    """A row for each horizon but the longest, and a column for each placement."""
    sides = {name: Side(1.0, outcomes) for name, outcomes in found.outcomes.items()}
    by_variant = loss_curves(found.study, sides)
    curves = {v.values["placement"]: by_variant[v.name] for v in found.study.variants}
    steps = {horizon_of(v): v.values["trainer.steps"] for v in found.study.variants}
    pre = curves.pop("pre")
    rows = [["steps", *curves]]
    for horizon in pre.horizons[:-1]:
        logs = [log_ratios(curve, pre, horizon) for curve in curves.values()]
        rows.append([f"{steps[horizon]:,}", *map(_shown, logs)])
    return (
        "Asked when the results had been seen: the tokens that a placement needs beside pre, for "
        "the lower of both losses at a horizon, read between the horizons of the other one; with "
        f"the 95 % interval over the seeds:\n\n{markdown_table(rows)}"
    )


def log_ratios(one: LossCurve, other: LossCurve, horizon: float) -> dict[int, float]:
    """log of the tokens of `one` over those of `other`, by seed, for the lower of the two losses at
    the horizon. A seed whose lower loss the other one does not reach is left out."""
    found: dict[int, float] = {}
    if not {horizon} <= {*one.horizons} & {*other.horizons}:
        return found
    for seed, own in _losses(one, horizon).items():
        beside = _losses(other, horizon)[seed]
        behind, sign = (one, 1) if beside < own else (other, -1)
        tokens = tokens_to(behind, seed, min(own, beside), horizon)
        found |= {} if tokens is None else {seed: sign * math.log(tokens / horizon)}
    return found


def tokens_to(curve: LossCurve, seed: int, loss: float, start: float) -> float | None:
    """The tokens at which a seed has the loss, between `start` and the longest horizon, where the
    mean loss falls from one to the other."""
    last = curve.horizons[-1]
    if not curve.shortest(last) <= start < last:
        return None

    def above(log_tokens: float) -> float:
        return _losses(curve, math.exp(log_tokens))[seed] - loss

    ends = math.log(start), math.log(last)
    # Rounding of exp(log) must not leave the horizons.
    low, high = ends[0] + 1e-12, ends[1] - 1e-12
    if above(high) > 0:
        return None
    return start if above(low) <= 0 else math.exp(optimize.bisect(above, low, high, xtol=1e-9))


def _losses(curve: LossCurve, tokens: float) -> Mapping[int, float]:
    side = curve.side_at(tokens)
    assert side is not None
    return side.outcomes.losses


def _shown(logs: Mapping[int, float]) -> str:
    if len(logs) < 2:
        return ""
    mean = estimate(logs.values())
    value, low, high = (f"{100 * math.expm1(x):+.0f}" for x in (mean.value, mean.low, mean.high))
    return f"{value} % ({low} to {high})"
