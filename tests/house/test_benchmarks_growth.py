"""What the benchmarks of growth, memory and starting compute from what they measured."""

import sys

import fresh
import growth
import memory
import pytest
import startup

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
MIB = 2**20


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.25])
def test_the_exponent_of_a_power_law_is_its_power(power):
    values = [3, 10, 64, 1000]
    assert growth.exponent(values, [7e-4 * x**power for x in values]) == pytest.approx(power)
    assert growth.exponent([64], [1.0]) is None


def test_exponents_are_of_the_larger_half_checkpointed_as_the_largest_is():
    keys = "value", "checkpointed", "median", "above"
    rows = [(n, False, 5.0, 5.0) for n in (1, 4, 16, 64)]
    rows += [(n, True, n**1.5, 3 * n) for n in (64, 256, 999)]
    plain = [(n, False, n**2 if n > 4 else 9, 7) for n in (1, 2, 4, 8, 16, 32)]
    for these, of_time, of_memory in (rows, 1.5, 1.0), (plain, 2.0, 0.0):
        found = growth.exponents([dict(zip(keys, row, strict=True)) for row in these])
        assert found == pytest.approx({"exponent": of_time, "exponent_of_memory": of_memory})


@pytest.mark.nightly
def test_a_point_is_measured_in_a_process_of_its_own():
    size, overrides = "2-32-16-2-65", ("norm=layernorm", "trainer.threads=1")
    found = fresh.measured(fresh.Point(size, overrides, warm=0, steps=3))
    sizes = [f"model.{key}" for key in ("depth=2", "width=32", "heads=1", "context=16")]
    parameters = sum(p.numel() for p in build_model(compose([*sizes, *overrides]), 65).parameters())
    assert found["parameters"] == parameters
    assert found["state"] == 16 * parameters
    assert (found["size"], found["threads"], len(found["seconds"])) == (size, 1, 3)
    assert min(found["building"], found["first"], found["above"], *found["seconds"]) > 0


def test_the_most_memory_is_counted_anew_after_a_reset():
    before = fresh.reset()
    block = bytearray(b"1") * (96 * MIB)
    assert fresh.highest() - before > 90 * MIB
    del block
    assert fresh.highest() - before > 90 * MIB
    after = fresh.reset()
    assert fresh.highest() - after < 30 * MIB


def test_memory_is_over_the_state_and_ratios_are_to_the_row_above():
    rows = []
    for name, point in memory.asked(memory.parser().parse_args(["--checkpointing", ""])):
        ours = name == memory.GPT2
        one = {"size": point.size, "overrides": [], "model": point.model, "parameters": 10 * MIB}
        one |= {"threads": 1, "state": 160 * MIB, "seconds": [0.1, 0.2 if ours else 0.4, 0.9]}
        rows.append(memory.row(name, [one | {"above": (190 if ours else 200) * MIB}] * 2))
    assert [row["over"] for row in rows[-2:]] == [[40 * MIB] * 2, [30 * MIB] * 2]
    *_, recipe, _, _, theirs, ours = lines = memory.table(rows)
    assert ours.split()[-6:] == ["30.0", "to", "30.0", "0.750", "200.0", "0.500"]
    assert theirs.split()[-1] == recipe.split()[-1] == "400.0"
    assert max(map(len, lines)) < 80


def test_tables_of_large_numbers_are_under_80_columns():
    times = [123.4567, 234.5678]
    row = {"value": 131072, "checkpointed": True, "seconds": times, "median": 99.0}
    row |= {"building": 99.5, "first": 199.5, "of_unit": 0.0123, "above": 99_999 * MIB}
    result = {"rows": [row], "exponent": 1.25, "exponent_of_memory": -1.25}
    started = dict.fromkeys((startup.TORCH, startup.REFUSED, startup.LARGE), times)
    lines = startup.table({"seconds": started, "of_torch": dict.fromkeys(started, 123.456)})
    for name in growth.AXES:
        lines += growth.table(name, result)
    assert max(len(line) for text in lines for line in text.split("\n")) < 80


def test_each_round_of_starting_begins_with_another_row_after_one_that_is_not_kept():
    called = []
    row = lambda name: lambda: called.append(name) or float(len(called))  # noqa: E731
    times = startup.by_turns({name: row(name) for name in "abc"}, 4)
    assert "".join(called) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert times == {"a": [4, 9, 11, 13], "b": [5, 7, 12, 14], "c": [6, 8, 10, 15]}
