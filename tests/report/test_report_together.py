"""A report of several folders, of a narrowed sweep and of typed runs: what counts, and what is
compared."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from own_folder import no_pictures, own_folder  # noqa: F401
from reports import by_name, findings_of, rows, study_of, text
from run_folders import (
    PRE,
    SANDWICH,
    config_of,
    edit,
    edited,
    folder_name,
    make_run,
    make_study,
    make_sweep,
    planned,
    tree,
)

from transformer_norms.comparison.sweep_record import Asked, Look, Seen
from transformer_norms.errors import ConfigError
from transformer_norms.report.__main__ import main
from transformer_norms.report.findings import findings

POST = {0: 2.43, 1: 2.449, 2: 2.4415}


def typed(study, losses, **keys):
    for placement, by_seed in losses.items():
        for seed, loss in by_seed.items():
            make_run(study, config_of([f"placement={placement}"], seed, **keys), loss)


def test_a_report_of_two_folders_is_one_report_beside_both(capsys):
    """Typed runs are compared with the baseline of the sweep, in pairs of one seed over both."""
    make_study("runs/grid", {"pre": PRE, "post": POST})
    typed("runs/own", {"sandwich": SANDWICH, "pre": {0: PRE[0]}})
    before = tree("runs")
    assert main(["runs/own", "runs/grid"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["report"] == "runs/report-own-grid/report.html"
    assert (answer["runs"], answer["finished"]) == (9, 9)
    new = {path for path in tree("runs") if "report-own-grid" not in path}
    assert {path: state for path, state in tree("runs").items() if path in new} == before
    table = Path("runs/report-own-grid/table.md").read_text()
    assert by_name(table, "pre")["seeds"] == "3"
    mean = sum(SANDWICH[seed] - PRE[seed] for seed in PRE) / 3
    assert by_name(table, "sandwich")["difference"] == f"{mean:+.4f}"
    assert "for 2 comparisons at once" in table
    own = folder_name(config_of(["placement=pre"]))
    assert f"counted once, in the folder named first: {own}" in table
    stages = {(row["study"], row["run"]): row["stage"] for row in rows("runs/report-own-grid")}
    assert sorted(stages.values()).count("duplicate") == 1


def test_the_copy_that_has_ended_counts():
    make_study("runs/a", {"pre": PRE, "post": POST})
    shutil.copytree("runs/a", "runs/b")
    edit(Path("runs/a", folder_name(config_of(["placement=post"], 1))), status="running")
    study = study_of("runs/a", "runs/b")
    assert list(study.count().values()) == [6, 6, 0, 0]
    assert {run.folder.parent.name for run in study.results} == {"a", "b"}


def test_sweeps_of_two_questions_are_no_study(capsys):
    make_study("runs/places", {"pre": PRE, "post": POST})
    make_sweep("runs/norms", [({"norm": "layernorm"}, 0, 2.3)], baseline={"norm": "rmsnorm"})
    before = tree("runs")
    assert main(["runs/places", "runs/norms"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.replace(f"{Path('runs').resolve()}/", "") == (
        "places/sweep-quick.json and norms/sweep-quick.json differ in axes ([placement] and "
        "[norm]); a report is about one question: name folders or a sweep-NAME.json of one"
    )
    assert tree("runs") == before


def test_typed_runs_that_must_not_be_compared_with_a_sweep_are_refused():
    make_study("runs/grid", {"pre": PRE, "post": POST})
    typed("runs/own", {"sandwich": SANDWICH}, trainer__steps=80)
    with pytest.raises(ConfigError, match=r"trainer.steps \(horizon\): 80 in"):
        findings_of("runs/grid", "runs/own")


def test_seeds_typed_after_a_look_are_tested_as_that():
    losses = {"pre": PRE, "post": POST}
    seen = [Seen({"placement": name}, [0, 1, 2]) for name in losses]
    own = [planned(config_of([f"placement={p}"], s), {}).identity for p in losses for s in PRE]
    make_study("runs/grid", losses, looks=[Look(seen, {}, own)])
    typed("runs/more", {"pre": {3: 2.3}})
    assert study_of("runs/grid", "runs/more").held_looks == 1  # no pair was added
    typed("runs/more", {"post": {3: 2.43}})
    assert study_of("runs/grid", "runs/more").held_looks == 2


def test_a_narrowed_sweep_misses_nothing_that_it_did_not_ask_for():
    """What has a result counts, and what was given up makes the tests those of a look."""
    losses = {"pre": {**PRE, 3: 2.3}, "post": {**POST, 3: 2.4}, "peri": {0: 2.3, 1: 2.3}}
    record = make_study("study", losses)
    for placement, seed in (("post", 3), ("peri", 0), ("peri", 1)):
        shutil.rmtree(Path("study", folder_name(config_of([f"placement={placement}"], seed))))
    study = study_of("study")
    assert study.count()["missing"] == 3
    assert findings(study).comparisons["post"].verdict == "not decided yet"
    with edited(record) as values:
        values["asked"] = asdict(Asked([{"placement": p} for p in ("pre", "post")], [0, 1, 2]))
    study = study_of("study")
    assert [variant.name for variant in study.variants] == ["pre", "post"]
    assert (study.count()["runs"], study.count()["missing"]) == (7, 0)
    assert study.held_looks == 2
    assert [run.stage for run in study.runs].count("given up") == 3


def typed_at(overrides, loss, seed=0, began=1e9, **keys):
    folder = make_run("study", config_of(overrides, seed, **keys), loss)
    os.utime(folder / "config.yaml", (began, began))
    return folder


def test_a_rate_that_differs_next_to_a_choice_is_told_next_to_the_verdict():
    for seed in (0, 1):
        typed_at([], 2.30 + 0.01 * seed, seed)
        typed_at(["norm=layernorm"], 2.31, seed, optimizer__lr=0.002)
    table = text(baseline={"norm": "rmsnorm"})
    assert by_name(table, "layernorm")["verdict"] != "baseline"
    told = next(line for line in table.splitlines() if "differs in more" in line)
    assert "it differs in more (rmsnorm in brackets): " in told
    assert "optimizer.lr 0.002 (0.003)" in told


def test_two_runs_that_differ_in_one_choice_are_compared_with_the_default(capsys):
    typed_at(["norm=layernorm"], 2.31, began=1e9)
    typed_at([], 2.30, began=2e9)
    assert main(["study"]) == 0
    said = capsys.readouterr().err
    assert "The baseline is norm=rmsnorm, the project's default; --baseline" in said
    assert max(map(len, said.splitlines())) <= 80
    row = by_name(text(), "layernorm")
    assert (row["difference"], row["verdict"]) == ("+0.0100", "not decided yet")


def test_a_key_without_a_default_takes_the_earlier_run():
    typed_at([], 2.31, began=2e9, optimizer__lr=2e-3)
    earlier = typed_at([], 2.30, began=1e9, optimizer__lr=4e-3)
    table = text()
    assert f"optimizer.lr=0.004, the earliest run ({earlier.name})" in table
    assert by_name(table, "lr=0.002")["difference"] == "+0.0100"
    assert by_name(text(baseline={"optimizer.lr": 2e-3}), "lr=0.004")["difference"] == "-0.0100"
    assert "earliest" not in text(baseline={})


def test_runs_that_differ_in_several_keys_are_told_what_to_type():
    typed_at(["norm=layernorm", "placement=post"], 2.31)
    typed_at([], 2.30)
    table = text()
    assert "the runs differ in norm, placement" in table
    assert "--baseline norm=rmsnorm placement=pre" in table
    assert "difference" not in table.partition("\n\n| ")[2].splitlines()[0]
    row = by_name(text(baseline={"norm": "rmsnorm", "placement": "pre"}), "layernorm post")
    assert row["difference"] == "+0.0100"


def test_runs_whose_losses_are_no_pair_are_reported_without_a_difference():
    typed_at([], 2.31)
    typed_at([], 2.30, trainer__steps=80)
    assert "Nothing is compared. trainer.steps (horizon): " in text().replace("\\", "")
