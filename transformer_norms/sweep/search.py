"""How a variant's learning rate is chosen: which points its search tries, and which one is best.

A point has a value for each tuned key. A search tries the whole grid, and steps outward while the
best point is at an edge. It refines the best point, may step outward again, and tries a point
between the best and one above it that failed (tuning.py). Nothing here reads a file or draws a
random number: the same losses lead to the same points, and a sweep that was stopped repeats them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from operator import itemgetter
from statistics import fmean
from typing import Any

from transformer_norms.comparison.sweep_record import Values
from transformer_norms.comparison.tuning_error import Trial, choose_point, plain_point
from transformer_norms.sweep.design import MOST_OUTWARD, Tuning

_OUTWARD = 10  # steps at most beyond the last value of a grid


@dataclass(frozen=True)
class Attempt:
    """A point that was tried: the validation losses of the runs that trained, by seed, and the
    number of runs that failed. `nearest` is the mean loss of all its runs, infinite if one is not
    below the unigram's: among points that failed, a lower one is nearer to training."""

    point: Values
    losses: Mapping[int, float]
    failed: int = 0
    nearest: float = inf


@dataclass
class Search:
    """The search of one variant, with the points that it has tried, in order. `allowed` says
    whether the config of a point can be composed. `waits`: not all of its runs have ended.
    `outward` is the number of its steps beyond the grid."""

    variant: Values
    tuning: Tuning
    allowed: Callable[[Values], bool] = lambda point: True
    attempts: list[Attempt] = field(default_factory=list)
    waits: bool = False
    outward: int = 0

    @property
    def points(self) -> list[Values]:
        return [attempt.point for attempt in self.attempts]

    @property
    def best(self) -> Values | None:
        """The best point; None if every run failed.

        A failed run has no loss, and a mean without it would be over easier seeds. So points where
        none failed come first: the best is the one where curves fitted to the losses are lowest
        (tuning_error.py). Among the others, the fewest failures and then the lowest mean count.
        """
        trained = [attempt for attempt in self.attempts if attempt.losses]
        whole = [attempt for attempt in trained if not attempt.failed]
        if not whole:
            ranked = sorted(trained, key=lambda a: (a.failed, fmean(a.losses.values())))
            return ranked[0].point if ranked else None
        trials = [
            Trial(plain_point(attempt.point), seed, loss)
            for attempt in whole
            for seed, loss in attempt.losses.items()
        ]
        chosen = choose_point(trials)
        return next(one.point for one in whole if plain_point(one.point) == chosen)

    @property
    def centre(self) -> Values | None:
        """The best point, or the one that came nearest to training if every run failed. None if
        none came near: nothing says then where a better point is."""
        near = min(self.attempts, key=lambda attempt: attempt.nearest, default=None)
        return self.best or (near.point if near and near.nearest < inf else None)

    @property
    def edge(self) -> list[str]:
        """The keys whose best value is the first or the last that was tried; all if none is."""
        best, keys = self.best, self.tuning.stepped
        return [k for k in keys if not best or best[k] in (self.values(k)[0], self.values(k)[-1])]

    def values(self, key: str) -> list[Any]:
        """The values of a key with steps that were tried, in order of size."""
        return sorted({point[key] for point in self.points})

    def steps_outward(self) -> list[Values]:
        """Returns, for each key with steps, the point one step beyond the first or last value, if
        the variant is best there, or came nearest to training. If no point came near
        training, only lower values are tried: too high a rate is what fails. After MOST_OUTWARD
        steps it stops.
        """
        near, found = self.centre, list[Values]()
        for key in self.tuning.stepped if self.outward < MOST_OUTWARD else ():
            values = self.values(key)
            centre = near or min(self.points, key=itemgetter(key))
            edges = {values[0]: _next_step(values[1], values[0])}
            if near:
                edges[values[-1]] = _next_step(values[-2], values[-1])
            if step := edges.get(centre[key]):
                found += self._new_points(centre, key, [step])
        return found

    def bisection(self) -> list[Values]:
        """Returns a point for each key with steps: half way between the best value and the next one
        above it, if runs failed there. The best value can lie just below the largest one that
        trains."""
        best, found = self.best, list[Values]()
        for key in self.tuning.stepped if best else ():
            assert best is not None
            along = (a for a in self.attempts if {**a.point, key: best[key]} == best)
            above = [attempt for attempt in along if attempt.point[key] > best[key]]
            wall = min(above, key=lambda attempt: attempt.point[key], default=None)
            if wall and wall.failed:
                found += self._new_points(best, key, [_between(best[key], wall.point[key], 1 / 2)])
        return found

    def refinement(self) -> list[Values]:
        """Returns two points for each key with steps, with all other keys at the best. They are
        half a step below and above the best. If these were tried, quarter steps follow, then steps
        beyond what was tried. If no point came near training, they go down from the lowest value.
        When no lower value is left, they go up."""
        near, keys, found = self.centre, self.tuning.stepped, list[Values]()
        for key in keys:
            values = sorted({*self.tuning.grid[key], *self.values(key)})
            lower, upper = _steps_beyond(values[1], values[0]), _steps_beyond(*values[-2:])
            around = [*lower, *upper]
            if near:
                best, steps = near[key], [lower[0], *values, upper[0]]
                ends = [steps[values.index(best)], steps[values.index(best) + 2]]
                around = [_between(best, end, share) for share in (1 / 2, 1 / 4) for end in ends]
                around += chain(*zip(lower, upper, strict=True))
            centre = near or min(self.points, key=itemgetter(*keys))
            found += islice(self._new_points(centre, key, dict.fromkeys(around)), 2)
        return found

    def _new_points(self, centre: Values, key: str, values: Iterable[Any]) -> Iterator[Values]:
        """Yields the centre with each of these values of a key, if that is new and allowed."""
        points = ({**centre, key: value} for value in values)
        return (one for one in points if one not in self.points and self.allowed(one))


def values_to_go_on(values: Sequence[float], bests: Sequence[float]) -> list[float]:
    """Returns the values of a grid, continued to two steps beyond those bests that lie at its first
    or last value, or farther outward."""
    values = sorted(values)
    for before, last in ((values[-2], values[-1]), (values[1], values[0])):
        span = [last, *(best for best in bests if (best - last) * (last - before) >= 0)]
        steps = _steps_beyond(before, last)
        passed = sum(min(span) <= step <= max(span) for step in steps)
        values += steps[: passed + 2] if len(span) > 1 else []
    return sorted(set(values))


def _steps_beyond(before: float, last: float) -> list[float]:
    """Returns the values that continue from `before` to `last` at the same ratio."""
    steps = [before, last]
    for _ in range(_OUTWARD):
        steps.append(_next_step(*steps[-2:]))
    return steps[2:]


def _between(start: float, end: float, share: float) -> float:
    """The value at a share of the step from `start` to `end`, on a logarithmic scale."""
    return _rounded(start * (end / start) ** share, start, end)


def _next_step(before: float, last: float) -> float:
    """One step of the same ratio further: 1e-3, 2e-3 -> 4e-3."""
    return _rounded(last * last / before, before, last)


def _rounded(value: float, *like: float) -> float:
    """A whole number, at least 1, where the given values are whole numbers; else four digits."""
    if all(isinstance(one, int) for one in like):
        return max(1, round(value))
    return float(f"{value:.4g}")
