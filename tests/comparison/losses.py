"""Losses by seed, as the statistics take them."""

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sentences import comparison_sentence
from transformer_norms.comparison.verdict import Rules, compare, pair

EFFECT = 0.005
NOISE = (0.0, 0.001, -0.001, 0.0005, -0.0005)
BASE = (3.00, 3.02, 2.99, 3.01, 3.03)


def outcomes(losses, failed=(), **more):
    """The losses by seed; those of the seeds in `failed` diverged."""
    trained = {seed: loss for seed, loss in enumerate(losses) if seed not in failed}
    return Outcomes(trained, dict.fromkeys(failed, "diverged"), **more)


def compare_pairs(pairs, effect):
    """compare() of pairs: {name: (outcomes, the baseline's)}."""
    return compare({name: pair(*sides) for name, sides in pairs.items()}, Rules(effect))


def comparison_of(ours, theirs, effect=EFFECT):
    return compare_pairs({"variant": (outcomes(ours), outcomes(theirs))}, effect)["variant"]


def sentence_of(ours, theirs, effect=EFFECT):
    comparison = compare_pairs({"variant": (ours, theirs)}, effect)["variant"]
    return comparison_sentence("sandwich", "pre", comparison, ours, theirs)
