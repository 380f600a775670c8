"""Seeds until it is decided: the decision on each comparison, and which variants need more seeds.

Each look decides from all results that there are. It needs no memory, so a study that was stopped
finds its decisions again.
"""

import math
from collections.abc import Mapping, Sequence

from transformer_norms.comparison.sequence import half_width_at
from transformer_norms.comparison.shrinkage import Spread
from transformer_norms.comparison.statistics import FEWEST, LEVEL, student_quantile
from transformer_norms.comparison.verdict import Comparison, Rules

HOPELESS = "hopeless"
_OPEN = ("not told apart", "not decided yet", "described")
_STAYS = 0.8  # of the interval in which the mean is taken to stay
Counts = Mapping[str, int]  # seeds by variant
Decisions = Mapping[str, str | None]  # by comparison


def verdicts(comparisons: Mapping[str, Comparison]) -> dict[str, str]:
    """The verdicts that say something, by comparison."""
    return {name: c.verdict for name, c in comparisons.items() if c.verdict not in _OPEN}


def decide(comparisons: Mapping[str, Comparison], rules: Rules, most: int) -> dict[str, str | None]:
    """The decision on each comparison: its verdict, `hopeless`, or None if more seeds may decide.

    The comparisons are those of compare() with two looks or more in its rules. One error rate then
    covers all comparisons and all looks. Each bound is one of a confidence sequence at the level
    0.05 / k. It leaves out the true difference at any look with at most that probability, if the
    usual variance is given (Ville 1939). A study measures that at each look; simulations show that
    the 5 % hold with it.

    A run that failed decides: the verdict stays `failed` with further seeds. A comparison that
    is only described needs no seeds.
    """
    assert rules.looks > 1, "seeds that are added after a look need tests that allow it"
    described = {name: "described" for name, c in comparisons.items() if c.verdict == "described"}
    level = LEVEL / max(1, len(comparisons) - len(described) + rules.to_come)
    hopeless = {name for name, c in comparisons.items() if is_hopeless(c, most, level)}
    undecided = {name: HOPELESS if name in hopeless else None for name in comparisons}
    return {**undecided, **described, **verdicts(comparisons)}


def is_hopeless(c: Comparison, most: int, level: float) -> bool:
    """Whether `most` seeds would leave a comparison undecided: no mean within the present 80 %
    interval would then be named or be equivalent, with bounds as wide as the present variance
    makes them. Stopping for this reason costs power and makes no false claim."""
    if c.spread is None or c.difference is None:
        return len(c.differences) >= FEWEST  # all are equal, and more would be
    reach = student_quantile(c.spread.freedom, 1 - _STAYS)
    reach *= c.spread.sd / math.sqrt(len(c.seeds))
    low, high = c.difference - reach, c.difference + reach
    below, above = c.slack
    then = Spread(c.spread.variance, c.spread.freedom + most - len(c.seeds))
    half = half_width_at(then, most, level)
    nearest = min(max((below - above) / 2, low), high)
    equivalent = max(nearest + above, below - nearest) + half < c.margin
    return not (high - below > half or -low - above > half or equivalent)


def more_seeds(
    undecided: Sequence[Sequence[str]], counts: Counts, most: int, at_once: int = 1
) -> Counts:
    """The number of seeds that each variant should have next, at most `most`. All variants of an
    undecided comparison get the same further seeds: one, or as many as keep `at_once` runs busy.
    """
    short = [members for members in undecided if min(counts[name] for name in members) < most]
    running = {name for members in short for name in members}
    wanted = dict(counts)
    for members in short:
        step = math.ceil(at_once / len(running))
        target = min(most, min(counts[name] for name in members) + step)
        wanted |= {name: max(wanted[name], target) for name in members}
    return wanted
