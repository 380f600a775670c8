"""The judge with made-up losses: how often a series holds a false `better`, and what is found.

A loss is the sum of the noise of its seed, which a pair shares and which drops out, and its own
noise of deviation sd / sqrt(2). So the difference of a pair has the deviation sd. All proposals of
a series have the same baseline runs, unless they are fresh.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.judge.decision import EFFECT, Word, decide
from transformer_norms.judge.ledger import FIRST, level_of

Noise = Callable[[Generator, int], np.ndarray]  # values of mean 0 and variance 1


def normal(draw: Generator, count: int) -> np.ndarray:
    return draw.normal(size=count)


def skewed(draw: Generator, count: int) -> np.ndarray:
    """Most losses lie close together, and a few are much higher: an exponential distribution."""
    return draw.exponential(size=count) - 1


@dataclass(frozen=True)
class Series:
    """The outcome of a simulated series of proposals: its decisions, and the pairs of each."""

    words: tuple[Word, ...]
    pairs: tuple[int, ...]


def summarize(series: Sequence[Series], fixed: int = 20) -> dict[str, float]:
    """Returns the share of series with any `better`, the share of each decision among proposals,
    the mean number of pairs, and the share of runs saved, compared with `fixed` pairs for each."""
    words = [word for one in series for word in one.words]
    pairs = sum(count for one in series for count in one.pairs) / len(words)
    return {
        "any better": sum("better" in one.words for one in series) / len(series),
        "better": words.count("better") / len(words),
        "not better": words.count("not better") / len(words),
        "undecided": words.count("undecided") / len(words),
        "pairs": pairs,
        "saved": 1 - pairs / fixed,
    }


def simulate_series(
    draw: Generator,
    proposals: int = 100,
    *,
    gain: float = 0.0,
    sd: float = 0.01,
    most: int = 20,
    effect: float = EFFECT,
    noise: Noise = normal,
    likeness: float = 0.0,
    fresh: bool = False,
) -> Series:
    """Judges `proposals` candidates whose true loss is lower by `gain` nats.

    `likeness` is the correlation of a candidate's own noise with that of the most promising one
    before it, as if each were made from that one; with `fresh` seeds nothing is alike.
    """
    scale = sd / np.sqrt(2)
    baseline, promising, least = noise(draw, most), noise(draw, most), np.inf
    words: list[Word] = []
    pairs = []
    for number in range(1, proposals + 1):
        if fresh:
            baseline, promising = noise(draw, most), noise(draw, most)
        own = likeness * promising + np.sqrt(1 - likeness**2) * noise(draw, most)
        differences = (scale * (own - baseline) - gain).tolist()
        word, count = run_proposal(differences, level_of(number, FIRST), effect)
        words.append(word)
        pairs.append(count)
        mean = float(np.mean(differences[:count]))
        if mean < least:
            promising, least = own, mean
    return Series(tuple(words), tuple(pairs))


def run_proposal(differences: list[float], level: float, effect: float) -> tuple[Word, int]:
    """Looks after each pair from the third, as the command does. Returns the decision and how many
    pairs it took; all differences are the budget."""
    most = len(differences)
    for count in range(min(FEWEST, most), most + 1):
        decision = decide(differences[:count], level, effect, most)
        if decision.over:
            break
    return decision.word, count
