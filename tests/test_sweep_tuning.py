"""Tuning, from losses written down by hand."""

import pytest

from transformer_norms.run.summary import Data, Summary
from transformer_norms.run.sweep_record import Tuned
from transformer_norms.sweep.tuning import best_point, new_points, widen

LR = "optimizer.lr"
GRID = {LR: [1e-3, 2e-3, 4e-3]}


@pytest.fixture
def trial(tmp_path):
    def run(rate, loss, *, diverged=False, initial=5.5):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        status = "diverged" if diverged else "finished"
        data = Data(identity={}, fingerprint="")
        losses = {"val_loss": loss, "initial_loss": initial}
        Summary(status=status, identity="0" * 16, data=data, **losses).write(folder)
        return {LR: rate}, folder

    return run


def test_the_best_point_has_the_lowest_mean_over_the_tuning_seeds(trial):
    trials = [trial(1e-3, 2.0), trial(1e-3, 2.4), trial(2e-3, 2.1), trial(2e-3, 2.2)]
    tuned = best_point({"norm": "a"}, [*trials, trial(4e-3, 3.0), trial(4e-3, 3.0)], GRID)
    assert (tuned.best, tuned.edge) == ({LR: 2e-3}, [])


def test_a_run_that_diverged_counts_as_its_initial_loss(trial):
    """(2.0 + 5.5) / 2 is more than 2.3, whatever the one that held reached."""
    trials = [
        trial(1e-3, 2.3),
        trial(1e-3, 2.3),
        trial(2e-3, 2.0),
        trial(2e-3, None, diverged=True),
    ]
    tuned = best_point({}, [*trials, trial(4e-3, 9.0), trial(4e-3, 9.0)], GRID)
    assert (tuned.best, tuned.edge) == ({LR: 1e-3}, [LR])


def test_a_diverged_run_with_a_low_loss_is_never_the_best(trial):
    tuned = best_point(
        {}, [trial(1e-3, 3.0), trial(2e-3, 1.0, diverged=True), trial(4e-3, 4.0)], GRID
    )
    assert tuned.best == {LR: 1e-3}


def test_a_run_that_diverged_at_its_first_step_counts_as_infinity(trial):
    trials = [trial(1e-3, 1.0), trial(1e-3, None, diverged=True, initial=None), trial(2e-3, 9.0)]
    assert best_point({}, trials, GRID).best == {LR: 2e-3}


def test_a_variant_that_diverged_everywhere_has_no_best_and_asks_for_lower_rates(trial):
    tuned = best_point({}, [trial(rate, None, diverged=True) for rate in GRID[LR]], GRID)
    assert (tuned.best, tuned.edge) == (None, [LR])
    assert widen(GRID, [tuned]) == {LR: [5e-4, *GRID[LR]]}


def test_the_grid_goes_on_by_its_own_ratio_at_the_ends_where_some_variant_did_best(trial):
    low = best_point({}, [trial(1e-3, 1.0), trial(2e-3, 2.0), trial(4e-3, 3.0)], GRID)
    middle = best_point({}, [trial(1e-3, 2.0), trial(2e-3, 1.0), trial(4e-3, 3.0)], GRID)
    high = best_point({}, [trial(1e-3, 3.0), trial(2e-3, 2.0), trial(4e-3, 1.0)], GRID)
    assert widen(GRID, [middle]) == GRID
    assert widen(GRID, [middle, high]) == {LR: [1e-3, 2e-3, 4e-3, 8e-3]}
    assert widen(GRID, [low, high]) == {LR: [5e-4, 1e-3, 2e-3, 4e-3, 8e-3]}


def test_a_grid_of_words_or_of_one_value_has_no_edge(trial):
    words = {"schedule": ["cosine", "linear"]}
    run = trial(0, 1.0)[1]
    tuned = best_point({}, [({"schedule": "linear"}, run), ({"schedule": "cosine"}, run)], words)
    assert tuned.edge == []
    assert widen(words, [tuned]) == words
    one = {LR: [1e-3]}
    assert best_point({}, [trial(1e-3, 2.0)], one).edge == []


def test_whole_numbers_stay_whole():
    grid = {"schedule.warmup": [50, 100]}
    tuned = Tuned(variant={}, best={"schedule.warmup": 100}, edge=["schedule.warmup"])
    assert widen(grid, [tuned]) == {"schedule.warmup": [50, 100, 200]}


def test_only_the_points_that_a_wider_grid_adds_are_run():
    points = [{LR: 1e-3}, {LR: 8e-3}]
    assert new_points(GRID, points) == [{LR: 8e-3}]
