"""The report of runs that were typed by hand: what it compares though nobody said so."""

import os

from own_folder import no_pictures, own_folder  # noqa: F401
from run_folders import by_name, config_of, make_run, text

from transformer_norms.report.__main__ import main


def make(overrides, loss, seed=0, began=1e9, **keys):
    folder = make_run("study", config_of(overrides, seed, **keys), loss)
    os.utime(folder / "config.yaml", (began, began))
    return folder


def test_two_runs_that_differ_in_one_choice_are_compared_with_the_default(capsys):
    make(["norm=layernorm"], 2.31, began=1e9)
    make([], 2.30, began=2e9)
    assert main(["study"]) == 0
    said = capsys.readouterr().err
    assert "The baseline is norm=rmsnorm, the project's default; --baseline" in said
    assert max(map(len, said.splitlines())) <= 80
    row = by_name(text(), "layernorm")
    assert (row["difference"], row["verdict"]) == ("+0.0100", "not decided yet")


def test_a_key_without_a_default_takes_the_earlier_run():
    make([], 2.31, began=2e9, optimizer__lr=2e-3)
    earlier = make([], 2.30, began=1e9, optimizer__lr=4e-3)
    table = text()
    assert f"optimizer.lr=0.004, the earliest run ({earlier.name})" in table
    assert by_name(table, "lr=0.002")["difference"] == "+0.0100"
    assert by_name(text(baseline={"optimizer.lr": 2e-3}), "lr=0.004")["difference"] == "-0.0100"
    assert "earliest" not in text(baseline={})


def test_runs_that_differ_in_several_keys_are_told_what_to_type():
    make(["norm=layernorm", "placement=post"], 2.31)
    make([], 2.30)
    table = text()
    assert "the runs differ in norm, placement" in table
    assert "--baseline norm=rmsnorm placement=pre" in table
    assert "difference" not in table.partition("\n\n| ")[2].splitlines()[0]
    row = by_name(text(baseline={"norm": "rmsnorm", "placement": "pre"}), "layernorm post")
    assert row["difference"] == "+0.0100"


def test_runs_whose_losses_are_no_pair_are_reported_without_a_difference():
    make([], 2.31)
    make([], 2.30, trainer__steps=80)
    assert "Nothing is compared. trainer.steps (horizon): " in text().replace("\\", "")
