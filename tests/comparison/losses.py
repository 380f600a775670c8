"""Losses by seed, as the statistics take them, and their verdicts by scipy alone."""

import csv
from pathlib import Path

import numpy as np
from scipy import stats

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sentences import comparison_sentence
from transformer_norms.comparison.verdict import Rules, compare, pair

MARGIN = 0.005
NOISE = (0.0, 0.001, -0.001, 0.0005, -0.0005)
BASE = (3.00, 3.02, 2.99, 3.01, 3.03)
PAIR = Contrast({"sandwich": 1, "pre": -1}, "sandwich - pre")


def outcomes(losses, failed=(), **more):
    """The losses by seed; those of the seeds in `failed` diverged."""
    trained = {seed: loss for seed, loss in enumerate(losses) if seed not in failed}
    return Outcomes(trained, dict.fromkeys(failed, "diverged"), **more)


def compare_pairs(pairs, **rules):
    """compare() of pairs: {name: (outcomes, the baseline's)}."""
    rules = Rules(**{"margin": MARGIN, **rules})
    return compare({name: pair(*sides) for name, sides in pairs.items()}, rules)


def comparison_of(ours, theirs, **rules):
    return compare_pairs({"variant": (outcomes(ours), outcomes(theirs))}, **rules)["variant"]


def sentence_of(ours, theirs, **rules):
    comparison = compare_pairs({"variant": (ours, theirs)}, **rules)["variant"]
    return comparison_sentence(PAIR, comparison, {"sandwich": ours, "pre": theirs})


def judge_by_scipy(differences, margin, slack=(0.0, 0.0)):
    """The interval, bounds, p and word of each of k comparisons, by their names, written out.
    `slack`: by how much each difference may be lower, higher."""
    count, (below, above) = len(differences), slack
    usual = np.mean([np.var(x, ddof=1) for x in differences.values()])
    weight = min(4, count - 1)
    judged = {}
    for name, x in differences.items():
        own, freedom = np.var(x, ddof=1), len(x) - 1 + weight
        shrunk = max(own, (weight * usual + (len(x) - 1) * own) / freedom)
        t = stats.t(freedom, np.mean(x), (shrunk / len(x)) ** 0.5)
        low, high = t.interval(1 - 0.05 / count)
        low, high = low - below, high + above
        p = min(1, 2 * count * min(t.cdf(below), t.sf(-above)))
        word = "better" if high < 0 else "worse" if low > 0 else "not told apart"
        within = -margin < low and high < margin
        judged[name] = t.interval(0.95), (low, high), p, "equivalent" if within else word
    return judged


def simulate(deviations, seeds, studies):
    """Studies of equal variants with these deviations, the baseline's first: by variant the mean
    difference, its standard error by the shrunk variance, and the degrees of freedom."""
    draw, count = np.random.default_rng([seeds, studies]), len(deviations) - 1
    losses = draw.normal(size=(studies, count + 1, seeds)) * np.array(deviations)[:, None]
    differences = losses[:, 1:] - losses[:, :1]
    own, weight = differences.var(-1, ddof=1), min(4, count - 1)
    freedom, usual = seeds - 1 + weight, own.mean(1, keepdims=True)
    shrunk = np.maximum(own, (weight * usual + (seeds - 1) * own) / freedom)
    return differences.mean(-1), np.sqrt(shrunk / seeds), freedom


def packed_losses(study):
    """The losses of a study in experiments/, variant -> seed -> loss."""
    losses = {}
    (path,) = (Path(__file__).parents[2] / "experiments").glob(f"**/{study}/results.csv")
    with open(path) as file:
        for row in csv.DictReader(file):
            if row["stage"] == "result":
                loss = float(row["test_loss"] or row["val_loss"])
                losses.setdefault(row["variant"], {})[int(row["seed"])] = loss
    return losses
