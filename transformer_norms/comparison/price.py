"""The price of a variant: the share of the tokens that it saves, from losses at several horizons.

Between two horizons a variant's loss follows the power law E + A tokens^-a. The law passes through
the mean losses of three neighbouring horizons, so a is known, and each seed's loss between two
horizons is a weighted mean of its losses at both. The increment from the nearer horizon is taken
as known to CURVE_ERROR of its size: that is part of the slack, with the tuning error.

The better one of two variants is always read backward, inside what it trained. At the horizon H

    theta > 0: the variant with H exp(-theta) tokens has the loss of the baseline with H tokens
    theta < 0: the baseline with H exp(theta) tokens has the loss of the variant with H tokens

and the share saved is 1 - exp(-theta), or exp(theta) - 1 below zero. The ends of the interval are
those theta at which zero is a bound of the difference of these losses (the inversion of a test, as
in Fieller 1954). So it leaves out zero exactly where these bounds at H do. It has no bound on a
side where it reaches the shortest horizon. experiments/noise/price_coverage.md has its coverage.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, takewhile
from statistics import fmean

from scipy import optimize, special

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.comparison.verdict import Rules, Side, compare

CURVE_ERROR = 0.05  # of an increment: what a bend of the true curve moves it by (price_coverage.md)
_STEEPEST = 50.0  # a x ln(ratio of two horizons): losses in double precision show no more


@dataclass(frozen=True)
class Price:
    """The price of a variant against its baseline, at a horizon in tokens.

    `saved`: the share of tokens that the variant saves; below zero its baseline saves them. `low`
    and `high`: its interval, at the level of the verdict. None: the horizons give no such number.
    """

    horizon: float
    saved: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class LossCurve:
    """The loss of one kind of variant over its horizons: what it is at each number of tokens."""

    sides: Mapping[float, Side]

    @cached_property
    def horizons(self) -> list[float]:
        """The horizons that count, shortest first. One with a failed or missing run is left out: a
        part of its seeds would be a choice. So is one whose best rate was not found."""

        def counts(side: Side) -> bool:
            one, tuned = side.outcomes, not side.at_edge and math.isfinite(side.tuning_slack)
            return tuned and bool(one.losses) and not (one.failed or one.missing)

        return sorted(tokens for tokens, side in self.sides.items() if counts(side))

    @cached_property
    def _exponents(self) -> dict[float, float]:
        """a between each horizon and the next, by the former: of the law through both and the one
        before them, or after the first two. Without those where the mean loss does not fall."""
        means = [fmean(self.sides[tokens].outcomes.losses.values()) for tokens in self.horizons]
        exponents: dict[float, float] = {}
        for n, first in enumerate(self.horizons[:-1]):
            three = slice(max(0, n - 1), max(0, n - 1) + 3)
            a = _exponent(self.horizons[three], means[three])
            exponents |= {} if a is None else {first: a}
        return exponents

    def shortest(self, horizon: float) -> float:
        """The shortest horizon from which the mean loss falls up to this one."""
        earlier = [tokens for tokens in self.horizons if tokens < horizon]
        falling = takewhile(self._exponents.__contains__, reversed(earlier))
        return min(falling, default=horizon)

    def side_at(self, tokens: float) -> Side | None:
        """The side with these tokens; None outside the horizons, where three of them are missing,
        or where the mean loss does not fall."""
        if tokens in self.horizons:
            return self.sides[tokens]
        ends = next((ends for ends in pairwise(self.horizons) if ends[0] < tokens < ends[1]), None)
        if ends is None or ends[0] not in self._exponents:
            return None
        a, first, last = self._exponents[ends[0]], *(self.sides[end] for end in ends)
        part, whole = (math.log(one / ends[0]) for one in (tokens, ends[1]))
        share = part * special.exprel(-a * part) / (whole * special.exprel(-a * whole))
        losses = {
            seed: float((1 - share) * loss + share * last.outcomes.losses[seed])
            for seed, loss in first.outcomes.losses.items()
            if seed in last.outcomes.losses
        }
        fall = fmean(first.outcomes.losses.values()) - fmean(last.outcomes.losses.values())
        slack = (1 - share) * first.tuning_slack + share * last.tuning_slack
        slack += CURVE_ERROR * fall * min(share, 1 - share)
        return Side(first.coefficient, Outcomes(losses), float(slack))


def _exponent(tokens: Sequence[float], losses: Sequence[float]) -> float | None:
    """a of the power law through three losses; None if these are not three that fall."""
    falls = [first - second for first, second in pairwise(losses)]
    if len(falls) < 2 or min(falls) <= 0:
        return None
    before, after = (math.log(second / first) for first, second in pairwise(tokens))

    def excess(a: float) -> float:
        """Returns ln of the ratio of the law's two falls, minus that of the losses."""
        ratio = before * special.exprel(a * before) / (after * special.exprel(-a * after))
        return math.log(ratio * falls[1] / falls[0])

    steepest = _STEEPEST / min(before, after)
    return float(optimize.bisect(excess, -steepest, steepest))


def price(
    variant: LossCurve, baseline: LossCurve, horizon: float, rules: Rules, together: int = 1
) -> Price | None:
    """The price at a horizon, as one of so many comparisons that are judged `together`.

    None at the shortest horizon, with fewer than three horizons, or where fewer than FEWEST seeds
    are at all horizons.
    """
    curves = variant, baseline
    if any(horizon not in curve.horizons for curve in curves):
        return None
    seeds = [set(curve.sides[at].outcomes.losses) for curve in curves for at in curve.horizons]
    ends = [curve.shortest(horizon) for curve in curves]
    if len(set.intersection(*seeds)) < FEWEST or max(ends) == horizon:
        return None
    rules = replace(rules, to_come=together - 1)
    most, least = math.log(horizon / ends[0]), -math.log(horizon / ends[1])

    def read(theta: float) -> tuple[float, float, float]:
        """The mean difference and its bounds at theta, without bounds infinite."""
        tokens = (horizon * math.exp(min(0.0, x)) for x in (-theta, theta))
        places = zip(curves, map(max, ends, tokens), strict=True)
        sides = [side for curve, at in places if (side := curve.side_at(at))]
        c = compare({"": (sides[0], sides[1]._replace(coefficient=-1.0))}, rules)[""]
        return c.difference or 0.0, *(c.bounds or (-math.inf, math.inf))

    if math.isinf(max(read(0.0), key=abs)):
        return None
    theta, high, low = (_root(read, number, least, most) for number in range(3))
    # Where even the shortest horizon of the better one is enough, it saves at least that.
    low = most if read(most)[2] < 0 else low
    high = least if read(least)[1] > 0 else high
    return Price(horizon, *map(_share, (theta, low, high)))


def _root(
    read: Callable[[float], Sequence[float]], number: int, low: float, high: float
) -> float | None:
    """Where the number, which rises with theta, is zero; None if that is not between the ends."""
    if read(low)[number] > 0 or read(high)[number] < 0:
        return None
    return float(optimize.bisect(lambda theta: read(theta)[number], low, high, xtol=1e-6))


def _share(theta: float | None) -> float | None:
    return None if theta is None else math.copysign(-math.expm1(-abs(theta)), theta)
