"""Simulated studies whose truth is known: how often a verdict is false, and what is found.

    python experiments/simulations.py          writes noise/error_rates.md anew (half an hour)

A simulated study runs the project's own code, from the choice of rates to the verdict; only the
losses are drawn. They follow what was measured in the studies here:

    loss = curve(ln rate) + deviation (sqrt(0.45) level of the seed + sqrt(0.55) noise of the run)
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log, sqrt
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from judge_series import simulate_series, skewed, summarize

from transformer_norms.comparison.moderation import ENOUGH
from transformer_norms.comparison.outcomes import Outcomes, Share
from transformer_norms.comparison.tuning_error import Trial, possible_gains
from transformer_norms.comparison.verdict import Comparison, Rules, compare, pair, usual_variance
from transformer_norms.sweep.grid import Tuning, product
from transformer_norms.sweep.search import Attempt, Tried, refinement, widen
from transformer_norms.text_tables import markdown_table

FILE = Path(__file__).parent / "noise" / "error_rates.md"
RATE, CENTRE = "optimizer.lr", 3e-3
# Measured in the studies here: the correlation of the losses of one seed, the usual deviation in
# nats, the degrees of freedom of the variances' own scatter, and the curves' b2 and b3.
CORRELATION, DEVIATION, FREEDOM = 0.45, 0.009, 3.0
CURVATURES, SKEWS = (0.05, 0.12), (0.0, 0.03)
NAMED = ("better", "worse")
SEEDS, GAINS = (3, 5, 10), (0.01, 0.02, 0.03, 0.05)
MARKS = "<!-- tables -->", "<!-- /tables -->"
MOST = 20  # seeds of a study that goes on until it is decided


@dataclass(frozen=True)
class Plan:
    """The way in which a study tunes and judges. Without `tunes`, each variant has its best rate,
    and nothing is missed. With `today` the curve chooses, variances are shrunk, and the tuning
    error counts. Without, the lowest mean chooses, and Student's t test judges."""

    step: float = sqrt(3)  # between two rates
    tuning_seeds: int = 2
    refine: bool = True
    tunes: bool = True
    today: bool = True


TODAY = Plan()
UNTUNED = Plan(tunes=False)
COARSE = Plan(step=3.0, tuning_seeds=1, refine=False)  # the grids of the studies here, judged anew
FIRST = Plan(step=3.0, tuning_seeds=1, refine=False, today=False)


@dataclass(frozen=True)
class Truth:
    """The truth about the variants. The second one is better by `gain` nats, all others are equal.
    `spread`: the width over which the best rates lie, in grid steps. `failing`: the probability
    that a run of the last variant fails. `scatter`: the last variant's deviation, times the usual.
    """

    gain: float = 0.0
    spread: float = 1.0
    skewed: bool = False
    failing: float = 0.0
    scatter: float = 1.0
    variants: int = 8


class Study:
    """One simulated study, which draws a loss for any variant, rate and seed."""

    def __init__(self, truth: Truth, plan: Plan, number: int) -> None:
        self.truth, self.plan = truth, plan
        self.draw = draw = np.random.default_rng([number, plan.tuning_seeds])
        count = truth.variants
        self.deviation = DEVIATION * np.sqrt(FREEDOM / draw.chisquare(FREEDOM, count)).clip(0.3, 4)
        self.deviation[-1] *= truth.scatter
        self.curvature, self.skew = draw.uniform(*CURVATURES, count), draw.uniform(*SKEWS, count)
        # The best rates have no reason to lie on the grid.
        places = draw.uniform(-0.5, 0.5) + truth.spread * draw.uniform(-0.5, 0.5, count)
        self.best = log(CENTRE) + log(plan.step) * places
        self.levels: dict[int, float] = {}

    def loss(self, variant: int, rate: float, seed: int) -> float:
        x = log(rate) - self.best[variant]
        curve = self.curvature[variant] * x**2 + self.skew[variant] * abs(x**3) * (x > 0)
        level = self.levels.setdefault(seed, self._noise())
        noise = sqrt(CORRELATION) * level + sqrt(1 - CORRELATION) * self._noise()
        gain = self.truth.gain if variant == 1 else 0.0
        return float(2.0 - gain + curve + self.deviation[variant] * noise)

    def _noise(self) -> float:
        """Noise of mean 0 and variance 1."""
        return float(self.draw.exponential() - 1 if self.truth.skewed else self.draw.normal())

    def outcomes(self, variant: int, rate: float, seeds: Sequence[int]) -> Outcomes:
        last = variant == self.truth.variants - 1
        failed = {seed for seed in seeds if last and self.draw.random() < self.truth.failing}
        losses = {seed: self.loss(variant, rate, seed) for seed in seeds if seed not in failed}
        return Outcomes(losses, dict.fromkeys(failed, "diverged"))


# ------------------------------------------------------------------------------------ the procedure


def tune(study: Study, variant: int) -> tuple[float, Tried]:
    """The chosen rate of one variant, and what it tried: the grid, today one step more at an edge,
    and the refinement."""
    grid = [float(f"{CENTRE * study.plan.step**k:.4g}") for k in range(-3, 4)]
    tuning = Tuning({RATE: grid}, list(range(100, 100 + study.plan.tuning_seeds)))
    tried = Tried({})
    _try(study, variant, tried, product(tuning.grid), tuning.seed)
    if not study.plan.today:
        return min(tried.attempts, key=lambda attempt: attempt.rank).point[RATE], tried
    wider = product(widen(tuning.grid, [tried]))
    _try(study, variant, tried, [p for p in wider if p not in tried.points], tuning.seed)
    if study.plan.refine:
        points = refinement(tuning, tried, lambda point: True)
        _try(study, variant, tried, points, tuning.seed)
    assert tried.best is not None
    return tried.best[RATE], tried


def _try(
    study: Study, variant: int, tried: Tried, points: Sequence[Any], seeds: Sequence[int]
) -> None:
    tried.attempts += [
        Attempt(point, {seed: study.loss(variant, point[RATE], seed) for seed in seeds})
        for point in points
    ]


def judge(study: Study, seeds: int, looks: Sequence[int] = ()) -> dict[str, Comparison]:
    """The comparisons with the first variant after `seeds` fresh seeds. With `looks`, numbers of
    seeds, a comparison stays as it was at the first look that named it."""
    variants = range(study.truth.variants)
    if study.plan.tunes:
        tuned = [tune(study, variant) for variant in variants]
    else:
        tuned = [(float(np.exp(study.best[variant])), Tried({})) for variant in variants]
    results = [
        study.outcomes(variant, rate, range(seeds)) for variant, (rate, _) in enumerate(tuned)
    ]
    counts = study.plan.today and study.plan.tunes
    gains = _gains(tuned, results) if counts else dict.fromkeys(variants, 0.0)
    named: dict[str, Comparison] = {}
    for look, count in enumerate(looks or [seeds], start=1):
        comparisons = _compare(study, [_first(one, count) for one in results], gains, look, looks)
        named |= {n: c for n, c in comparisons.items() if n not in named and c.verdict in NAMED}
    return {**comparisons, **named}


def _compare(
    study: Study, results: Sequence[Outcomes], gains: Mapping[int, float], look: int, looks: object
) -> dict[str, Comparison]:
    baseline, *others = results
    pairs = {
        str(number): pair(one, baseline, (gains[number], gains[0]))
        for number, one in enumerate(others, start=1)
    }
    if not study.plan.today:
        return compare(pairs, Rules())
    prior = usual_variance(pairs.values(), "here", fewest=ENOUGH)
    # What is looked at once more is judged as a sequence from the first look on.
    return compare(pairs, Rules(prior=prior, looks=max(2, look) if looks else 1))


def _gains(
    tuned: Sequence[tuple[float, Tried]], results: Sequence[Outcomes]
) -> Mapping[int, float]:
    trials = {
        variant: (
            [
                Trial(attempt.point, seed, loss)
                for attempt in tried.attempts
                for seed, loss in attempt.losses.items()
            ],
            {RATE: rate},
        )
        for variant, (rate, tried) in enumerate(tuned)
    }
    return possible_gains(trials, [list(one.losses.values()) for one in results])


def _first(outcomes: Outcomes, count: int) -> Outcomes:
    """The outcomes of the first seeds."""
    losses = {seed: loss for seed, loss in outcomes.losses.items() if seed < count}
    return Outcomes(losses, {s: why for s, why in outcomes.failed.items() if s < count})


# --------------------------------------------------------------------------------------- the tables


def false_studies(truth: Truth, plan: Plan, seeds: int, studies: int, looks=()) -> Share:
    """The share of studies of equal variants that name a better or worse one."""
    work = partial(_names_any, truth, plan, seeds, looks)
    with Pool() as pool:
        return Share(sum(pool.map(work, range(studies), chunksize=10)), studies)


def _names_any(truth: Truth, plan: Plan, seeds: int, looks: Sequence[int], number: int) -> bool:
    comparisons = judge(Study(truth, plan, number), seeds, looks)
    return any(comparison.verdict in NAMED for comparison in comparisons.values())


def found_studies(truth: Truth, plan: Plan, seeds: int, studies: int, looks=()) -> Share:
    """The share of studies that say so, where the second variant is better."""
    work = partial(_finds, truth, plan, seeds, looks)
    with Pool() as pool:
        return Share(sum(pool.map(work, range(studies), chunksize=10)), studies)


def _finds(truth: Truth, plan: Plan, seeds: int, looks: Sequence[int], number: int) -> bool:
    return judge(Study(truth, plan, number), seeds, looks)["1"].verdict == "better"


TRUTHS = {
    "best rates at one place": Truth(spread=0),
    "best rates anywhere within a grid step": Truth(),
    "best rates over three grid steps": Truth(spread=3),
    "noise with a long tail": Truth(skewed=True),
    "one variant that fails in a fifth of its runs": Truth(failing=0.2),
    "one variant that scatters three times as far": Truth(scatter=3),
    "two variants in all": Truth(variants=2),
}


UNTUNED_TRUTHS = {
    "nothing is tuned": Truth(),
    "nothing is tuned, four variants": Truth(variants=4),
    "nothing is tuned, four variants, one scatters": Truth(variants=4, scatter=3),
}
LOOKS = range(3, MOST + 1)
LAST = f"3 to {MOST}, a look at each"


def false_table(studies: int) -> str:
    """The share of studies of equal variants that name a better or worse one."""
    rows = [["truth", *(f"{n} seeds" for n in SEEDS), LAST]]
    cases = {"the first way": (Truth(), FIRST), "first grids, today's rules": (Truth(), COARSE)}
    cases |= {words: (truth, TODAY) for words, truth in TRUTHS.items()}
    cases |= {words: (truth, UNTUNED) for words, truth in UNTUNED_TRUTHS.items()}
    for words, (truth, plan) in cases.items():
        shares = [false_studies(truth, plan, n, studies) for n in SEEDS]
        looked = false_studies(truth, plan, MOST, studies // 2, LOOKS)
        rows.append([words, *map(_percent, (*shares, looked))])
    return markdown_table(rows)


def power_table(studies: int) -> str:
    """The share of studies that find the second variant better."""
    ways = {"first way": FIRST, "today": TODAY}
    rows = [["true difference", *(f"{n} seeds, {way}" for n in SEEDS for way in ways), LAST]]
    for gain in GAINS:
        truth = Truth(gain=gain)
        shares = [found_studies(truth, p, n, studies) for n in SEEDS for p in ways.values()]
        looked = found_studies(truth, TODAY, MOST, studies // 2, LOOKS)
        rows.append([f"{gain:g}", *map(_percent, (*shares, looked))])
    return markdown_table(rows)


def _percent(share: Share) -> str:
    return f"{100 * share.count / share.total:.1f} %"


def judge_table(series: int) -> str:
    """Series of 100 proposals to the judge: the share of series that ever keep a false one, the
    share of proposals that are kept, the pairs of each, and the runs saved beside 20 pairs each."""
    cases: dict[str, dict[str, Any]] = {
        "none is better": {},
        "none is better, noise with a long tail": {"noise": skewed},
        "none is better, each made from the luckiest before it": {"likeness": 0.9, "fresh": True},
        "the same, with shared seeds": {"likeness": 0.9},
        **{f"each is better by {gain:g}": {"gain": gain} for gain in GAINS[:3]},
    }
    rows = [["truth", "series with a false keep", "kept", "pairs", "runs saved"]]
    for words, truth in cases.items():
        draw = np.random.default_rng(0)
        found = summarize([simulate_series(draw, 100, **truth) for _ in range(series)])
        false = "" if "gain" in truth else f"{100 * found['any better']:.1f} %"
        shares = f"{100 * found['better']:.2f} %", f"{found['pairs']:.1f}", f"{found['saved']:.0%}"
        rows.append([words, false, *shares])
    return markdown_table(rows)


def write_tables(studies: int) -> None:
    """Writes the tables between the marks of FILE."""
    text = "\n\n".join([false_table(studies), power_table(studies), judge_table(studies // 5)])
    before, _, rest = FILE.read_text().partition(MARKS[0])
    FILE.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


if __name__ == "__main__":
    write_tables(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
