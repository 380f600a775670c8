"""Seeds until it is decided: what each comparison has come to, and which variants need more seeds.

Every decision is taken anew at each look, from all results that there are. It needs no memory, so a
study that was stopped finds its decisions again.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from scipy import special

from transformer_norms.comparison.moderation import Spread
from transformer_norms.comparison.sequence import half_width_at
from transformer_norms.comparison.statistics import LEVEL
from transformer_norms.comparison.verdict import Comparison, Rules

HOPELESS = "hopeless"
_OPEN = (
    "below the effect", "not distinguishable", "not distinguishable from zero", "not decided yet",
    "too few seeds",
)  # fmt: skip
_STAYS = 0.8  # of the interval in which the mean is taken to stay
Counts = Mapping[str, int]  # seeds by variant
Decisions = Mapping[str, str | None]  # by comparison


class Results(NamedTuple):
    """The results of a look: the comparisons by their names, the rules that they share, the
    variants in each comparison, and how many seeds each variant has. A comparison without `members`
    gets no more seeds."""

    comparisons: Mapping[str, Comparison]
    rules: Rules
    members: Mapping[str, Sequence[str]]
    counts: Counts


def looks_until_decided(
    look: Callable[[Counts], Results | None], counts: Counts, most: int, at_once: int = 1
) -> Iterator[tuple[Counts, Decisions]]:
    """Adds seeds to the variants of undecided comparisons, up to `most` each, and yields after each
    look the number of seeds of each variant and the decisions. `look` runs as many seeds of each
    variant as it is given, or more where another command asks for more, and returns their results,
    or None to stop. `at_once` runs are kept busy.
    """
    while results := look(counts):
        counts = results.counts
        decisions = decide(results.comparisons, results.rules, most)
        yield counts, decisions
        undecided = [m for name, m in results.members.items() if decisions[name] is None]
        wanted = _more(undecided, counts, most, at_once)
        if wanted == counts:
            return
        counts = wanted


def verdicts(comparisons: Mapping[str, Comparison]) -> dict[str, str]:
    """The verdicts that say something, by comparison."""
    return {name: c.verdict for name, c in comparisons.items() if c.verdict not in _OPEN}


def decide(comparisons: Mapping[str, Comparison], rules: Rules, most: int) -> dict[str, str | None]:
    """The decision on each comparison: its verdict, `hopeless`, or None if more seeds may decide.

    The comparisons are those of compare() with two looks or more in its rules. One error rate then
    covers all comparisons and all looks. Let p* be the smallest p that a comparison ever has. It is
    a p value, since P(p* <= a) <= a by Ville's inequality. At each look p is p* or larger, and Holm
    rejects no more with larger p. So every better or worse that is ever named is named by Holm from
    the p*, and one of them is false in at most 5 % of studies, whenever they stop. The same holds
    for equivalent, which has a family of its own. This is exact for one prior. The prior of a study
    is fitted anew at each look; simulations show that the 5 % hold with it.

    A run that failed decides: the verdict stays `failed` whatever further seeds do, so they would
    cost runs and settle nothing about losses.
    """
    assert rules.looks > 1, "seeds that are added after a look need tests that allow it"
    lost = sum(c.verdict == "failed" for c in comparisons.values())
    different = lost + sum(_is_open(c.p_holm) for c in comparisons.values())
    near = lost + sum(_is_open(c.p_equivalent) for c in comparisons.values())
    levels = LEVEL / max(1, different), LEVEL / max(1, near)
    hopeless = {name for name, c in comparisons.items() if is_hopeless(c, most, *levels)}
    return {name: HOPELESS if name in hopeless else None for name in comparisons} | verdicts(
        comparisons
    )


def _is_open(p: float | None) -> bool:
    return p is not None and p >= LEVEL


def is_hopeless(c: Comparison, most: int, level: float, level_equivalent: float) -> bool:
    """Whether `most` seeds would leave a comparison undecided.

    It is hopeless if no mean within the present 80 % interval would be named or be equivalent at
    `most` seeds. The confidence sequence of that mean has the width that the present moderated
    variance gives at the levels that Holm's correction leaves now. Stopping for this reason costs
    power and makes no false claim.
    """
    if c.spread is None or c.difference is None:
        return False
    reach = float(special.stdtrit(c.spread.freedom, (1 + _STAYS) / 2))
    reach *= c.spread.sd / math.sqrt(len(c.seeds))
    low, high = c.difference - reach, c.difference + reach
    below, above = c.gains
    then = Spread(c.spread.variance, c.spread.freedom + most - len(c.seeds))
    half = half_width_at(then, most, level)
    worse = high >= c.effect and high - below > half
    better = -low >= c.effect and -low - above > half
    nearest = min(max((below - above) / 2, low), high)
    half = half_width_at(then, most, level_equivalent)
    equivalent = max(nearest + above, below - nearest) + half < c.effect
    return not (worse or better or equivalent)


def _more(
    undecided: Sequence[Sequence[str]], counts: Counts, most: int, at_once: int
) -> dict[str, int]:
    """The number of seeds that each variant should have next. All variants of an undecided
    comparison get the same further seeds: one, or as many as keep `at_once` runs busy."""
    short = [members for members in undecided if min(counts[name] for name in members) < most]
    running = {name for members in short for name in members}
    wanted = dict(counts)
    for members in short:
        step = math.ceil(at_once / len(running))
        target = min(most, min(counts[name] for name in members) + step)
        wanted |= {name: max(wanted[name], target) for name in members}
    return wanted
