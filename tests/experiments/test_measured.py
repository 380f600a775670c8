"""The committed measurements are read and written unchanged, and new ones agree with them."""

from functools import cache

import measured
import numpy as np
import pytest

from transformer_norms.analysis import coordinate_check, init_gradients, norm_removal
from transformer_norms.analysis.init_measures import measure_variants, read_setting

HERE = measured.HERE


@cache
def committed_blocks():
    setting = read_setting(measured.XIONG, xiong=True)
    return measured.read_blocks(setting, HERE / "init_gradients")


def test_what_is_read_is_what_was_written():
    changes = measured.read_changes(HERE / "width")
    costs = measured.read_costs(HERE / "norm_removal")
    written = {
        "init_gradients/init_gradients.csv": init_gradients.csv_file(committed_blocks()),
        "width/coordinate_check.csv": coordinate_check.csv_file(changes),
        **{f"norm_removal/{name}": data for name, data in norm_removal.csv_files(costs).items()},
    }
    for name, data in written.items():
        assert data == (HERE / name).read_bytes(), name


def test_the_smallest_models_of_init_gradients_are_measured_as_then():
    then = committed_blocks()
    keys = [text for text in measured.XIONG if not text.startswith("seed=")]
    small = read_setting([*keys, "model.depth=2,4", "seed=9"], xiong=True)
    now = measure_variants(small)
    assert [(one.name, one.bound) for one in now] == [(one.name, one.bound) for one in then]
    for old, new in zip(then, now, strict=True):
        for depth, blocks in new.blocks.items():
            np.testing.assert_allclose(blocks, old.blocks[depth][[9]], rtol=1e-6)


def test_the_smallest_models_of_the_coordinate_check_are_measured_as_then(tmp_path):
    then = measured.read_changes(HERE / "width")
    small = measured.measure_changes(["model.width=64,128", "seed=0"])
    (tmp_path / measured.CHANGES).write_bytes(small)
    now = measured.read_changes(tmp_path)
    assert [one.name for one in now] == [one.name for one in then]
    for old, new in zip(then, now, strict=True):
        for part, changes in new.changes.items():
            # Adam divides by gradients that are nearly zero, so that rounding is more than usual.
            assert changes == pytest.approx(old.changes[part][:2, :1], rel=1e-4)
