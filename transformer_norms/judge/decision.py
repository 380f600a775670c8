"""Decides from the differences of the pairs so far. It is a pure function, and can be simulated.

A difference is candidate - baseline with one seed, in nats per token: below zero the candidate is
better. The interval of the true mean difference has two ends with two errors:

    high    lies below the true mean at any look with a probability of at most `level`,
    low     lies above it at any look with a probability of at most MISSED.

`level` is the proposal's share of the one error rate of a series (ledger.py): a candidate that is
not better is called better with a probability of at most `level`, whenever it is looked at. Turning
a good candidate away is not such an error, so `low` need not be as strict.

Each end is that of the confidence sequence of comparison/sequence.py. That has two sides and a
martingale M that is the mean of M_up and M_down, of true means above and below mu. While the mean
of the pairs lies below mu, M_up is at most 1, since each mean above mu is less likely than mu. So
M >= (1 / level + 1) / 2 there needs M_down >= 1 / level, of which the probability is at most
`level` (Ville 1939). The sequence of two sides has M >= 1 / LEVEL, so LEVEL = 2 level / (1 + level)
gives an end of error `level`. Differences are taken as normal. No variance known from other studies
is used, since with one the error would hold only on average over proposals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import special

from transformer_norms.comparison.sequence import confidence_sequence, half_width_at
from transformer_norms.comparison.shrinkage import Spread
from transformer_norms.comparison.statistics import FEWEST, deviation

Word = Literal["better", "not better", "undecided"]
EFFECT = 0.005  # nats per token: the smallest difference worth taking, unless one is typed
MISSED = 0.05  # how often a candidate that is better by `effect` may be called not better
_UNLIKELY = 0.05  # what the pairs to come are not trusted to do
_ROUNDING = 1e-12  # nats: the spread of differences that are the same but for their last digits


@dataclass(frozen=True)
class Decision:
    """The decision so far: the mean difference, its interval (infinite ends are None), and why.
    `over`: no further pair is wanted."""

    word: Word = "undecided"
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    over: bool = False
    reason: str = ""


def decide(differences: Sequence[float], level: float, effect: float, most: int) -> Decision:
    """Returns the decision after these differences, in the order of their seeds.

    better: high < 0 and mean <= -effect. not better: low > -effect. Fewer than FEWEST pairs decide
    nothing. It is over without a decision after `most` pairs, or when it is hopeless.
    """
    count = len(differences)
    if not count:
        return Decision(reason="no pair was trained")
    mean, low, high = interval(differences, level)
    word, reason = _word(differences, mean, low, high, effect)
    over = word != "undecided"
    if not over and count >= most:
        over, reason = True, f"--most {most} is reached: {reason}"
    elif count >= FEWEST and not over and is_hopeless(differences, level, effect, most):
        over, reason = True, f"hopeless: {most} pairs would hardly show that it is better"
    return Decision(word, mean, _finite(low), _finite(high), over, reason)


def _word(
    differences: Sequence[float], mean: float, low: float, high: float, effect: float
) -> tuple[Word, str]:
    """Returns what an interval decides, and why. Differences without a spread measure no noise."""
    if len(differences) < FEWEST:
        return "undecided", "more pairs are needed"
    if max(differences) - min(differences) <= _ROUNDING:
        if abs(mean) <= _ROUNDING:
            return "not better", "its losses are those of the baseline"
        return "undecided", "the difference is the same with every seed"
    if high < 0 and mean <= -effect:
        return "better", "the interval lies below zero"
    if low > -effect:
        return "not better", f"it is not better by {effect:g} nats or more"
    return "undecided", "more pairs are needed"


def _finite(end: float) -> float | None:
    return end if math.isfinite(end) else None


def interval(differences: Sequence[float], level: float) -> tuple[float, float, float]:
    """Returns the mean difference and the ends `low` and `high` of its interval."""
    low = confidence_sequence(differences, _two_sided(MISSED), None)[0]
    high = confidence_sequence(differences, _two_sided(level), None)[1]
    return math.fsum(differences) / len(differences), low, high


def _two_sided(level: float) -> float:
    return 2 * level / (1 + level)


def is_hopeless(differences: Sequence[float], level: float, effect: float, most: int) -> bool:
    """Returns whether even lucky pairs to come would not make the candidate better after `most`.

    Lucky: the mean of the pairs to come is at the end that Student's prediction from the pairs so
    far leaves to 5 % of cases, and the variance of all pairs at the end that the F distribution
    leaves to 5 %. Giving up costs a gain now and then, and makes no false claim.
    """
    count, coming = len(differences), most - len(differences)
    sd, mean = deviation(differences), math.fsum(differences) / count
    error = sd * math.sqrt(1 / coming + 1 / count)
    mean += float(special.stdtrit(count - 1, _UNLIKELY)) * error * coming / most
    ratio = float(special.fdtri(count - 1, coming, 1 - _UNLIKELY))
    spread = Spread(sd**2 / max(1.0, ratio), most - 1)
    return mean > -effect or mean + half_width_at(spread, most, _two_sided(level)) >= 0
