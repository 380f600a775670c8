"""Whether an order of placements holds at another scale: on studies whose truth is planted."""

from itertools import product
from pathlib import Path

import agreement
import numpy as np
import pytest
from own_folder import own_folder  # noqa: F401
from planted import SEEDS, change_rows, plant
from run_folders import config_at, folder_name, tuned
from scipy import stats

PLACEMENTS = ("pre", "post", "peri", "hybrid", "normformer")
START = (2.0, 2.1, 2.2, 1.9, 2.3)  # the loss of each


def plant_scales(means, noise=1e-3, lost=(), trained=lambda *at: 2.0, best=()):
    """A study of horizons: `means` has the loss of each placement at each number of steps.
    `trained` is the training loss of a placement and seed at a step, and `best` has the rates."""
    losses = [
        (variant_at(steps, placement), None if (steps, placement) in lost else loss)
        for steps, own in means.items()
        for placement, loss in zip(PLACEMENTS, own, strict=True)
    ]
    rates = [tuned(variant_at(steps, placement), {"optimizer.lr": rate})
             for steps in means for placement, rate in best]  # fmt: skip
    contrasts = [f"({x} - pre) under steps={max(means)} - ({x} - pre) under steps={min(means)}"
                 for x in PLACEMENTS[1:]]  # fmt: skip
    found = plant(losses, noise, contrasts=contrasts, tuned=rates)
    for steps, placement, seed in product(means, PLACEMENTS, SEEDS):
        run = Path("study", folder_name(config_at(variant_at(steps, placement), seed)))
        losses = [trained(placement, seed, step) for step in range(1, steps + 1)]
        change_rows(run, lambda _, own=losses: [
            {"step": n, "tokens": n, "train/loss": loss} for n, loss in enumerate(own, 1)
        ])  # fmt: skip
    return found


def variant_at(steps, placement):
    return {"trainer.steps": steps, "placement": placement}


def test_the_training_losses_inside_the_longest_runs_are_those_of_pairs_at_one_rate():
    def trained(placement, seed, step):
        above = {"peri": -0.051, "normformer": 0.4 if step <= 60 else 0.01 * (seed - 10)}
        own = 0.5 * (placement not in ("pre", *above)) + above.get(placement, 0.0)
        return 3.0 - step / 480 + 0.1 * seed + own

    rates = zip(PLACEMENTS, (1e-3, 3e-3, 1e-3, 3e-3, 1e-3), strict=True)
    means = {30: START, 480: (1.0, 1.1, 1.2, 0.9, 1.3)}
    found = plant_scales(means, trained=trained, best=[*rates])
    _, last = agreement.scales_of("horizon", found)
    error = np.std([0, 0.01, 0.02], ddof=1) / np.sqrt(3)
    early, late = "+0.400 ± 0.000", f"+0.010 ± {error:.3f}"
    assert agreement.training_rows(last, found) == [
        # The others have another rate. 0.051 nats are 24.48 steps, 0.01 nats are 4.8; a mean
        # over a sixth of the steps moves by 11/12 of a step with each step. pre has 0.4 at once.
        ["steps", "peri - pre", "peri later by", "normformer - pre", "normformer later by"],
        ["25 to 30", "-0.051 ± 0.000", "-26", early, "+29"],
        ["50 to 60", "-0.051 ± 0.000", "-26", early, "+59"],
        ["100 to 120", "-0.051 ± 0.000", "-26", late, "+4"],
        ["200 to 240", "-0.051 ± 0.000", "-26", late, "+4"],
        ["400 to 480", "-0.051 ± 0.000", "-26", late, "+4"],
    ]
    assert "inside the runs of 480 steps" in agreement.study_text("horizon", found)


def test_a_width_with_two_numbers_of_steps_is_two_scales():
    losses = [
        ({"model.width": width, "trainer.steps": steps, "placement": placement},
         2.0 - 0.1 * k + 0.05 * place)
        for k, (width, steps) in enumerate([(64, 20), (64, 40), (128, 30), (256, 40)])
        for place, placement in enumerate(PLACEMENTS)
    ]  # fmt: skip
    contrasts = [f"(({x} - pre) under width=256 - ({x} - pre) under width=64) under steps=40"
                 for x in PLACEMENTS[1:]]  # fmt: skip
    found = plant(losses, contrasts=contrasts)
    scales = agreement.scales_of("size", found)
    labels = "; ".join(scale.label for scale in scales)
    assert labels == "64, 20 steps; 64, 40 steps; 128, 30 steps; 256, 40 steps"
    assert agreement.answer("size", found).startswith("width 64, 20 steps predicts width 256, 40")


@pytest.mark.parametrize(
    ("longer", "said", "same_orders"),
    [
        ({120: START, 480: [loss - 0.5 for loss in START]}, "steps 30 predicts steps 480", 3),
        ({480: (1.0, 0.9, 1.2, 0.8, 1.3)}, "steps 30 does not predict steps 480: post is better at "
         "steps 480, worse at steps 30.", 0),
        ({480: (1.0, 1.3, 1.4, 0.8, 1.5)}, "Neither word is said of steps 30 and steps 480: (post "
         "- pre) under", 1),
    ],
    ids=["the order stays", "a sign turns", "a difference grows"],
)  # fmt: skip
def test_an_order_predicts_where_it_stays_and_a_sign_that_turns_is_named(longer, said, same_orders):
    found = plant_scales({30: START, **longer})
    assert agreement.answer("horizon", found).startswith(said)
    text = agreement.study_text("horizon", found)
    assert text.count("| +1.00 | +1.00 to +1.00 |") == same_orders


def test_a_run_that_failed_leaves_no_agreement():
    means = {30: START, 480: (1.0, 1.1, 1.2, 0.9, 1.3)}
    found = plant_scales(means, lost=[(30, "post"), (480, "peri")])
    assert len(agreement.training_rows(agreement.scales_of("horizon", found)[-1], found)) == 1
    assert "Neither word is said" in agreement.answer("horizon", found)
    text = agreement.study_text("horizon", found)
    assert "| 30 | 480 | a run failed |  |" in text
    assert "has no value, as runs failed" in text


def test_tau_counts_pairs_as_scipy_does_and_small_noise_leaves_it():
    random = np.random.default_rng(0)
    one, other = random.normal(size=(2, 20, 5))
    expected = [stats.kendalltau(a, b).statistic for a, b in zip(one, other, strict=True)]
    assert agreement.kendall_tau(one, other) == pytest.approx(expected)
    means = {30: START, 480: (1.02, 1.01, 1.2, 0.9, 1.3)}
    found = agreement.agree(*agreement.scales_of("horizon", plant_scales(means)))
    assert found.tau == pytest.approx(0.8)  # one of ten pairs is turned
    assert found.low == found.high == found.tau


def test_the_error_of_a_mean_is_that_of_the_two_way_layout():
    """By the least squares of losses on dummies of placements and seeds."""
    scale, _ = agreement.scales_of("horizon", plant_scales({30: START, 480: [1.0] * 5}, noise=0.05))
    rows = [(i, j) for i in range(5) for j in range(3)]
    design = np.array([[*np.eye(5)[i], *np.eye(3)[j][1:]] for i, j in rows])
    losses = np.array([scale.losses[i, j] for i, j in rows])
    fitted, *_ = np.linalg.lstsq(design, losses, rcond=None)
    squares = ((losses - design @ fitted) ** 2).sum()
    error, freedom = scale.error
    assert freedom == 15 - 7
    assert error == pytest.approx(np.sqrt(squares / freedom / 3))


def test_close_means_have_a_wide_interval_of_tau():
    found = plant_scales({30: (2.0, 2.01, 2.02, 1.99, 2.03), 480: [1.0] * 5}, noise=0.05)
    one, other = agreement.scales_of("horizon", found)
    interval = agreement.agree(one, other)
    assert interval.low < -0.3 < 0.3 < interval.high
    assert "the interval of tau reaches zero" in agreement.answer("horizon", found)
