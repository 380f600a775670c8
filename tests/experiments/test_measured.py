"""The committed measurements are read and written unchanged, and new ones agree with them."""

import csv

import measured
import numpy as np
import pytest
from analyses.init_gradients import read_setting

from transformer_norms.analysis.outcome import csv_of


@pytest.mark.parametrize("name", measured.FILES)
def test_what_is_read_is_what_was_written(name):
    written = csv_of(measured.measured_rows(name)).decode()
    assert cells(written) == cells(measured.FILES[name].read_text())


def cells(text):
    """The cells of each row that are not empty, by their columns."""
    return [{k: v for k, v in row.items() if v} for row in csv.DictReader(text.splitlines())]


def test_the_smallest_models_of_init_gradients_are_measured_as_then():
    keys = [text for text in measured.XIONG if not text.startswith("seed=")]
    small = read_setting([*keys, "model.depth=2,4", "seed=9"], xiong=True)
    now = measured.measure_blocks(small)
    then = [row for row in measured.measured_rows("init_gradients")
            if row["seed"] == 9 and row["depth"] <= 4]  # fmt: skip
    assert [[*row.values()][:4] for row in now] == [[*row.values()][:4] for row in then]
    numbers = ([[*row.values()][4:] for row in rows] for rows in (now, then))
    np.testing.assert_allclose(*numbers, rtol=1e-6)


def test_the_smallest_models_of_the_coordinate_check_are_measured_as_then():
    now = measured.measure_changes(["model.width=64,128", "seed=0"])
    then = [row for row in measured.measured_rows("coordinate_check")
            if row["seed"] == 0 and row["width"] <= 128]  # fmt: skip
    assert [[*row.values()][:3] for row in now] == [[*row.values()][:3] for row in then]
    # Adam divides by gradients that are nearly zero, so that rounding is more than usual.
    numbers = ([[*row.values()][3:] for row in rows] for rows in (now, then))
    np.testing.assert_allclose(*numbers, rtol=1e-4)
