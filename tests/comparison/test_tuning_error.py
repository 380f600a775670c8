"""The bound of the tuning error, against curves whose best point is known."""

import numpy as np
import pytest

from transformer_norms.comparison import tuning_error
from transformer_norms.comparison.shrinkage import Spread
from transformer_norms.comparison.tuning_error import Trial, possible_gain, possible_gains

RATE = "optimizer.lr"
STEP = 3**0.5


def trials_of(loss, rates, seeds=(100, 101), noise=0.0, draw=None):
    """Trials of a curve loss(ln rate), with a level for each seed and noise for each trial."""
    places = [(float(rate), seed) for rate in rates for seed in seeds]
    off = draw.normal(0, noise, len(places)) if noise else np.zeros(len(places))
    return [
        Trial({RATE: rate}, seed, loss(np.log(rate)) + 0.01 * seed + float(error))
        for (rate, seed), error in zip(places, off, strict=True)
    ]


def grid(center, steps=(-2, -1, -0.5, 0, 0.5, 1, 2)):
    return [center * STEP**k for k in steps]


def parabola(best, curvature=0.1):
    return lambda x: 1.9 + curvature * (x - np.log(best)) ** 2


def test_the_curve_is_that_of_polyfit_where_nothing_is_skewed():
    trials = trials_of(parabola(0.0034), grid(0.003), seeds=(100,))
    curve = tuning_error.fit_curve(trials, {RATE: 0.003}, RATE)
    near = {np.log(t.point[RATE] / 0.003): t.loss for t in trials[1:-1]}
    b2, b1, _ = np.polyfit([*near], [*near.values()], 2)
    assert curve.b == pytest.approx([b1, b2, 0], abs=1e-9)


@pytest.mark.parametrize(("best", "last", "rel"), [(0.0034, 3, 0.02), (0.03, 6, 0.1)])
def test_without_noise_the_gain_is_the_distance_to_the_vertex_at_most_a_step_away(best, last, rel):
    """b2 (ln best - ln chosen)^2, and at an edge the next step counts as reachable."""
    chosen = grid(0.003)[last]
    gain = possible_gain(trials_of(parabola(best), grid(0.003)), {RATE: chosen}, Spread(1e-16, 10))
    x, left = np.log(best / chosen), max(0, np.log(best / chosen) - np.log(STEP))
    assert gain == pytest.approx(0.1 * (x**2 - left**2), rel=rel)


def test_the_bound_covers_the_true_gain_in_80_percent_at_least():
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        best = 0.003 * STEP ** draw.uniform(-0.25, 0.25)
        trials = trials_of(parabola(best, 0.08), grid(0.003), noise=0.01, draw=draw)
        gain = possible_gain(trials, {RATE: 0.003}, Spread(1e-4, 10))
        covered += gain >= 0.08 * np.log(best / 0.003) ** 2
    assert covered >= 240


def test_words_are_compared_as_they_are():
    """Paired: mean of chosen - other, plus Student's quantile x sqrt(2 s^2 / seeds)."""
    trials = [
        Trial({"init": w}, s, 2.0 + g) for w, g in (("mup", 0), ("scaled", 0.05)) for s in (1, 2)
    ]
    assert tuning_error.choose_point(trials) == {"init": "mup"}
    gain = possible_gain(trials, {"init": "mup"}, Spread(0.1**2, 10))
    assert gain == pytest.approx(-0.05 + 0.8790578 * 0.1, abs=1e-6)
    assert possible_gain(trials, {"init": "mup"}, Spread(1e-8, 10)) == 0


@pytest.mark.parametrize("rates", [[0.003 / STEP, 0.003], [0.003]])
def test_a_number_with_one_other_value_or_none_has_no_bound(rates):
    """The loss may have its minimum between the two, or beyond either."""
    trials = trials_of(parabola(0.003), rates)
    assert possible_gain(trials, {RATE: 0.003}, Spread(1e-4, 10)) is None


def test_the_scatter_of_the_results_stands_for_a_noise_that_no_trial_measures():
    trials = trials_of(parabola(0.003), [1e-3, 3e-3, 9e-3], seeds=(100,))
    tuned = {"pre": (trials, {RATE: 3e-3}), "alone": (trials[1:2], {RATE: 3e-3})}
    results = [[2.0, 2.02, 1.99], [2.5, 2.51]]
    squares = 2 * np.var(results[0], ddof=1) + np.var(results[1], ddof=1)
    gains = possible_gains(tuned, results)
    assert gains["pre"] == pytest.approx(possible_gain(*tuned["pre"], Spread(squares / 3, 3)))
    assert gains["alone"] == np.inf
    assert possible_gains(tuned, [[2.0]]) == {"pre": np.inf, "alone": np.inf}


def test_the_noise_of_the_others_is_pooled_with_a_variants_own():
    """The degrees of freedom are the weights. A variant whose own trials measure no noise gets that
    of the others."""
    draw = np.random.default_rng(5)
    rates = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
    noisy = trials_of(parabola(0.004), rates, noise=0.02, draw=draw)
    quiet = trials_of(parabola(0.004), rates, noise=0.005, draw=draw)
    few = trials_of(parabola(0.004), rates[1:4], seeds=(100,))
    chosen = {RATE: 4e-3}
    tuned = {"noisy": (noisy, chosen), "quiet": (quiet, chosen), "few": (few, chosen)}
    gains = possible_gains(tuned, [[2.0, 9.0]])
    of_noisy, of_quiet, of_few = (tuning_error.trial_noise(t, chosen) for t, _ in tuned.values())
    both = of_noisy.freedom * of_noisy.variance + of_quiet.freedom * of_quiet.variance
    freedom = of_noisy.freedom + of_quiet.freedom
    assert of_few is None
    pooled = Spread(both / freedom, freedom)
    assert gains["few"] == pytest.approx(possible_gain(few, chosen, pooled))
    assert gains["noisy"] == pytest.approx(possible_gain(noisy, chosen, of_quiet))
    assert gains["noisy"] < possible_gain(noisy, chosen, None)


def test_keys_add_up_and_noise_is_pooled():
    points = [{RATE: r, "schedule.warmup": w} for r in (1e-3, 2e-3, 4e-3) for w in (50, 100, 200)]
    draw = np.random.default_rng(4)
    trials = [Trial(p, s, 2 + 0.01 * draw.normal()) for p in points for s in (1, 2, 3)]
    chosen = points[4]
    noise = tuning_error.trial_noise(trials, chosen)
    assert noise.freedom == 2 * (9 + 1 - 6)
    parts = []
    for key, other in ((RATE, "schedule.warmup"), ("schedule.warmup", RATE)):
        along = [t for t in trials if t.point[other] == chosen[other]]
        alone = [Trial({key: t.point[key]}, t.seed, t.loss) for t in along]
        parts.append(possible_gain(alone, {key: chosen[key]}, noise))
    assert possible_gain(trials, chosen, noise) == pytest.approx(sum(parts))


def test_nothing_that_measures_the_noise_gives_no_bound():
    trials = trials_of(parabola(0.003), [1e-3, 3e-3, 9e-3], seeds=(100,))
    assert possible_gain(trials, {RATE: 3e-3}, None) is None
    assert possible_gain(trials, {RATE: 3e-3}, Spread(1e-4, 30)) > 0
