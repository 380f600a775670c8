"""One estimate of one difference over studies that ask the same.

Study i finds y_i, whose mean over its seeds has the variance v_i. The true difference of a study is
theta + a draw of variance tau^2: studies differ in their text, size or horizon.

    w_i = 1 / (v_i + tau^2)        theta = sum(w_i y_i) / sum(w_i)
    sum(w_i (y_i - theta)^2) = k - 1  gives tau^2, zero at least     Paule & Mandel 1982
    theta +- t(k - 1) / sqrt(sum(w_i))                               Hartung & Knapp 2001

The interval is wider by the mean tuning slack, with the weights w_i: what tuning missed may have
one sign in all studies. experiments/noise/error_rates.md has how often it is wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from transformer_norms.comparison.shrinkage import Spread
from transformer_norms.comparison.statistics import (
    LEVEL,
    detectable_difference,
    half_width,
    student_quantile,
)
from transformer_norms.comparison.verdict import Comparison, word_of


class Joined(NamedTuple):
    """`comparison` has the seeds of all studies. `tau`: the deviation between studies, in nats.
    `heterogeneity`: p of Cochran's Q, that the studies have one true difference."""

    comparison: Comparison
    tau: float
    heterogeneity: float


def join(comparisons: Sequence[Comparison], together: int = 1) -> Joined:
    """Joins a comparison of two studies or more, as one of so many that are judged `together`; with
    0 it is only described. Each has a difference, a spread, and the margin of the first."""
    y = np.array([c.difference for c in comparisons])
    v = np.array([c.spread.variance / len(c.seeds) for c in comparisons if c.spread])
    studies, tau2 = len(y), _variance_between(y, v)
    weights = 1 / (v + tau2)
    share = weights / weights.sum()
    theta = float(share @ y)
    spread = Spread(studies / float(weights.sum()), studies - 1)
    below, above = map(float, share @ np.array([c.slack for c in comparisons]))
    half, margin = half_width(spread, studies, LEVEL), comparisons[0].margin
    joined = Comparison(
        tuple(seed for c in comparisons for seed in c.seeds),
        difference=theta,
        differences=tuple(x for c in comparisons for x in c.differences),
        slack=(below, above),
        spread=spread,
        interval=(theta - half, theta + half),
        verdict="described",
        margin=margin,
    )
    if together:
        level = LEVEL / together
        half = half_width(spread, studies, level)
        bounds = theta - half - below, theta + half + above
        quantile = student_quantile(studies - 1, level)
        found = detectable_difference(quantile, spread, studies, max(below, above))
        joined = replace(
            joined,
            bounds=bounds,
            detectable=found if math.isfinite(found) else None,
            verdict=word_of(bounds, margin),
        )
    heterogeneity = float(special.chdtrc(studies - 1, _squares(0.0, y, v)))
    return Joined(joined, math.sqrt(tau2), heterogeneity)


def _squares(tau2: float, y: np.ndarray, v: np.ndarray) -> float:
    """Cochran's Q, with the weights of this tau^2."""
    weights = 1 / (v + tau2)
    return float(weights @ (y - np.average(y, weights=weights)) ** 2)


def _variance_between(y: np.ndarray, v: np.ndarray) -> float:
    freedom = len(y) - 1
    if _squares(0.0, y, v) <= freedom:
        return 0.0
    most = float(np.ptp(y) ** 2)  # at this tau^2, Q is at most k / 4
    return float(optimize.brentq(lambda t: _squares(t, y, v) - freedom, 0.0, most + 1e-300))
