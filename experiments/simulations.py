"""Simulated studies whose truth is known: how often a verdict is false, and what is found.

    python experiments/simulations.py          writes noise/error_rates.md anew (half an hour)

A simulated study runs the project's own code, from the choice of rates to the verdict; only the
losses are drawn. They follow what was measured in the studies here:

    loss = curve(ln rate) + deviation (sqrt(0.45) level of the seed + sqrt(0.55) noise of the run)
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from math import inf, log, pi, sqrt
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from judge_series import simulate_series, skewed, summarize

from transformer_norms.comparison.joining import join
from transformer_norms.comparison.outcomes import Outcomes, Share
from transformer_norms.comparison.tuning_error import Trial, possible_gains
from transformer_norms.comparison.verdict import (
    MARGIN,
    Comparison,
    Rules,
    Side,
    compare,
    usual_variance,
)
from transformer_norms.sweep.design import NO_TUNING, Tuning
from transformer_norms.sweep.search import Attempt, Search
from transformer_norms.sweep.tuning import Tuner
from transformer_norms.text_tables import markdown_table

FILE = Path(__file__).parent / "noise" / "error_rates.md"
RATE, CENTRE, HALF_GRID = "optimizer.lr", 3e-3, 3
# Measured in the studies here: the correlation of the losses of one seed, the usual deviation in
# nats, the degrees of freedom of the variances' own scatter, and the curves' b2 and b3.
CORRELATION, DEVIATION, FREEDOM = 0.45, 0.009, 3.0
CURVATURES, SKEWS = (0.05, 0.12), (0.0, 0.03)
DECIDED = ("better", "worse", "equivalent")
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
    """The truth about the variants, whose expected losses at their best rates are equal, but for
    the second one: it is better by `gain` nats. `spread`: the width over which the best rates lie,
    in grid steps.

    Of the last variant: `outside`, how many steps beyond the grid its best rate lies; `wall`, how
    far above its best rate runs fail, in ln; `failing`, the probability that a result fails;
    `scatter`, its deviation, times the usual. Of all: `moving`, the deviation of the best rate from
    seed to seed, in ln; `smooth`, the share of the noise that nearby rates of one run share;
    `outliers`, the share of runs that end 5 deviations too high; `text`, the deviation that one
    held-out text adds to the difference of two variants, the same at all seeds.
    """

    gain: float = 0.0
    spread: float = 1.0
    skewed: bool = False
    failing: float = 0.0
    scatter: float = 1.0
    variants: int = 8
    outside: float = 0.0
    wall: float = inf
    moving: float = 0.0
    smooth: float = 0.0
    outliers: float = 0.0
    text: float = 0.0


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
        if truth.outside:
            places[-1] = HALF_GRID + truth.outside
        own = np.random.default_rng([number, 7])
        self.of_text = truth.text / sqrt(2) * own.standard_normal(count)
        self.best = log(CENTRE) + log(plan.step) * places
        self.drawn: dict[tuple[int, ...], float] = {}

    def loss(self, variant: int, rate: float, seed: int) -> float | None:
        """None if the run fails."""
        truth = self.truth
        if variant == truth.variants - 1 and log(rate) > self.best[variant] + truth.wall:
            return None
        moved = truth.moving * self._once(1, variant, seed)
        curve = self._curve(variant, log(rate) - self.best[variant] - moved)
        # What moving best rates cost on average, so that variants stay equal.
        curve -= self.curvature[variant] * truth.moving**2
        curve -= self.skew[variant] * truth.moving**3 * sqrt(2 / pi)
        own = sqrt(1 - truth.smooth) * self._noise()
        own += sqrt(truth.smooth) * self._once(2, variant, seed)
        noise = sqrt(CORRELATION) * self._once(0, seed) + sqrt(1 - CORRELATION) * own
        if truth.outliers:
            noise += 5 * (self.draw.random() < truth.outliers) - 5 * truth.outliers
        gain = truth.gain if variant == 1 else 0.0
        return float(2.0 - gain + self.of_text[variant] + curve + self.deviation[variant] * noise)

    def _curve(self, variant: int, x: float) -> float:
        return float(self.curvature[variant] * x**2 + self.skew[variant] * abs(x**3) * (x > 0))

    def _once(self, *key: int) -> float:
        """A noise that is drawn once for each key."""
        return self.drawn.setdefault(key, self._noise())

    def _noise(self) -> float:
        """Noise of mean 0 and variance 1."""
        return float(self.draw.exponential() - 1 if self.truth.skewed else self.draw.normal())

    def outcomes(self, variant: int, rate: float, seeds: Sequence[int]) -> Outcomes:
        last = variant == self.truth.variants - 1
        found = {seed: self.loss(variant, rate, seed) for seed in seeds}
        failed = {
            seed
            for seed in seeds
            if found[seed] is None or (last and self.draw.random() < self.truth.failing)
        }
        losses = {s: x for s, x in found.items() if x is not None and s not in failed}
        return Outcomes(losses, dict.fromkeys(failed, "diverged"))


# ------------------------------------------------------------------------------------ the procedure


def tune(study: Study, variant: int) -> tuple[float, Search]:
    """The chosen rate of one variant, and what it tried, as a sweep's tuning does it."""
    grid = [float(f"{CENTRE * study.plan.step**k:.4g}") for k in range(-HALF_GRID, HALF_GRID + 1)]
    seeds = list(range(100, 100 + study.plan.tuning_seeds))
    tuning = Tuning({RATE: grid}, seeds, refine=int(study.plan.refine))
    tuner = Tuner(tuning, [{"variant": variant}], {}, lambda *pair: True, lambda line: None)
    (tried,) = tuner.searches
    rounds = tuner.rounds()
    for pairs in rounds if study.plan.today else islice(rounds, 1):
        for _, point in pairs:
            losses = {seed: study.loss(variant, point[RATE], seed) for seed in seeds}
            trained = {seed: loss for seed, loss in losses.items() if loss is not None}
            nearest = fmean(trained.values()) if len(trained) == len(seeds) else inf
            tried.attempts.append(Attempt(point, trained, len(seeds) - len(trained), nearest))
    if not study.plan.today:
        first = min(tried.attempts, key=lambda attempt: (attempt.failed, attempt.nearest))
        return first.point[RATE], tried
    assert tried.best is not None
    return tried.best[RATE], tried


def judge(
    study: Study, counts: Sequence[int], in_sequence: bool = False
) -> list[dict[str, Comparison]]:
    """The comparisons with the first variant after each of these numbers of fresh seeds: of plans
    with so many seeds, or `in_sequence`, in which what one look decides stays as it was."""
    variants = range(study.truth.variants)
    if study.plan.tunes:
        tuned = [tune(study, variant) for variant in variants]
    else:
        tuned = [
            (float(np.exp(study.best[variant])), Search({}, NO_TUNING)) for variant in variants
        ]
    seeds = range(max(counts))
    results = [study.outcomes(variant, rate, seeds) for variant, (rate, _) in enumerate(tuned)]
    decided: dict[str, Comparison] = {}
    judged = []
    for count in counts:
        first = [results_until(one, count) for one in results]
        comparisons = _compare(study, first, tuned, in_sequence) | decided
        if in_sequence:
            decided = {name: c for name, c in comparisons.items() if c.verdict in DECIDED}
        judged.append(comparisons)
    return judged


def _compare(
    study: Study,
    results: Sequence[Outcomes],
    tuned: Sequence[tuple[float, Search]],
    in_sequence: bool,
) -> dict[str, Comparison]:
    if study.plan.today and study.plan.tunes:
        slack = gains_of(tuned, results)
        edges = [bool(tried.edge) for _, tried in tuned]
    else:
        slack, edges = dict.fromkeys(range(len(results)), 0.0), [False] * len(results)
    first, *others = [
        Side(1.0, one, slack[number], edges[number]) for number, one in enumerate(results)
    ]
    baseline = first._replace(coefficient=-1.0)
    asked = {str(number): (side, baseline) for number, side in enumerate(others, start=1)}
    usual = usual_variance(asked) if study.plan.today else None
    return compare(asked, Rules(usual=usual, looks=2 if in_sequence else 1))


def gains_of(
    tuned: Sequence[tuple[float, Search]], results: Sequence[Outcomes]
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


def results_until(outcomes: Outcomes, count: int) -> Outcomes:
    """The outcomes of the first seeds."""
    losses = {seed: loss for seed, loss in outcomes.losses.items() if seed < count}
    return Outcomes(losses, {s: why for s, why in outcomes.failed.items() if s < count})


# --------------------------------------------------------------------------------------- the tables


class Shares(NamedTuple):
    """The share of studies with a `false` word, and of those that have `found` the better one."""

    false: Share
    found: Share


def shares_of(
    truth: Truth, plan: Plan, studies: int, counts: Sequence[int] = SEEDS, in_sequence: bool = False
) -> list[Shares]:
    """The shares of studies after each number of seeds."""
    with Pool() as pool:
        work = partial(_words, truth, plan, counts, in_sequence)
        every = pool.map(work, range(studies), chunksize=10)
    return [
        Shares(
            Share(sum(_any_false(words, truth) for words in at), studies),
            Share(sum(words["1"] == "better" for words in at), studies),
        )
        for at in zip(*every, strict=True)
    ]


def _words(
    truth: Truth, plan: Plan, counts: Sequence[int], in_sequence: bool, number: int
) -> list[dict[str, str]]:
    judged = judge(Study(truth, plan, number), counts, in_sequence)
    return [{name: c.verdict for name, c in at.items()} for at in judged]


def _any_false(words: Mapping[str, str], truth: Truth) -> bool:
    """Whether any variant is called better or worse and is not, or equivalent where it differs by
    the margin or more."""
    true = dict.fromkeys(words, 0.0) | {"1": -truth.gain}
    return any(
        (word == "better" and true[name] >= 0)
        or (word == "worse" and true[name] <= 0)
        or (word == "equivalent" and abs(true[name]) >= MARGIN)
        for name, word in words.items()
    )


NOISES = {
    "2 % of the runs are outliers": Truth(outliers=0.02),
    "noise with a long tail": Truth(skewed=True),
    "one held-out text adds 0.002 nats": Truth(text=0.002),
    "the best rate moves by 0.12 from seed to seed": Truth(moving=0.12),
    "the best rate moves by 0.2 from seed to seed": Truth(moving=0.2),
    "one variant that fails in a fifth of its runs": Truth(failing=0.2),
    "one variant that scatters three times as far": Truth(scatter=3),
    "one variant is better by the margin": Truth(gain=MARGIN),
    "two variants in all": Truth(variants=2),
}
TRUTHS = NOISES | {
    "best rates at one place": Truth(spread=0),
    "best rates anywhere within a grid step": Truth(),
    "best rates over three grid steps": Truth(spread=3),
    "a best rate 3 steps outside the grid": Truth(outside=3),
    "a best rate 4 steps outside the grid": Truth(outside=4),
    "runs fail 0.3 in ln above a best rate": Truth(wall=0.3),
    "nearby rates share half of the noise": Truth(smooth=0.5),
}
UNTUNED_TRUTHS = {f"nothing is tuned, {words}": truth for words, truth in NOISES.items()} | {
    "nothing is tuned": Truth(),
    "nothing is tuned, four variants": Truth(variants=4),
    "nothing is tuned, four variants, one scatters": Truth(variants=4, scatter=3),
    "nothing is tuned, one variant that scatters ten times as far": Truth(scatter=10),
}
LOOKS = range(3, MOST + 1)
LAST = f"3 to {MOST}, a look at each"


def false_table(studies: int) -> str:
    """The share of studies with a false word."""
    cases = {"the first way": (Truth(), FIRST), "first grids, today's rules": (Truth(), COARSE)}
    cases |= {words: (truth, TODAY) for words, truth in TRUTHS.items()}
    cases |= {words: (truth, UNTUNED) for words, truth in UNTUNED_TRUTHS.items()}
    rows = [["truth", *(f"{n} seeds" for n in SEEDS), LAST]]
    for words, (truth, plan) in cases.items():
        shares = shares_of(truth, plan, studies) + _looked(truth, plan, studies // 2)
        rows.append([words, *(_percent(one.false) for one in shares)])
    return markdown_table(rows)


def power_table(studies: int) -> str:
    """The share of studies that find the second variant better."""
    ways = {"first way": FIRST, "today": TODAY}
    rows = [["true difference", *(f"{n} seeds, {way}" for n in SEEDS for way in ways), LAST]]
    for gain in GAINS:
        truth = Truth(gain=gain)
        found = [shares_of(truth, plan, studies) for plan in ways.values()]
        shares = [*chain(*zip(*found, strict=True)), *_looked(truth, TODAY, studies // 2)]
        rows.append([f"{gain:g}", *(_percent(one.found) for one in shares)])
    return markdown_table(rows)


def _looked(truth: Truth, plan: Plan, studies: int) -> list[Shares]:
    """The shares of studies that look after each seed, at the last look."""
    return shares_of(truth, plan, studies, LOOKS, in_sequence=True)[-1:]


def _percent(share: Share) -> str:
    return f"{100 * share.count / share.total:.1f} %"


def joined_table(studies: int) -> str:
    """How often the interval of joined studies leaves out their mean difference of zero, by the
    deviation between them, the number of studies and that of their seeds."""
    cases = [(count, seeds) for count in (2, 3, 5) for seeds in (3, 10)]
    rows = [["deviation between studies", *(f"{k} studies, {n} seeds" for k, n in cases)]]
    for tau in (0.0, 0.01, 0.03):
        draw = np.random.default_rng(0)
        shares = []
        for count, seeds in cases:
            wrong = 0
            for number in range(0, studies * count, count):
                of_studies = [
                    judge(Study(Truth(variants=5), UNTUNED, number + k), [seeds])[0]["1"]
                    for k in range(count)
                ]
                moved = [
                    replace(c, difference=(c.difference or 0.0) + tau * draw.standard_normal())
                    for c in of_studies
                ]
                low, high = join(moved).comparison.interval or (0.0, 0.0)
                wrong += not low <= 0 <= high
            shares.append(_percent(Share(wrong, studies)))
        rows.append([f"{tau:g}", *shares])
    return markdown_table(rows)


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
    tables = false_table(studies), power_table(studies), joined_table(1000)
    text = "\n\n".join([*tables, judge_table(studies // 5)])
    before, _, rest = FILE.read_text().partition(MARKS[0])
    FILE.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


if __name__ == "__main__":
    write_tables(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
