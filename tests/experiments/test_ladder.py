"""The ladder's law is the planted one, and its intervals cover what was planted."""

import numpy as np
import pytest
from ladder import Law, Point, estimate, fit, laws_of, points_of, predicted, slope, study_text
from own_folder import own_folder  # noqa: F401
from planted import SEEDS, plant

COMPUTES = (1.1, 6.3, 19, 45, 153)
PLANTED = Law(1.5, 0.21, {"pre": 3.0, "post": 3.15, "peri": 2.9})


def runs(noise, generator=None, *, computes=COMPUTES, steeper=0.0):
    """Losses of three seeds; `steeper` is what a of post has besides."""
    return [
        Point(name, seed, c, PLANTED.floor + scale * c ** -(PLANTED.exponent + own) + error)
        for name, scale in PLANTED.scales.items()
        for own in [steeper * (name == "post")]
        for c in computes
        for seed in (10, 11, 12)
        for error in [noise * generator.standard_normal() if generator else 0]
    ]


def test_without_noise_the_law_is_the_planted_one():
    law = fit(runs(0))
    assert law.exponent == pytest.approx(0.21, abs=1e-5)
    assert law.floor == pytest.approx(1.5, abs=1e-4)
    assert law.scales == pytest.approx(PLANTED.scales, abs=1e-3)
    # Post has pre's loss at C' = C (3.15 / 3)^(1 / 0.21), so that it saves less than nothing.
    assert np.exp(-law.saved("post")) == pytest.approx(1.05 ** (1 / 0.21), rel=1e-3)
    assert law.saved_by(Point("post", 0, 7, PLANTED.loss("post", 7))) == pytest.approx(
        law.saved("post"), abs=1e-3
    )


def test_compute_saved_that_grows_has_the_slope_of_its_exponent():
    """C' = (A / A' C^a')^(1/a): its log over C has a slope of a'/a - 1 for each unit of log C."""
    points, laws = runs(0, steeper=0.02), dict.fromkeys((10, 11, 12), PLANTED)
    assert slope(laws, points, "post").value == pytest.approx(0.02 / 0.21 * np.log(2), rel=1e-6)
    assert slope(laws, points, "peri").value == pytest.approx(0, abs=1e-6)


def test_intervals_cover_what_was_planted_about_as_often_as_they_say():
    generator, hits, draws = np.random.default_rng(5), np.zeros(3), 200
    for _ in range(draws):
        points = runs(0.008, generator)
        smaller = [point for point in points if point.compute < 100]
        laws, before = laws_of(points), laws_of(smaller)
        saved = estimate(law.saved("peri") for law in laws.values())
        grown = slope(laws, points, "peri")
        guess = predicted(before, smaller, "peri", COMPUTES[-1])
        measured = np.mean([p.loss for p in points if p.placement == "peri" and p.compute > 100])
        hits += [
            saved.low <= PLANTED.saved("peri") <= saved.high,
            grown.low <= 0 <= grown.high,
            guess.low <= measured <= guess.high,
        ]
    assert (hits / draws > 0.9).all()


def test_the_text_says_the_law_and_scores_the_prediction():
    text = study_text(runs(1e-6, np.random.default_rng(1)))
    assert "E is 1.500 (" in text
    assert "| post | 3.150 | -26 % (" in text
    assert text.count("| yes |") + text.count("| no |") == 3


def test_a_placement_of_which_a_run_failed_has_no_points():
    sizes = [({"model.width": w, "placement": p}, 2.0) for w in (64, 128) for p in ("pre", "post")]
    points, lost = points_of([plant(sizes, failed=(3,))])
    assert lost == ["post"]
    assert sorted((p.placement, p.seed) for p in points) == sorted(("pre", s) for s in 2 * SEEDS)
    assert study_text(runs(1e-6, np.random.default_rng(1)), lost).endswith("missing: post.")
