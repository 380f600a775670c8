"""Bounds the tuning error: the loss at the chosen point, less the loss at the best one.

A grid has a finite step, and few seeds choose a point of it. Near the best value of a key, such as
the learning rate, the loss is a slightly skewed parabola in x = ln(value / chosen value):

    loss of a trial = its seed's level + b1 x + b2 x^2 + b3 x^3 + noise

The b are fitted by least squares to the trials near the chosen point, b3 with the prior 0 +- SKEW.
`possible_gain` is the upper bound, one-sided 80 %, of what the loss at another value lies below the
loss at the chosen one. It is a part of the interval of every difference. A study's interval adds it
to the noise of the seeds, as if both were at their worst: with 80 % of one and 95 % of the other,
at most 5 % of tuned studies have a false verdict (experiments/noise/error_rates.md).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy import ndarray
from scipy import special

from transformer_norms.comparison.shrinkage import Spread
from transformer_norms.comparison.statistics import deviation, finite

Key = TypeVar("Key")
NEAR = 0.85  # in x: three half steps of a factor of sqrt(3), where such a curve fits
SKEW = 0.03  # nats: the largest b3 of the loss curves in experiments/
NOISE = 0.01  # nats: the usual scatter of a trial there; it weighs SKEW against the trials
LEVEL = 0.8
POOLED = 10.0  # degrees of freedom, at most, that the scatter of other variants' trials counts for
_PLACES = np.linspace(0, 1, 41)  # of the way to the next value that was tried


@dataclass(frozen=True)
class Trial:
    """A tuning run that trained: its tuned values, its seed and its validation loss in nats."""

    point: Mapping[str, Any]
    seed: int
    loss: float


def plain_point(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tuned values, of which a list or a group of keys counts as a word."""
    plain = (int, float, str)
    return {k: v if isinstance(v, plain) else json.dumps(v) for k, v in values.items()}


@dataclass(frozen=True)
class FittedCurve:
    """A curve fitted to trials: `b` (b1, b2, b3), the `covariance` of b for noise of variance 1,
    the noise that the trials show, and the x of the nearest other values that were tried."""

    b: ndarray
    covariance: ndarray
    noise: Spread
    reach: tuple[float, float]
    values: Mapping[Any, float]  # of the key -> x

    def height(self, x: float) -> float:
        return float(_powers(x) @ self.b)


def choose_point(trials: Sequence[Trial]) -> Mapping[str, Any]:
    """The tried point where the fitted curves are lowest, so that no single lucky trial chooses:
    from the point of the lowest mean loss, each key in turn goes to its lowest fitted value, where
    that point was tried. The mean alone decides where no curve can be fitted."""
    losses: dict[tuple[Any, ...], list[float]] = {}
    for trial in trials:
        losses.setdefault(tuple(trial.point.values()), []).append(trial.loss)
    lowest = min(losses, key=lambda values: math.fsum(losses[values]) / len(losses[values]))
    chosen = dict(zip(trials[0].point, lowest, strict=True))
    for key in chosen:
        if curve := fit_curve(trials, chosen, key):
            chosen[key] = min(curve.values, key=lambda value: curve.height(curve.values[value]))
    return chosen


def trial_noise(trials: Sequence[Trial], chosen: Mapping[str, Any]) -> Spread | None:
    """The noise of a variant's trials around its curves. None if no curve has more trials than
    numbers."""
    return _pooled(curve.noise for key in chosen if (curve := fit_curve(trials, chosen, key)))


def _pooled(spreads: Iterable[Spread | None]) -> Spread | None:
    """One variance of independent ones, by their degrees of freedom; None if these have none."""
    known = [spread for spread in spreads if spread]
    freedom = sum(spread.freedom for spread in known)
    squares = math.fsum(spread.freedom * spread.variance for spread in known)
    return Spread(squares / freedom, freedom) if freedom else None


def possible_gains(
    tuned: Mapping[Key, tuple[Sequence[Trial], Mapping[str, Any]]],
    results: Sequence[Sequence[float]],
) -> dict[Key, float]:
    """The gain of each variant, by its name: from its trials and its chosen point. `results` are
    the losses of each variant's seeds. Their scatter, which is larger, replaces the noise of the
    trials where too few trials repeat a point. Infinity where nothing bounds the gain."""
    noise = {name: trial_noise(*of_variant) for name, of_variant in tuned.items()}
    gains = {}
    for name, of_variant in tuned.items():
        others = _pooled(one for other, one in noise.items() if other != name)
        gains[name] = possible_gain(*of_variant, others or _scatter(results))
    return {name: math.inf if gain is None else gain for name, gain in gains.items()}


def _scatter(results: Sequence[Sequence[float]]) -> Spread | None:
    """The variance of losses over seeds, pooled over variants."""
    repeated = [losses for losses in results if len(losses) > 1]
    spread = _pooled(Spread(deviation(losses) ** 2, len(losses) - 1) for losses in repeated)
    return spread if spread and spread.variance else None


def possible_gain(
    trials: Sequence[Trial], chosen: Mapping[str, Any], noise: Spread | None
) -> float | None:
    """The upper bound of what other values of the tuned keys could gain, in nats: the sum over the
    keys, each with the others as chosen. `noise` is that of the study's other variants. None if
    nothing measures the noise, or if too few values of a key have a trial that trained."""
    gains = []
    others = noise and Spread(noise.variance, min(POOLED, noise.freedom))
    for key in chosen:
        curve = fit_curve(trials, chosen, key)
        spread = _pooled([curve.noise if curve else None, others])
        if spread is None:
            return None
        gain = _curve_gain(curve, spread) if curve else _word_gain(trials, chosen, key, spread)
        if gain is None:
            return None
        gains.append(gain)
    return math.fsum(gains)


def _curve_gain(curve: FittedCurve, noise: Spread) -> float:
    """The largest upper bound of height(0) - height(x), over x up to the next tried values."""
    quantile = float(special.stdtrit(noise.freedom, LEVEL))
    bounds = [
        float(-powers @ curve.b)
        + quantile * math.sqrt(noise.variance * powers @ curve.covariance @ powers)
        for end in curve.reach
        for powers in map(_powers, end * _PLACES)
    ]
    return max(bounds)


def _word_gain(
    trials: Sequence[Trial], chosen: Mapping[str, Any], key: str, noise: Spread
) -> float | None:
    """The largest upper bound of the mean difference from another word of the key. None of a number
    without a curve: nothing bounds the loss between two values, or beyond them."""
    along = _along(trials, chosen, key)
    own = {trial.seed: trial.loss for trial in along if trial.point[key] == chosen[key]}
    others = {trial.point[key] for trial in along} - {chosen[key]}
    if not others or any(map(finite, (*others, chosen[key]))):
        return None
    quantile = float(special.stdtrit(noise.freedom, LEVEL))
    gain = 0.0
    for word in others:
        there = {trial.seed: trial.loss for trial in along if trial.point[key] == word}
        if seeds := own.keys() & there.keys():
            mean = math.fsum(own[seed] - there[seed] for seed in seeds) / len(seeds)
            gain = max(gain, mean + quantile * math.sqrt(2 * noise.variance / len(seeds)))
    return gain


# ------------------------------------------------------------------------------------------ fitting


def fit_curve(trials: Sequence[Trial], chosen: Mapping[str, Any], key: str) -> FittedCurve | None:
    """The curve along `key` through the chosen point. None unless the key has at least three
    positive values near it at which, with all other keys as chosen, a trial trained."""
    along = [t for t in _along(trials, chosen, key) if finite(t.point[key]) and t.point[key] > 0]
    if not finite(chosen[key]) or chosen[key] <= 0:
        return None
    every = {t.point[key]: math.log(t.point[key] / chosen[key]) for t in along}
    left = max((x for x in every.values() if x < 0), default=None)
    right = min((x for x in every.values() if x > 0), default=None)
    values = {v: x for v, x in every.items() if abs(x) <= NEAR or x in (left, right)}
    if len(values) < 3:
        return None
    near = [trial for trial in along if trial.point[key] in values]
    x = np.array([values[trial.point[key]] for trial in near])
    b, covariance, noise = _least_squares(x, near)
    # Beyond an edge of what was tried, one more step of the same size counts as reachable.
    reach = (-right if left is None else left, -left if right is None else right)  # type: ignore[operator]
    return FittedCurve(b, covariance, noise, reach, values)


def _least_squares(x: ndarray, near: Sequence[Trial]) -> tuple[ndarray, ndarray, Spread]:
    """b, its covariance for noise of variance 1, and the noise that is left."""
    seeds = sorted({trial.seed for trial in near})
    levels = np.array([[trial.seed == seed for seed in seeds] for trial in near], dtype=float)
    skewness = np.array([[0.0, 0.0, NOISE / SKEW, *[0.0] * len(seeds)]])  # one more equation
    design = np.vstack([np.column_stack([x, x**2, x**3, levels]), skewness])
    losses = np.array([*(trial.loss for trial in near), 0.0])
    inverse = np.linalg.pinv(design.T @ design)
    solution = inverse @ design.T @ losses
    rest, freedom = losses - design @ solution, len(losses) - design.shape[1]
    variance = float(rest @ rest) / freedom if freedom > 0 else 0.0
    return solution[:3], inverse[:3, :3], Spread(variance, max(0, freedom))


def _along(trials: Sequence[Trial], chosen: Mapping[str, Any], key: str) -> list[Trial]:
    """The trials that differ from the chosen point in nothing but `key`."""
    return [t for t in trials if all(t.point[k] == chosen[k] for k in chosen if k != key)]


def _powers(x: float) -> ndarray:
    return np.array([x, x**2, x**3])
