"""Seeds until it is decided: what is decided, when, and how often it is wrong."""

import numpy as np
import pytest
from losses import MARGIN, outcomes
from scipy import optimize, stats

from transformer_norms.comparison.deciding import HOPELESS, decide, is_hopeless, more_seeds
from transformer_norms.comparison.sequence import EFFECT_VARIANCE
from transformer_norms.comparison.verdict import Rules, Side, compare, pair, usual_variance

FIRST, MOST = 3, 20
SD = 0.01


def course(losses, *, failed=None, contrasts=None, margin=MARGIN, at_once=1, most=MOST):
    """The counts and decisions of each look at made-up losses: variant -> a loss for each seed,
    the baseline first. `failed`: variant -> its seeds that diverge. Where there are `contrasts`,
    the variants are only described."""
    failed, contrasts = failed or {}, contrasts or {}
    baseline, *others = losses
    counts, looks = dict.fromkeys(losses, FIRST), []
    while not looks or counts != looks[-1][0]:
        sides = {
            name: outcomes(losses[name][:count], failed.get(name, set()) & set(range(count)))
            for name, count in counts.items()
        }
        pairs = {name: pair(sides[name], sides[baseline]) for name in others}
        sums = {
            text: [Side(c, sides[name]) for name, c in terms.items()]
            for text, terms in contrasts.items()
        }
        rules = Rules(margin, usual_variance(pairs), looks=2)
        members = {name: [name, baseline] for name in others}
        members |= {text: list(terms) for text, terms in contrasts.items()}
        described = pairs if contrasts else ()
        decisions = decide(compare({**sums, **pairs}, rules, described), rules, most)
        looks.append((counts, decisions))
        undecided = [variants for name, variants in members.items() if decisions[name] is None]
        counts = more_seeds(undecided, counts, most, at_once)
    return looks


def study(seed, shifts, sd=SD, most=MOST):
    """Losses of a baseline and of variants that lie above it by `shifts`, with paired noise."""
    draw = np.random.default_rng(seed)
    common = draw.normal(size=most)
    return {
        name: (3 + shift + sd * (common + draw.normal(size=most)) / 2**0.5).tolist()
        for name, shift in {"pre": 0.0, **shifts}.items()
    }


def test_variants_stop_as_soon_as_each_is_decided_and_the_baseline_goes_on_with_the_last():
    losses = study(1, {"far": -0.2, "near": -0.035, "equal": 0.0, "lost": 0.0})
    looks = course(losses, failed={"lost": {2}})
    counts, decisions = looks[-1]
    assert decisions == {"far": "better", "near": "better", "equal": HOPELESS, "lost": "failed"}
    assert counts["lost"] == counts["far"] == FIRST < counts["near"] < counts["equal"] <= MOST
    assert counts["pre"] == max(counts.values())
    for (before, _), (after, _) in zip(looks, looks[1:], strict=False):
        assert {after[name] - before[name] for name in after} == {0, 1}


def test_equal_variants_are_equivalent_where_the_bound_is_far_above_the_noise():
    _, decisions = course(study(2, {"equal": 0.0, "same": 0.0}), margin=20 * SD)[-1]
    assert decisions == {"equal": "equivalent", "same": "equivalent"}


def test_a_declared_contrast_alone_keeps_its_variants_running():
    losses = study(6, {"a": -1.0, "b": -1.012, "near": -0.02})
    counts, decisions = course(losses, contrasts={"b - a": {"b": 1.0, "a": -1.0}})[-1]
    assert FIRST < counts["a"] == counts["b"] <= MOST
    assert counts["pre"] == counts["near"] == FIRST
    described = dict.fromkeys(("a", "b", "near"), "described")
    assert decisions == {"b - a": "better", **described}


def test_a_best_value_at_an_edge_and_variants_that_are_one_run_decide_and_cost_no_more_seeds():
    ours, theirs = pair(outcomes([3.0, 3.1, 3.2]), outcomes([3.0, 3.2, 3.1]))
    edge, same = [ours._replace(at_edge=True), theirs], pair(ours.outcomes, ours.outcomes)
    rules = Rules(MARGIN, None, 2)
    decisions = decide(compare({"edge": edge, "same": same}, rules), rules, MOST)
    assert decisions == {"edge": "best rate not found", "same": HOPELESS}


def test_workers_are_kept_busy_and_no_variant_gets_more_than_the_most():
    losses = study(4, {"near": -0.03})
    steps = [counts["pre"] for counts, _ in course(losses, at_once=7)]
    assert steps == list(range(FIRST, steps[-1] + 1, 4))  # two variants, seven workers
    assert max(c["pre"] for c, _ in course(losses, at_once=64)) <= MOST


def test_a_study_that_would_not_allow_looks_is_a_mistake():
    with pytest.raises(AssertionError, match="after a look"):
        decide({}, Rules(), MOST)


def half_width(freedom, variance, count, level):
    """Where M_n(mean + u), written out, is 1 / level."""
    base, growth = freedom * variance, 1 + count * EFFECT_VARIANCE

    def evidence(u):
        ratio = (base + count * u**2) / (base + count * u**2 / growth)
        return ratio ** ((freedom + 1) / 2) / growth**0.5

    return optimize.brentq(lambda u: evidence(u) - 1 / level, 0, 100, xtol=1e-14)


@pytest.mark.parametrize("slack", [(0.0, 0.0), (0.002, 0.009), (0.0, np.inf)])
@pytest.mark.parametrize("margin", [0.0, 0.005, 0.03])
def test_hopeless_is_a_mean_that_could_go_nowhere_in_its_80_percent_interval(margin, slack):
    noise = [0.010, -0.012, 0.004, -0.007, 0.005]
    reach = stats.t.isf(0.1, 4) * np.std(noise, ddof=1) / 5**0.5
    half = half_width(MOST - 1, np.var(noise, ddof=1), MOST, 0.05)
    below, above = slack
    for mean in np.arange(-0.04, 0.04, 0.0007):
        ours = outcomes([3 + mean + value for value in noise])
        c = compare({"v": pair(ours, outcomes([3.0] * 5), slack)}, Rules(margin))["v"]
        means = np.linspace(mean - reach, mean + reach, 2001)
        low, high = means - half - below, means + half + above
        decided = (high < 0) | (low > 0) | ((-margin < low) & (high < margin))
        assert is_hopeless(c, MOST, 0.05) == (not decided.any())


NOISES = {
    "normal": lambda draw, size: draw.normal(size=size),
    "skewed": lambda draw, size: draw.exponential(size=size) - 1,
    "heavy": lambda draw, size: draw.standard_t(3, size=size) / 3**0.5,
}


def false_share(studies, variants, noise="normal", fails_above=None):
    """The share of studies of equal variants that name a difference. With `fails_above` the runs
    fail whose loss is so high: those that are left would be a choice."""
    wrong = 0
    for seed in range(studies):
        rows = 3 + SD * NOISES[noise](np.random.default_rng(seed), (1 + variants, MOST))
        losses = {f"v{k}": row.tolist() for k, row in enumerate(rows)}
        lost = {
            name: {s for s, loss in enumerate(losses[name]) if fails_above and loss > fails_above}
            for name in [*losses][1:]
        }
        _, decisions = course(losses, failed=lost, margin=0.0)[-1]
        wrong += not {"better", "worse"}.isdisjoint(decisions.values())
    return wrong / studies


@pytest.mark.nightly
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("fails_above", [None, 3 + 1.5 * SD])
def test_of_300_studies_of_equal_variants_at_most_5_percent_name_a_difference(noise, fails_above):
    assert false_share(300, 7, noise, fails_above) <= 0.05


def test_a_few_studies_of_equal_variants_name_hardly_a_difference():
    assert false_share(20, 3) <= 0.15
