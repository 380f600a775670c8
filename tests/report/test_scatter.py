"""Where the scatter of a difference comes from, by sums that are written out."""

from pathlib import Path

import numpy as np
import pytest
from own_folder import no_pictures, own_folder  # noqa: F401
from reports import text
from run_folders import edit_each, make_sweep

from transformer_norms.report.scatter import crossed_parts

ORDERS = (10, 11)


def test_the_parts_are_those_that_the_differences_were_drawn_with():
    """Weights 0.03, order 0.01 and both together 0.02, for a table that is large enough."""
    draw = np.random.default_rng(0)
    weights, order = draw.normal(0, 0.03, (400, 1)), draw.normal(0, 0.01, (1, 400))
    found = crossed_parts(weights + order + draw.normal(0, 0.02, (400, 400)))
    assert found == pytest.approx((0.03, 0.01, 0.02), rel=0.1)


def test_a_small_table_has_the_mean_squares_of_its_rows_columns_and_rest():
    x = np.array([[1.0, 2.0], [4.0, 7.0], [2.0, 9.0]])
    rows, columns, mean = x.mean(1), x.mean(0), x.mean()
    rest = sum((x[i, o] - rows[i] - columns[o] + mean) ** 2 for i in range(3) for o in range(2)) / 2
    of_rows = 2 * sum((rows - mean) ** 2) / 2
    of_columns = 3 * sum((columns - mean) ** 2)
    parts = [max(0, of_rows - rest) / 2, max(0, of_columns - rest) / 3, rest]
    assert crossed_parts(x) == pytest.approx(np.sqrt(parts))


def test_a_report_of_crossed_seeds_splits_the_scatter_and_gives_no_word():
    """Neither order alone has the scatter of the order in its interval."""
    x = np.array([[0.1 + 0.02 * seed + n * (0.01 + 0.003 * seed) for n in range(2)]
                  for seed in range(3)])  # fmt: skip
    make_sweep("study", [
        ({"placement": placement, "data.seed": order}, seed, 2.3 + factor * x[seed, n])
        for placement, factor in (("pre", 0), ("sandwich", 1))
        for seed in range(3) for n, order in enumerate(ORDERS)
    ])  # fmt: skip
    blocks = np.array([0.2, 0.05, 0.11])  # less the baseline's
    for placement, more in (("pre", 0 * blocks), ("sandwich", blocks)):
        edit_each(
            Path("study").glob(f"{placement}-*"), lambda _, b=more: {"val_blocks": [*(2.3 + b)]}
        )
    parts = crossed_parts(x)
    table = text()
    assert (
        f"sandwich - pre, 3 x 2 seeds: weights {parts[0]:.4f}, order {parts[1]:.4f}, "
        f"together {parts[2]:.4f}, text {blocks.std(ddof=1) / 3**0.5:.4f}\n" in table
    )
    assert "sandwich data.seed=10 - pre data.seed=10 is 0.120 nats (95 % interval" in table
    assert " not tested)" in table
    assert "worse" not in table.partition("- seeds:")[0]


def test_a_pair_with_a_failed_run_has_no_parts():
    """The seeds that are left would be a choice."""
    make_sweep("study", [
        ({"placement": placement, "data.seed": order}, seed,
         None if (placement, seed, order) == ("sandwich", 2, 11) else loss + 0.01 * seed)
        for order in ORDERS for seed in range(3)
        for placement, loss in (("pre", 2.3), ("sandwich", 2.4))
    ])  # fmt: skip
    assert "seeds: weights" not in text()
