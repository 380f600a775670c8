"""New measurements agree with the committed ones."""

import measured
import numpy as np
from analyses.init_gradients import read_setting


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
