"""The command `runs`: which runs it lists, in what order, and what it says of runs side by side."""

import json
import os
from pathlib import Path

import pytest
from new_process import run_python
from own_folder import own_folder  # noqa: F401
from run_folders import config_of, edit, make_run

from transformer_norms.commands.runs import main

LOSSES = {"pre": 2.30, "post": 2.41, "sandwich": 2.28}


@pytest.fixture
def study():
    """Three placements of one seed, a second seed of pre, and a run that is not done."""
    folders = {}
    for day, (placement, loss) in enumerate(LOSSES.items(), 1):
        config = config_of([f"placement={placement}"])
        folders[placement] = make_run("runs/main", config, loss, test_loss=loss + 0.1)
        os.utime(folders[placement] / "summary.json", (day * 1e8, day * 1e8))
    folders["second"] = make_run("runs/main", config_of([], 1), 2.35)
    going = config_of([], 0, model__depth=3)
    folders["going"] = make_run("runs/other", going, None, status="running", step=7, steps=40)
    return folders


def listed(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return [Path(row["folder"]).name for row in json.loads(capsys.readouterr().out)]


def test_conditions_say_which_runs_are_listed_and_a_key_in_which_order(study, capsys):
    def names(*keys):
        return [study[key].name for key in keys]

    assert listed(capsys) == names("sandwich", "pre", "second", "post", "going")
    assert listed(capsys, "main", "placement=pre,post") == names("pre", "second", "post")
    assert listed(capsys, "val_loss=..2.30", "seed=0") == names("sandwich", "pre")
    assert listed(capsys, "val_loss<2.30") == names("sandwich")
    assert listed(capsys, "val_loss >= 2.35") == names("second", "post")
    assert listed(capsys, "model.depth=3..") == listed(capsys, "status!=finished") == names("going")
    assert listed(capsys, "seed=1..5", "norm=rmsnorm") == names("second")
    assert listed(capsys, "optimizer.lr=3e-3", "study=other") == names("going")
    assert listed(capsys, "placement=post", "seed=1") == listed(capsys, "norm=..") == []
    assert listed(capsys, "val_loss=nan") == listed(capsys, "norm=1..") == []
    assert listed(capsys, "val_loss=none") == names("going")
    dates = listed(capsys, "main", "--sort", "when")
    assert dates == names("pre", "post", "sandwich", "second")
    assert listed(capsys, "main", "--sort", "when", "--reverse") == dates[::-1]
    sorted_ = listed(capsys, "main", "seed=0", "--sort", "placement")
    assert sorted_ == names("post", "pre", "sandwich")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("lr=1", "lr=1: did you mean optimizer.lr?"),
        ("valloss=1", "did you mean val_loss?"),
        ("status<finished", "< wants a number"),
        ("val_loss", "a condition is val_loss=VALUE"),  # the shell has taken the rest of <1.9
        ("val_loss=", "is not a condition"),
        ("val_loss=abc", "val_loss=abc: a number is expected, as in val_loss=2, val_loss=..2 or"),
        ("--sort=placemnt", "--sort placemnt: did you mean placement?"),
        ("--sorted", "--sort"),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_the_nearest(study, capsys, typed, said):
    assert main([typed]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_the_table_fits_a_terminal_and_json_holds_what_it_cuts(study, capsys):
    broken = make_run("runs/main", config_of([], 9), 1.0)
    (broken / "summary.json").write_text("{")
    study["going"].rename(f"{study['going']}-from-0badc0de")  # it goes on from another run
    Path("runs/other").rename("runs/" + "o" * 40)
    assert main([]) == 0
    out, err = capsys.readouterr()
    heading, *lines = out.splitlines()
    assert heading.split()[:4] == ["name", "study", "placement", "status"]
    assert "they also differ in model.depth, seed (" in err
    assert max(map(len, [heading, *lines])) <= 80
    for line, loss in zip(lines, ("2.2800", "2.3000", "2.3500", "2.4100"), strict=False):
        assert f" {loss} " in line
    assert " running " in lines[-1]
    assert " 7/40 " in lines[-1]
    assert lines[-1].split()[0].endswith(study["going"].name[-8:])
    assert f"left out: {broken}/summary.json" in err
    assert err.count("\n") == 2
    assert main(["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["val_loss"] for row in rows] == [2.28, 2.3, 2.35, 2.41, None]
    assert {row["placement"] for row in rows} == set(LOSSES)


def test_the_column_of_a_class_is_headed_by_what_it_is(capsys, tmp_path):
    for seed, average in enumerate(("ema, decay: 0.9", "window, count: 2, every: 5")):
        config = config_of([f"trainer.average={{type: {average}}}"], seed)
        make_run(tmp_path / "runs", config, 2.0)
    assert main([str(tmp_path / "runs")]) == 0
    assert " average " in capsys.readouterr().out.splitlines()[0]


def test_two_runs_side_by_side_have_their_difference_and_no_verdict(study, capsys):
    edit(study["post"], parameters=115072 + 1000, threads=2)
    assert main(["compare", "placement=sandwich", str(study["post"])]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    words = {line.strip().partition("  ")[0]: line.split() for line in out.splitlines()}
    assert words["placement"][1:] == ["sandwich", "post"]
    assert words["final val loss"][-3:] == ["2.2800", "2.4100", "+0.1300"]
    assert words["test loss"][-1] == f"{2.51 - 2.38:+.4f}"
    assert "A and B may be compared" in out
    assert "Their seeds make them a pair" in " ".join(out.split())
    assert "parameters +1,000 (of 115,072)" in out
    assert "threads mixed" in out
    assert "carries no verdict" in out


def test_runs_that_must_not_be_compared_say_why_not(study, capsys):
    longer = make_run("runs/long", config_of([], 1, trainer__steps=80), 2.2)
    edit(study["second"], batch_chain="others")
    assert main(["compare", str(study["second"]), str(longer), str(study["pre"])]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "trainer.steps 40 80 40" in said
    assert "A and B must not be compared by their losses: - horizon: trainer.steps is 40" in said
    assert "A and C may be compared" in said
    assert "Their seeds make them no pair." in said
    assert main(["compare", str(study["pre"]), str(study["going"])]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"must not be compared by their losses: - {study['going'].name} is running" in said
    for wrong in (["pre"], ["placement=pre", "runs/other"], [str(study["pre"])] * 2):
        assert main(["compare", *wrong]) == 2
    assert "4 runs fit, and one is wanted" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_list_of_runs_imports_no_torch(study):
    said = run_python(
        "import sys; from transformer_norms.commands.runs import main; main(['main']); "
        "from transformer_norms import runs; runs('main'); print('torch' in sys.modules)"
    )
    assert said.splitlines()[-1] == "False"
