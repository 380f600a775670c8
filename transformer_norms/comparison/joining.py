"""One estimate of one difference over studies that ask the same.

Study i finds y_i, whose mean over its seeds has the variance v_i. The true difference of a study is
theta + a draw of variance tau^2: studies differ in their text, size or horizon. Each of the k
studies counts the same, as one measurement of theta:

    theta = mean(y_i)  +-  t(k - 1) s / sqrt(k)
    s^2   = max(sum((y_i - theta)^2) / (k - 1), mean(v_i)),    tau^2 = s^2 - mean(v_i)

Student's interval of 95 % covers theta at least that often, however the variances of the studies
differ (Ibragimov & Mueller 2010, doi:10.1198/jbes.2009.08046). The maximum keeps studies that agree
by chance from claiming more than their seeds can. The interval is wider by the mean tuning slack:
what tuning missed may have one sign in all studies.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import special

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
    studies, theta = len(y), float(y.mean())
    spread = Spread(max(float(y.var(ddof=1)), float(v.mean())), studies - 1)
    below, above = np.mean([c.slack for c in comparisons], axis=0).tolist()
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
    squares = float(np.sum((y - np.average(y, weights=1 / v)) ** 2 / v))  # Cochran's Q
    tau = math.sqrt(spread.variance - float(v.mean()))
    return Joined(joined, tau, float(special.chdtrc(studies - 1, squares)))
