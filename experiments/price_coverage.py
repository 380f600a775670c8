"""Simulated studies of several horizons: how often the interval of a price covers the truth.

    python experiments/price_coverage.py       writes noise/price_coverage.md anew (an hour)

A simulated study has a variant and a baseline at three horizons. It runs the project's own code,
from the choice of rates at each horizon to the price. Only the losses are drawn, as those of
simulations.py are, around a power law of the tokens.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import exp, inf, log, sqrt
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from simulations import (
    CORRELATION,
    MARKS,
    TODAY,
    UNTUNED,
    Plan,
    Study,
    Truth,
    gains_of,
    results_until,
    tune,
)

from transformer_norms.comparison.outcomes import Outcomes, Share
from transformer_norms.comparison.price import LossCurve, Price, price
from transformer_norms.comparison.verdict import Rules, Side, usual_variance
from transformer_norms.text_tables import markdown_table

FILE = Path(__file__).parent / "noise" / "price_coverage.md"
HORIZONS = (0.25, 1.0, 4.0)  # tokens; the price is that at the longest
SEEDS = (3, 10)
SHARED = 0.7  # the correlation of two horizons of one seed, where they share first steps
TRIALS = 100  # the first seed of a tuning run


@dataclass(frozen=True)
class Curves:
    """The expected losses: scale tokens^-exponent + 1.2 of the baseline, where the exponent goes to
    `bend` times itself around the second horizon. The variant has the loss of the baseline with
    tokens / (1 - saved), less `gain`."""

    exponent: float
    scale: float
    bend: float = 1.0
    saved: float = 0.0
    gain: float = 0.0

    def baseline(self, tokens: float) -> float:
        bent = self.exponent * (1 - self.bend) / 2
        return float(1.2 + self.scale * tokens**-self.exponent * ((1 + tokens**2) / 2) ** bent)

    def variant(self, tokens: float) -> float:
        return self.baseline(tokens / (1 - self.saved)) - self.gain

    @property
    def price(self) -> float:
        """The true share of the tokens that the variant saves at the longest horizon."""
        wanted = self.baseline(HORIZONS[-1])
        reached = brentq(lambda x: self.variant(exp(x)) - wanted, -12, log(HORIZONS[-1]) + 1e-9)
        return 1 - exp(reached) / HORIZONS[-1]


class HorizonStudy(Study):
    """One simulated study. Its "variants" are the baseline at each horizon, then the variant. The
    horizons of one seed share a part of both noises; tuning runs share nothing."""

    def __init__(self, curves: Curves, plan: Plan, shared: float, number: int) -> None:
        super().__init__(Truth(variants=2 * len(HORIZONS)), plan, number)
        self.shared = shared
        self.deviation = np.repeat(self.deviation[:2], len(HORIZONS))
        sides = (curves.baseline, curves.variant)
        self.level = [side(tokens) for side, tokens in product(sides, HORIZONS)]

    def loss(self, variant: int, rate: float, seed: int) -> float:
        side, place = divmod(variant, len(HORIZONS))
        shared = self.shared if seed < TRIALS else 0.0
        of_seed = self._mixed(shared, (0, seed), place)
        own = self._mixed(shared, (1, side, seed), place)
        if seed >= TRIALS:
            own = self._noise()  # each rate has its own run
        noise = sqrt(CORRELATION) * of_seed + sqrt(1 - CORRELATION) * own
        curve = self._curve(variant, log(rate) - self.best[variant])
        return float(self.level[variant] + curve + self.deviation[variant] * noise)

    def _mixed(self, shared: float, key: tuple[int, ...], place: int) -> float:
        of_shared, of_branch = self._once(2, *key), self._once(3, *key, place)
        return sqrt(shared) * of_shared + sqrt(1 - shared) * of_branch


def priced(curves: Curves, plan: Plan, shared: float, number: int) -> list[Price | None]:
    """The price that a study finds, with each number of seeds."""
    study = HorizonStudy(curves, plan, shared, number)
    variants = range(study.truth.variants)
    tuned = [tune(study, variant) for variant in variants] if plan.tunes else []
    rates = [rate for rate, _ in tuned] or [float(np.exp(best)) for best in study.best]
    every = [study.outcomes(variant, rates[variant], range(max(SEEDS))) for variant in variants]
    prices = []
    for count in SEEDS:
        results = [results_until(outcomes, count) for outcomes in every]
        slack = gains_of(tuned, results) if tuned else dict.fromkeys(variants, 0.0)
        edges = [bool(tried.edge) for _, tried in tuned] or [False] * len(results)
        sides = [Side(1.0, one, slack[n], edges[n]) for n, one in enumerate(results)]
        prices.append(_price(sides))
    return prices


def _price(sides: Sequence[Side]) -> Price | None:
    baseline, variant = sides[: len(HORIZONS)], sides[len(HORIZONS) :]
    asked = {
        str(tokens): (one, other._replace(coefficient=-1.0))
        for tokens, one, other in zip(HORIZONS, variant, baseline, strict=True)
    }
    curves = [LossCurve(dict(zip(HORIZONS, kind, strict=True))) for kind in (variant, baseline)]
    return price(*curves, HORIZONS[-1], Rules(usual=usual_variance(asked)))


class Coverage(NamedTuple):
    """The shares of studies: whose interval `covers` the truth, and with an end without a bound, of
    those that have a price."""

    covers: Share
    unbounded: Share


def coverage_of(curves: Curves, plan: Plan, shared: float, studies: int) -> list[Coverage]:
    """The coverage with each number of seeds."""
    with Pool() as pool:
        every = pool.map(partial(priced, curves, plan, shared), range(studies), chunksize=20)
    found = []
    for at in zip(*every, strict=True):
        ends = [
            (-inf if one.low is None else one.low, inf if one.high is None else one.high)
            for one in at
            if one
        ]
        covering = sum(low <= curves.price <= high for low, high in ends)
        unbounded = sum(inf in (-low, high) for low, high in ends)
        found.append(Coverage(Share(covering, len(ends)), Share(unbounded, len(ends))))
    return found


SHAPES = {"flat": (0.1, 1.0), "steep": (0.5, 0.3)}
BENDS = {"": 1.0, ", its exponent halves": 0.5, ", its exponent grows by half": 1.5}
CHANGES = {
    "saves nothing": {},
    "saves 5 %": {"saved": 0.05},
    "saves 15 %": {"saved": 0.15},
    "0.02 nats lower": {"gain": 0.02},
}
BEYOND = {"saves 97 %, more than the horizons hold": {"saved": 0.97}}
WAYS = {
    "": (UNTUNED, 0.0),
    ", shared steps": (UNTUNED, SHARED),
    ", shared steps, tuned": (TODAY, SHARED),
}


def coverage_table(studies: int) -> str:
    """A row for each pair of curves: the truth, and the share of studies that cover it. Where a
    part of the studies has an end without a bound, that share follows in brackets."""
    heads = [f"{count} seeds{way}" for way, count in product(WAYS, SEEDS)]
    rows = [["curve", "variant", "truth", *heads]]
    cases = [*product(SHAPES, BENDS, CHANGES), *product(SHAPES, ["# "], BEYOND)]
    for shape, bend, change in cases:
        truth = {**CHANGES, **BEYOND}[change]
        curves = Curves(*SHAPES[shape], bend=BENDS.get(bend, 1.0), **truth)
        cells = [
            one for plan, shared in WAYS.values()
            for one in coverage_of(curves, plan, shared, studies)
        ]  # fmt: skip
        row = [f"{shape}{bend.strip('# ')}", change, f"{100 * curves.price:z.1f} %"]
        rows.append([*row, *map(_text, cells)])
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return markdown_table(rows)


def _text(coverage: Coverage) -> str:
    covers, unbounded = (100 * one.count / one.total for one in coverage)
    return f"{covers:.1f} %" + (f" ({unbounded:.1f} %)" if unbounded else "")


def curves_table() -> str:
    """A row for each pair of curves without noise, of which the variant saves 15 %: the price that
    follows from a power law through its losses, and from a monotone cubic curve (PCHIP) through
    its losses against log tokens."""
    rows = [["curve", "power law", "PCHIP"]]
    for shape, bend in product(SHAPES, BENDS):
        curves = Curves(*SHAPES[shape], bend=BENDS[bend], saved=0.15)
        prices = (_price_by(read, curves) for read in (_power_law, _cubic))
        rows.append([shape + bend, *(f"{100 * one:.1f} %" for one in prices)])
    return markdown_table(rows)


def _price_by(read: Callable[[Sequence[float], float], float], curves: Curves) -> float:
    losses = [curves.variant(tokens) for tokens in HORIZONS]
    wanted = curves.baseline(HORIZONS[-1])
    return 1 - brentq(lambda x: read(losses, x) - wanted, *HORIZONS[1:]) / HORIZONS[-1]


def _power_law(losses: Sequence[float], tokens: float) -> float:
    sides = [Side(1.0, Outcomes({0: loss})) for loss in losses]
    read = LossCurve(dict(zip(HORIZONS, sides, strict=True))).side_at(tokens)
    assert read is not None
    return read.outcomes.losses[0]


def _cubic(losses: Sequence[float], tokens: float) -> float:
    return float(PchipInterpolator(np.log(HORIZONS), losses)(log(tokens)))


if __name__ == "__main__":
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    before, _, rest = FILE.read_text().partition(MARKS[0])
    text = f"{coverage_table(studies)}\n\n{curves_table()}"
    FILE.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")
