"""The search for the best point, on losses that are known functions of the point."""

import random
from math import inf, log, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_norms.sweep.grid import Tuning, product
from transformer_norms.sweep.search import Attempt, Tried, refinement, widen

LR, WARMUP, DECAY, INIT = "optimizer.lr", "schedule.warmup", "optimizer.weight_decay", "init"
RATES = [1e-3, 2e-3, 4e-3]


def everything(point):
    return True


def tried_at(losses, key=LR):
    """{value: loss of a seed, or a list of such losses}; None is a run that failed."""
    lists = {value: one if isinstance(one, list) else [one] for value, one in losses.items()}
    return Tried({}, [attempt({key: value}, *one) for value, one in lists.items()])


def attempt(point, *losses):
    trained = {seed: loss for seed, loss in enumerate(losses) if loss is not None}
    return Attempt(point, trained, losses.count(None))


def test_the_best_point_has_the_lowest_loss_of_those_where_no_run_failed():
    assert tried_at({1e-3: 2.4, 2e-3: 2.1, 4e-3: 2.2}).best == {LR: 2e-3}
    # A mean that leaves out a failed seed is no mean of the same seeds, however low it is.
    assert tried_at({1e-3: [2.4, 2.4], 2e-3: [None, 1.0], 4e-3: [2.5, 2.6]}).best == {LR: 1e-3}
    assert tried_at({1e-3: [None, None], 2e-3: [2.5, None], 4e-3: [None, 2.4]}).best == {LR: 4e-3}
    assert tried_at({1e-3: [None, None], 2e-3: [None, None]}).best is None


def test_a_lucky_run_does_not_choose_the_best_point():
    """The curve through all trials near it does. The losses are those of a valley at 3e-3."""
    rates = [3e-3 * 3 ** (steps / 4) for steps in (-4, -2, -1, 0, 1, 2, 4)]
    valley = {rate: 2 + 0.1 * log(rate / 3e-3) ** 2 for rate in rates}
    lucky = {rate: [loss, loss - 0.02 * (rate == rates[4])] for rate, loss in valley.items()}
    assert min(lucky, key=lambda rate: sum(lucky[rate])) == rates[4]
    assert tried_at(lucky).best == {LR: 3e-3}


def test_values_that_are_lists_are_words():
    values = {2.0: [0.9, 0.95], 1.9: [0.9, 0.99]}
    tried = Tried({}, [attempt({"betas": value}, loss) for loss, value in values.items()])
    assert tried.best == {"betas": [0.9, 0.99]}


def test_an_edge_is_the_first_or_last_value_that_was_tried():
    assert tried_at({2e-3: 1.0, 1e-3: 2.0, 4e-3: 3.0}).edge([LR]) == []
    assert tried_at({2e-3: 1.0, 1e-3: 0.9, 4e-3: 3.0}).edge([LR]) == [LR]
    assert tried_at({1e-3: None}).edge([LR, DECAY]) == [LR, DECAY]


def test_a_refinement_is_half_a_step_below_and_above_the_best_and_changes_one_key_at_a_time():
    tuning = Tuning({LR: RATES, DECAY: [0.1, 0.4], INIT: ["a", "b"]}, [100])
    points = [{LR: r, DECAY: d, INIT: i} for r in RATES for d in (0.1, 0.4) for i in "ab"]
    best = {LR: 2e-3, DECAY: 0.4, INIT: "b"}
    tried = Tried({}, [attempt(point, float(point != best)) for point in points])
    found = refinement(tuning, tried, everything)
    half = float(f"{2e-3 / sqrt(2):.4g}"), float(f"{2e-3 * sqrt(2):.4g}")
    assert found == [
        {**best, LR: half[0]}, {**best, LR: half[1]},
        {**best, DECAY: 0.2}, {**best, DECAY: 0.8},  # the last is half of the outward step of 4
    ]  # fmt: skip


def test_a_second_refinement_halves_the_step_again():
    tuning = Tuning({LR: RATES}, [100])
    tried = tried_at({1e-3: 3.0, 2e-3: 1.0, 4e-3: 2.0})
    for expected in (2e-3 / sqrt(2), 2e-3 * sqrt(2)), (2e-3 / 2**0.25, 2e-3 * 2**0.25):
        points = refinement(tuning, tried, everything)
        assert [point[LR] for point in points] == pytest.approx(expected, rel=1e-3)
        tried.attempts += [attempt(point, 2.5) for point in points]


def test_whole_numbers_stay_whole_and_a_value_is_never_tried_twice():
    tuning = Tuning({WARMUP: [50, 100, 200]}, [100])
    tried = tried_at({50: 2.0, 100: 1.0, 200: 3.0}, WARMUP)
    assert refinement(tuning, tried, everything) == [{WARMUP: 71}, {WARMUP: 141}]
    # Nothing lies between 1, 2 and 3, and nothing below 1: the next steps are above.
    narrow = Tuning({WARMUP: [1, 2, 3]}, [100])
    tried = tried_at({1: 2.0, 2: 1.0, 3: 3.0}, WARMUP)
    assert refinement(narrow, tried, everything) == [{WARMUP: 4}, {WARMUP: 5}]


def test_a_variant_that_failed_everywhere_gets_as_many_points_below_the_lowest():
    tuning = Tuning({LR: RATES}, [100])
    tried = tried_at(dict.fromkeys(RATES))
    assert refinement(tuning, tried, everything) == [{LR: 5e-4}, {LR: 2.5e-4}]
    assert widen({LR: RATES}, [tried]) == {LR: [5e-4, *RATES]}


def test_a_variant_that_failed_everywhere_is_searched_around_the_point_that_came_nearest():
    """Nothing trained at three rates, and the middle one learned most. The search goes on beside
    it, and the grid of the other variants stays as it is."""
    tuning = Tuning({LR: RATES}, [100])
    reached = {1e-3: 2.9, 2e-3: 2.6, 4e-3: inf}
    tried = Tried({}, [Attempt({LR: rate}, {}, 1, loss) for rate, loss in reached.items()])
    assert tried.best is None
    assert tried.edge([LR]) == [LR]
    assert refinement(tuning, tried, everything) == [{LR: 0.001414}, {LR: 0.002828}]
    assert widen({LR: RATES}, [tried]) == {LR: RATES}


def test_a_value_that_is_not_allowed_gives_its_place_to_the_next_nearest():
    tuning = Tuning({LR: [0.25, 1.0]}, [100])
    tried = tried_at({0.25: 2.0, 1.0: 1.0})
    points = refinement(tuning, tried, lambda point: point[LR] <= 1)
    assert [point[LR] for point in points] == pytest.approx([0.5, 1 / 4**0.25], rel=1e-3)


def test_the_grid_goes_on_by_its_own_ratio_at_the_ends_where_some_variant_did_best():
    low, middle, high = (
        tried_at({rate: abs(log(rate / best)) for rate in RATES}) for best in RATES
    )
    grid = {LR: RATES}
    assert widen(grid, [middle]) == grid
    assert widen(grid, [middle, high]) == {LR: [*RATES, 8e-3]}
    assert widen(grid, [low, high]) == {LR: [5e-4, *RATES, 8e-3]}


@pytest.mark.parametrize("values", [["cosine", "linear"], [1e-3], [0, 0.1, 0.2], [True, False]])
def test_a_grid_of_words_of_one_value_or_with_a_zero_has_no_steps(values):
    tuning = Tuning({"key": values}, [100])
    assert tuning.stepped == []
    tried = tried_at(dict.fromkeys(values, 1.0), "key")
    assert widen(tuning.grid, [tried]) == tuning.grid
    assert refinement(tuning, tried, everything) == []


def test_whole_numbers_are_widened_to_whole_numbers():
    tried = tried_at({50: 2.0, 100: 1.0}, WARMUP)
    assert widen({WARMUP: [50, 100]}, [tried]) == {WARMUP: [50, 100, 200]}


KEYS = st.fixed_dictionaries(
    {
        LR: st.lists(
            st.sampled_from([1e-3, 1.7e-3, 3e-3, 5.2e-3, 9e-3]), min_size=1, max_size=4, unique=True
        )
    },
    optional={
        WARMUP: st.lists(st.integers(1, 200), min_size=1, max_size=3, unique=True),
        INIT: st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True),
    },
)


@settings(max_examples=60, deadline=None)
@given(KEYS, st.integers(0, 3), st.integers(0, 2**32))
def test_every_variant_gets_the_same_number_of_points_whatever_its_losses(grid, refine, seed):
    tuning = Tuning(grid, [100], refine=refine)
    bumpy = lambda point: random.Random(f"{seed} {point}").random()  # noqa: E731
    for loss in (bumpy, lambda point: None):
        tried = Tried({}, [attempt(point, loss(point)) for point in product(grid)])
        for _ in range(refine):
            points = refinement(tuning, tried, everything)
            assert all(point not in tried.points for point in points)
            tried.attempts += [attempt(point, loss(point)) for point in points]
        assert len(tried.points) == tuning.budget
