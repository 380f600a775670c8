"""Where the scatter of a difference comes from, by sums that are written out."""

from pathlib import Path

import numpy as np
import pytest
from own_folder import no_pictures, own_folder  # noqa: F401
from run_folders import config_of, edit, folder_name, make_sweep, text

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
    differences = {(seed, order): 0.1 + 0.02 * seed + (order - 10) * (0.01 + 0.003 * seed)
                   for seed in range(3) for order in ORDERS}  # fmt: skip
    results = []
    for (seed, order), difference in differences.items():
        base = {"data.seed": order}
        results.append(({"placement": "pre"} | base, seed, 2.3))
        results.append(({"placement": "sandwich"} | base, seed, 2.3 + difference))
    make_sweep("study", results)
    blocks = np.array([0.2, 0.05, 0.11])  # less the baseline's
    for placement, more in (("pre", 0 * blocks), ("sandwich", blocks)):
        for seed, order in differences:
            config = config_of([f"placement={placement}"], seed, data__seed=order)
            edit(Path("study", folder_name(config)), val_blocks=[*(2.3 + more)])
    x = np.array([[differences[seed, order] for order in ORDERS] for seed in range(3)])
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
    results = []
    for order in ORDERS:
        for seed in range(3):
            results.append(({"placement": "pre", "data.seed": order}, seed, 2.3 + 0.01 * seed))
            loss = None if (seed, order) == (2, 11) else 2.4
            results.append(({"placement": "sandwich", "data.seed": order}, seed, loss))
    make_sweep("study", results)
    assert "seeds: weights" not in text()
