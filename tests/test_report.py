"""The report of run folders: its numbers by hand, what it refuses to mix, what it notices."""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from run_folders import (
    config_of,
    folder_name,
    make_record,
    make_run,
    make_study,
    planned,
    tuned,
)

from transformer_norms.errors import ConfigError
from transformer_norms.report import rates, write_report, writing
from transformer_norms.report.__main__ import main
from transformer_norms.report.drawing import apart, style
from transformer_norms.report.escape import cell, latex, markdown
from transformer_norms.report.figure import Curve, _view
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.table import summary_lines

pytestmark = pytest.mark.area("sweeps")
PRE = {0: 2.30, 1: 2.32, 2: 2.31}
SANDWICH = {0: 2.28, 1: 2.303, 2: 2.291}
T_95 = 4.302652729911275  # Student's 97.5 % point with 2 degrees of freedom, from tables


@pytest.fixture(autouse=True)
def here(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "drawn" not in request.node.name:  # pictures take longer than the rest
        monkeypatch.setattr(writing, "curves", lambda findings: {})
        monkeypatch.setattr(writing, "rates", lambda study: {})
    return tmp_path


def tree(folder="."):
    return {
        str(file): (file.lstat().st_mtime_ns, file.read_bytes())
        for file in sorted(Path(folder).rglob("*"))
        if file.is_file() and not file.is_symlink()
    }


def text(study="study", **options):
    return write_report([Path(study)], **options)[0].read_text()


def rows(study="study"):
    return list(csv.DictReader(Path(study, "results.csv").read_text().splitlines()))


def line_of(table, start):
    """The words of the first table row that begins with `start`."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {start} "))
    return [word.strip() for word in line.strip("|").split("|")]


def by_name(table, variant):
    return dict(zip(line_of(table, "variant"), line_of(table, variant), strict=True))


def folder(placement, seed):
    return Path("study", folder_name(config_of([f"placement={placement}"], seed)))


def edit(run, **changed):
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_the_tables_numbers_are_those_of_arithmetic_by_hand():
    make_study("study", {"pre": PRE, "sandwich": SANDWICH})
    row = by_name(text(), "sandwich")
    differences = np.array([-0.02, -0.017, -0.019])
    half = T_95 * np.sqrt(((differences - differences.mean()) ** 2).sum() / 2) / np.sqrt(3)
    assert row["difference"] == f"{differences.mean():+.4f}" == "-0.0187"
    low, high = differences.mean() - half, differences.mean() + half
    assert row["95 % interval"] == f"{low:+.4f} to {high:+.4f}"
    assert row["validation loss, mean ± sd"] == "2.2913 ± 0.0115"
    assert (row["seeds"], row["median"], row["verdict"]) == ("3", "2.2910", "better")
    assert by_name(text(), "pre")["verdict"] == "baseline"


def test_results_csv_has_every_run_in_full_precision_with_what_it_came_from():
    make_study("study", {"pre": {0: 2.3000000000000007}, "post": {0: 2.4}})
    text()
    first, second = rows()
    assert (first["study"], first["variant"], first["stage"]) == ("study", "pre", "result")
    assert float(first["val_loss"]) == 2.3000000000000007
    assert first["run"] == folder("pre", 0).name
    summary = json.loads((folder("pre", 0) / "summary.json").read_text())
    assert first["identity"] == summary["identity"] in first["identity"]
    assert first["data_fingerprint"] == "f" * 64
    assert first["batch_chain"] == "batches of seed 0"
    names = "commit dirty torch device threads precision val_tokens steps".split()
    assert [first[name] for name in names] == [
        "c" * 40, "False", "2.13.0", "a processor, 2 cores", "1", "fp32", "131072", "40"
    ]  # fmt: skip
    assert (second["placement"], second["seed"], second["status"]) == ("post", "0", "finished")


def test_the_test_loss_counts_where_every_finished_run_has_one():
    make_study("study", {"pre": PRE, "sandwich": SANDWICH})
    for placement, losses in {"pre": PRE, "sandwich": SANDWICH}.items():
        for seed, loss in losses.items():
            edit(folder(placement, seed), test_loss=loss + 0.5)
    assert by_name(text(), "pre")["test loss, mean ± sd"] == "2.8100 ± 0.0100"
    edit(folder("pre", 0), test_loss=None)
    assert by_name(text(), "pre")["validation loss, mean ± sd"] == "2.3100 ± 0.0100"


OTHER = {
    "data": ({"data__documents": 7}, "data.documents", "12000", "7"),
    "split": ({"data__split": "tail"}, "data.split", "hash", "tail"),
    "tokenizer": ({"tokenizer__type": "gpt2"}, "tokenizer.type", "byte", "gpt2"),
    "val_tokens": ({"data__val_tokens": 99}, "data.val_tokens (evaluation)", "131072", "99"),
    "context": ({"model__context": 64}, "model.context (evaluation)", "32", "64"),
    "precision": ({"trainer__precision": "bf16"}, "trainer.precision", "fp32", "bf16"),
    "steps": ({"trainer__steps": 80}, "trainer.steps (horizon)", "40", "80"),
    "batch": ({"trainer__batch_size": 8}, "trainer.batch_size (horizon)", "16", "8"),
}


def two_runs(changed, seeds=(0, 0), placements=("pre", "post"), **summary):
    """A sweep of two runs; the second has other keys, or another summary."""
    one = config_of([f"placement={placements[0]}"], seeds[0])
    other = config_of([f"placement={placements[1]}"], seeds[1], **changed)
    runs = [planned(c, {"placement": c["choices"]["placement"]}) for c in (one, other)]
    make_record("study", runs)
    return make_run("study", one, 2.3), make_run("study", other, 2.4, **summary)


@pytest.mark.parametrize("what", OTHER)
def test_runs_of_another_field_are_not_compared_and_nothing_is_written(what, capsys):
    changed, field, here, there = OTHER[what]
    runs = two_runs(changed)
    before = tree()
    assert main(["study"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith(field)
    for word in (here, there, *(run.name for run in runs)):
        assert word in said.err
    assert tree() == before


@pytest.mark.parametrize("what", OTHER)
def test_nor_are_they_averaged_as_seeds_of_one_variant(what):
    changed, field, *_ = OTHER[what]
    two_runs(changed, seeds=(0, 1), placements=("pre", "pre"))
    with pytest.raises(ConfigError, match=field.split()[0]):
        text()


@pytest.mark.parametrize(
    ("summary", "field"),
    [
        ({"batch_chain": "others"}, "batch_chain"),
        ({"data": {"identity": {}, "fingerprint": "0" * 64}}, "data.fingerprint"),
    ],
)
def test_pairs_that_read_other_batches_or_tokens_are_refused(summary, field):
    one, other = two_runs({}, **summary)
    with pytest.raises(ConfigError, match=field) as error:
        text()
    assert one.name in str(error.value)
    assert other.name in str(error.value)
    assert not Path("study/table.md").exists()


def test_a_field_may_be_an_axis_of_its_own_where_each_level_has_its_baseline():
    runs = []
    for steps in (40, 80):
        for placement, loss in (("pre", 2.3), ("post", 2.4)):
            for seed in (0, 1):
                config = config_of([f"placement={placement}"], seed, trainer__steps=steps)
                values = {"placement": placement, "trainer.steps": steps}
                runs.append(planned(config, values))
                make_run("study", config, loss + 0.01 * seed * (placement == "post") - steps / 400)
    make_record("study", runs, axes=["placement", "trainer.steps"])
    table = text()
    assert by_name(table, "post steps=40")["difference"] == "+0.1050"
    assert by_name(table, "post steps=80")["difference"] == "+0.1050"
    with pytest.raises(ConfigError, match="horizon"):
        text(baseline={"placement": "pre", "trainer.steps": 40})


def test_a_diverged_run_counts_as_its_initial_loss_and_as_infinity_in_the_median():
    make_study("study", {"pre": PRE, "post": {0: 2.3, 1: None, 2: None}})
    edit(folder("post", 2), initial_loss=5.7)
    table = text()
    row = by_name(table, "post")
    assert row["validation loss, mean ± sd"].startswith(f"{(2.3 + 5.5 + 5.7) / 3:.4f}")
    assert (row["median"], row["verdict"]) == ("diverged", "diverged")
    assert "2 of 3 (9 to 99 %)" in row["diverged"]
    assert row["difference"] == f"{(0.0 + 3.18 + 3.39) / 3:+.4f}"
    assert not {"95 % interval", "p (Holm)", "detectable"} & set(line_of(table, "variant"))
    assert "where a run diverged, only the difference is given" in table


def test_a_diverged_run_that_somebody_deleted_is_noticed(capsys):
    make_study("study", {"pre": PRE, "post": {0: 2.3, 1: None, 2: 2.31}})
    assert main(["study"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    table = Path("study", "table.md")
    expected = {"report": str(table), "runs": 6, "finished": 5, "diverged": 1, "missing": 0}
    assert answer == expected
    shutil.rmtree(folder("post", 1))
    assert main(["study"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer == expected | {"diverged": 0, "missing": 1}
    assert by_name(table.read_text(), "post")["missing"] == "1"
    assert f"missing of post: {folder('post', 1).name} (missing, result)" in table.read_text()
    assert [row["status"] for row in rows()].count("missing") == 1


@pytest.mark.parametrize("status", ["failed", "running", "preempted"])
def test_a_run_that_has_not_ended_is_missing_and_named(status):
    make_study("study", {"pre": PRE, "post": PRE})
    edit(folder("post", 1), status=status, val_loss=None)
    table = text()
    assert by_name(table, "post")["missing"] == "1"
    assert by_name(table, "post")["seeds"] == "2"
    assert f"{folder('post', 1).name} ({status}, result)" in table


def test_runs_that_no_sweep_planned_are_listed_and_left_out():
    make_study("study", {"pre": PRE, "post": PRE})
    extra = make_run("study", config_of(["placement=post"], 7), 0.5)
    table = text()
    assert by_name(table, "post")["seeds"] == "3"
    assert f"planned by no sweep, and left out: {extra.name}" in table
    row = next(row for row in rows() if row["run"] == extra.name)
    assert (row["stage"], row["placement"], row["val_loss"]) == ("unplanned", "post", "0.5")


def test_the_newest_attempt_counts_and_the_report_says_so():
    make_study("study", {"pre": PRE, "post": PRE})
    make_run("study", config_of(["placement=post"], 1), 2.0, attempt=2)
    make_run("study", config_of(["placement=post"], 1), 2.92, attempt=10)
    table = text()
    mean = f"{(2.30 + 2.92 + 2.31) / 3:.4f}"
    assert by_name(table, "post")["validation loss, mean ± sd"].startswith(mean)
    name = folder("post", 1).name
    assert f"a newer attempt counts instead of: {name}, {name}-2" in table
    assert [row["stage"] for row in rows()].count("superseded") == 2


def test_two_sweeps_of_one_question_are_put_together_and_other_ones_refused(capsys):
    make_study("study", {"pre": PRE, "post": PRE})
    config = config_of(["placement=peri"])
    runs = [planned(config, {"placement": "peri"})]
    runs += [planned(config_of(["placement=pre"]), {"placement": "pre"})]
    make_run("study", config, 2.2)
    make_record("study", runs, name="more")
    assert list(read_study([Path("study")]).count().values()) == [7, 7, 0, 0]
    assert by_name(text(), "peri")["seeds"] == "1"
    make_record("study", runs, name="more", axes=["norm"])
    assert main(["study"]) == 2
    assert "sweep-more.json and sweep-quick.json differ in axes" in capsys.readouterr().err
    assert main(["study/sweep-more.json", "--out", "alone"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 2
    assert Path("alone/table.md").is_file()


def test_without_a_record_runs_that_differ_in_their_seed_alone_are_a_variant():
    for placement in ("pre", "post"):
        for rate in (0.003, 0.01):
            for seed, loss in PRE.items():
                config = config_of([f"placement={placement}"], seed, optimizer__lr=rate)
                make_run("study", config, loss + rate)
    table = text()
    assert "--baseline" in table
    assert by_name(table, "post lr=0.01")["seeds"] == "3"
    assert "verdict" not in line_of(table, "variant")
    table = text(baseline={"placement": "pre"})
    assert by_name(table, "post lr=0.01")["verdict"] == "identical"
    assert by_name(table, "pre lr=0.003")["verdict"] == "baseline"
    table = text(baseline={"placement": "pre", "optimizer.lr": 0.003})
    assert by_name(table, "pre lr=0.01")["difference"] == "+0.0070"


def test_variants_are_told_apart_by_a_key_that_not_all_of_them_have():
    make_run("study", config_of(["norm=dyt"]), 2.3)
    for eps in (1e-5, 1e-3):
        make_run("study", config_of(["norm=rmsnorm"], norm__eps=eps), 2.3)
    names = {v.name for v in read_study([Path("study")]).variants}
    assert names == {"dyt", "rmsnorm eps=1e-05", "rmsnorm eps=0.001"}


def test_two_variants_that_come_to_one_run_both_have_it():
    runs = []
    for seed, loss in PRE.items():
        config = config_of(["placement=pre"], seed)
        make_run("study", config, loss)
        runs += [planned(config, {"placement": "pre", "final_norm": n}) for n in ("auto", "always")]
    make_record("study", runs, axes=["placement", "final_norm"], baseline={"final_norm": "always"})
    assert by_name(text(), "pre final_norm=auto")["verdict"] == "identical"
    assert list(read_study([Path("study")]).count().values()) == [3, 3, 0, 0]


def test_seeds_with_two_runs_of_one_sweep_name_what_differs():
    runs = []
    for steps in (40, 80):
        config = config_of(["placement=pre"], trainer__steps=steps)
        make_run("study", config, 2.3)
        runs.append(planned(config, {"placement": "pre"}))
    make_record("study", runs)
    with pytest.raises(ConfigError, match=r"trainer.steps \(horizon\): 40"):
        text()


def test_a_variants_name_leaves_out_what_follows_from_its_placement():
    for placement in ("pre", "post"):
        make_run("study", config_of([f"placement={placement}"]), 2.3)
    assert [v.name for v in read_study([Path("study")]).variants] == ["post", "pre"]
    named = read_study([Path("study")], {"placement": "pre"}).variants
    assert [v.name for v in named] == ["pre", "post"]  # the baseline first
    make_run("study", config_of(["placement=post", "final_norm=always"]), 2.3)
    names = {v.name for v in read_study([Path("study")]).variants}
    assert names == {"pre final_norm=norm", "post final_norm=none", "post final_norm=always"}


def test_a_variants_name_leaves_out_keys_that_follow_from_the_one_typed():
    for width in (64, 128):
        make_run("study", config_of([f"model.width={width}"]), 2.3)
    assert {v.name for v in read_study([Path("study")]).variants} == {"width=64", "width=128"}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--baseline", "placement=sandwich"], "no variant is that; there are pre; post"),
        (["--baseline", "norm=rmsnorm"], "the sweep varies placement"),
        (["--baseline", "placement"], "is no KEY=VALUE"),
        (["--effect", "nan"], "a number of nats"),
        (["--out", "study/sweep-quick.json"], "is no folder"),
        (["nowhere"], "nowhere: is no run folder"),
        (["empty"], "empty: there is no run in it"),
        (["."], "name one: ./study"),
        (["study", "--out", "/dev/full/x"], "is no folder"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(typed, said, capsys):
    make_study("study", {"pre": PRE, "post": PRE})
    Path("empty").mkdir()
    assert main(["study", *typed] if typed[0].startswith("--") else typed) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not Path("study/table.md").exists()


def test_seeds_that_two_runs_claim_are_refused():
    make_study("study", {"pre": PRE, "post": PRE})
    shutil.copytree("study", "copy")
    with pytest.raises(ConfigError, match="seed 0 has two runs"):
        write_report([Path("study"), Path("copy")])


def tuning_study(**changed):
    """pre tried at four rates, post at three of them, where it diverged at the last."""
    tried = {
        "pre": {1e-3: 2.5, 1e-2: 2.3, 1e-1: 2.6, 1.0: 5.0},
        "post": {1e-3: 2.4, 1e-2: 2.9, 1.0: None},
    }
    runs = []
    for placement, losses in tried.items():
        variant = {"placement": placement}
        for rate, loss in losses.items():
            config = config_of([f"placement={placement}"], 100, optimizer__lr=rate)
            runs.append(planned(config, variant, "tune", {"optimizer.lr": rate}))
            make_run("study", config, loss, status="diverged" if loss is None else "finished")
        best = min((rate for rate in losses if losses[rate]), key=losses.get)
        for seed, loss in PRE.items():
            config = config_of([f"placement={placement}"], seed, optimizer__lr=best)
            runs.append(planned(config, variant, "result", {"optimizer.lr": best}))
            make_run("study", config, loss)
    facts = {
        "tune": {"optimizer.lr": [1e-3, 1e-2, 1e-1, 1.0]},
        "tune_seeds": [100],
        "tuned": [
            tuned({"placement": "pre"}, {"optimizer.lr": 1e-2}),
            tuned({"placement": "post"}, {"optimizer.lr": 1e-3}, "optimizer.lr"),
        ],
    }
    return make_record("study", runs, **facts | changed)


def test_the_audit_of_the_tuning_shows_losses_sensitivity_and_what_was_unfair():
    tuning_study()
    audit = text().partition("## Tuning")[2]
    pre, post = by_name(audit, "pre"), by_name(audit, "post")
    assert float(pre["sensitivity"]) == pytest.approx((2.5 + 2.3 + 2.6 + 5.0) / 4 - 2.3, abs=1e-4)
    assert post["sensitivity"] == ""  # over three of the four rates it would be another measure
    assert (pre["0.01"], post["0.1"], post["1"]) == ("2.3000", "", "5.5000 (diverged)")
    assert (pre["best optimizer.lr"], post["best optimizer.lr"]) == ("0.01", "0.001 (edge)")
    assert "0.001 to 1, 3.0 decades" in audit
    assert "UNEQUAL: variants were tried at 3 to 4 points" in audit
    assert "post: EDGE" in audit
    assert "no seed was used for tuning and for a result" in audit
    assert by_name(text(), "post")["seeds"] == "3"  # tuning runs make no verdict


def test_a_tuning_run_that_is_missing_or_has_a_results_seed_is_told():
    path = tuning_study()
    record = json.loads(path.read_text())
    for run in record["runs"]:
        run["seed"] = 0 if run["stage"] == "tune" else run["seed"]
    path.write_text(json.dumps(record))
    shutil.rmtree(Path("study", record["runs"][0]["folder"]))
    audit = text()
    assert "SHARED: seeds of tuning and of results: 0" in audit
    assert "pre: 1 of its tuning runs are missing" in audit


def verdict_on(variant, table):
    return next(line for line in table.splitlines() if line.startswith(f"- {variant} "))


def test_the_verdict_itself_says_what_was_unfair_in_the_tuning():
    path = tuning_study()
    said = verdict_on("post", text())
    assert said.endswith(
        "; the best optimizer.lr of post is the last that was tried"
        "; post was tuned at 3 points and pre at 4"
    )
    record = json.loads(path.read_text())
    record["tuned"][0]["edge"] = ["optimizer.lr"]
    record["runs"] = [run for run in record["runs"] if run["tuned"] != {"optimizer.lr": 0.1}]
    for run in record["runs"]:
        run["seed"] = 2 if run["stage"] == "tune" else run["seed"]
    path.write_text(json.dumps(record))
    said = verdict_on("post", text())
    assert "the best optimizer.lr of pre is the last that was tried" in said
    assert said.endswith("; tuning had seeds of the results: 2")
    assert "points" not in said


def test_a_verdict_on_a_fair_tuning_says_nothing_of_it():
    path = tuning_study()
    record = json.loads(path.read_text())
    record["tuned"][1]["edge"] = []
    record["runs"] = [run for run in record["runs"] if run["tuned"] != {"optimizer.lr": 0.1}]
    path.write_text(json.dumps(record))
    assert verdict_on("post", text()) == "- post has exactly the losses of pre with 3 seeds"


def test_a_variant_that_diverged_at_every_rate_stands_in_the_table():
    path = tuning_study(tuned=[tuned({"placement": "post"}, None)])
    record = json.loads(path.read_text())
    kept = lambda run: run["stage"] == "tune" or run["variant"] == {"placement": "pre"}  # noqa: E731
    path.write_text(json.dumps(record | {"runs": list(filter(kept, record["runs"]))}))
    table = text()
    assert "post diverged at every value tried (3 runs)" in table
    assert "its best" not in table
    assert by_name(table, "post")["verdict"] == "diverged"


def test_an_edge_is_said_of_the_key_that_is_at_one():
    tuning_study(tuned=[tuned({"placement": "pre"}, {"optimizer.lr": 1e-2}, "schedule.warmup")])
    audit = text().partition("## Tuning")[2]
    assert by_name(audit, "pre")["best optimizer.lr"] == "0.01"
    assert "pre: EDGE: its best schedule.warmup" in audit


def test_a_result_at_a_rate_that_a_wider_grid_has_beaten_does_not_count():
    path = tuning_study()
    record = json.loads(path.read_text())
    better = tuned({"placement": "pre"}, {"optimizer.lr": 1e-1})
    runs = [planned(config_of(["placement=pre"], seed, optimizer__lr=1e-1),
                    {"placement": "pre"}, "result", better.best) for seed in PRE]  # fmt: skip
    for seed in PRE:
        make_run("study", config_of(["placement=pre"], seed, optimizer__lr=1e-1), 2.0)
    record["runs"] += [asdict(run) for run in runs]
    record["tuned"][0] = asdict(better)
    path.write_text(json.dumps(record))
    table = text()
    assert by_name(table, "pre")["seeds"] == "3"
    assert by_name(table, "pre")["validation loss, mean ± sd"] == "2.0000 ± 0.0000"
    assert [row["stage"] for row in rows()].count("superseded") == 3
    assert "no longer the best of the tuning, and left out: pre-s0-" in table


@pytest.mark.parametrize("rates", [(1e-3, 1e-3), (1e-3, 1e-2)])
def test_tuning_runs_of_two_horizons_are_not_put_together(rates):
    runs = []
    for rate, steps in zip(rates, (40, 80), strict=True):
        config = config_of(["placement=pre"], 100, optimizer__lr=rate, trainer__steps=steps)
        runs.append(planned(config, {"placement": "pre"}, "tune", {"optimizer.lr": rate}))
        make_run("study", config, 2.3)
    make_record("study", runs, tune={"optimizer.lr": [1e-3, 1e-2]}, tune_seeds=[100])
    with pytest.raises(ConfigError, match=r"trainer.steps \(horizon\)"):
        text()


def test_a_warning_of_all_variants_is_said_once():
    make_study("study", {"pre": PRE, "post": PRE})
    for placement in ("pre", "post"):
        edit(folder(placement, 0), warnings=["thin ice"])
    edit(folder("post", 1), warnings=["deep water"])
    assert [line for line in text().splitlines() if "thin" in line or "deep" in line] == [
        "- all: thin ice",
        "- post: deep water",
    ]


def test_folders_may_be_words_and_one_alone_is_told_to_be_a_list():
    make_study("study", {"pre": PRE})
    assert write_report(["study"], out="elsewhere")[0] == Path("elsewhere/table.md")
    with pytest.raises(ConfigError, match=r"such as \['study'\]"):
        write_report("study")


def test_what_differs_beyond_the_axis_stands_beside_the_verdict():
    make_study("study", {"pre": PRE, "post": PRE})
    edit(folder("post", 0), parameters=115200, flops=6100.0 * 40 * 32 * 16, warnings=["thin ice"])
    edit(folder("post", 1), threads=2, source={"block.py": "cc", "new.py": "dd"})
    edit(folder("post", 2), versions={"torch": "2.14.0"}, commit="d" * 40, dirty=True)
    beside = next(line for line in text().splitlines() if "differs in more" in line)
    for said in (
        "architecture.embed_scale sqrt(d) (none)",
        "final_norm none (norm)",
        "parameters +128 (of 115,072)",
        "FLOPs per token +1.67%, more than 1% apart",
        "threads mixed: 1 in 5, 2 in 1",
        "torch mixed: 2.13.0 in 5, 2.14.0 in 1",
        "code mixed: block.py differ",
        f"commit mixed: {'c' * 40} in 5, {'d' * 40} in 1",
    ):
        assert said in beside
    assert "placement.both" not in beside  # that is what was asked
    assert "post: thin ice" in text()


def test_the_effect_worth_naming_is_the_sweeps_or_what_is_typed():
    make_study("study", {"pre": PRE, "sandwich": SANDWICH}, effect=0.5)
    assert by_name(text(), "sandwich")["verdict"] != "better"
    assert by_name(text(effect=0.001), "sandwich")["verdict"] == "better"


EVIL = '=cmd|"/C calc"!A1\x1b[31m\n<script>x</script> \\input{/etc/passwd} $x$ & # _ ^ ~ % |\u202e'


def test_anybodys_text_is_inert_in_every_file():
    make_study("study", {"pre": PRE, "post": PRE}, question=EVIL)
    edit(folder("post", 0), warnings=[EVIL], device=EVIL, commit="+1")
    table = text()
    tex = Path("study/table.tex").read_text()
    results = Path("study/results.csv").read_text()
    for written in (table, tex, results):
        assert all(c.isprintable() or c == "\n" for c in written)
    assert "<script>" not in table.replace("\\<script", "")
    assert "\n\\input" not in tex
    assert [row["device"][:5] for row in rows()].count("'=cmd") == 1
    assert [row["commit"] for row in rows()].count("'+1") == 1
    assert len({line.count(" | ") for line in table.splitlines() if line.startswith("| ")}) == 1


@pytest.mark.parametrize("start", ["=1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_a_spreadsheet_takes_no_text_for_a_formula(start):
    assert cell(start).startswith("'")
    assert cell(-1.5) == -1.5


def test_markdown_and_latex_specials_are_escaped():
    assert markdown("a|b<c>[d](e)`f`*g*") == r"a\|b\<c\>\[d\](e)\`f\`\*g\*"
    assert latex("50 %_{x} \\input") == r"50 \%\_\{x\} \textbackslash{}input"


def break_link(run):
    shutil.move(run / "summary.json", "elsewhere.json")
    (run / "summary.json").symlink_to(Path("elsewhere.json").absolute())


def break_folder(run):
    shutil.move(run, "elsewhere")
    run.symlink_to(Path("elsewhere").absolute())


def break_pipe(run):
    (run / "summary.json").unlink()
    os.mkfifo(run / "summary.json")


def break_size(run):
    with (run / "config.yaml").open("r+b") as file:
        file.truncate(1 << 40)


def replaced(name, content):
    return lambda run: (run / name).write_bytes(content)


HOSTILE = {
    "a link": (break_link, "is a link"),
    "a linked folder": (break_folder, "is a link"),
    "a pipe": (break_pipe, "is no file"),
    "a terabyte": (break_size, "is longer than"),
    "garbage": (replaced("summary.json", b"\x00\xff{"), "not readable as JSON"),
    "a list": (replaced("summary.json", b"[]"), "summary.json"),
    "brackets": (replaced("summary.json", b"[" * 100_000), "not readable as JSON"),
    "infinity": (lambda run: edit(run, val_loss=float("inf")), "Infinity is no JSON"),
    "a word for a number": (lambda run: edit(run, val_loss="2.3"), "val_loss: input should be"),
    "no loss": (lambda run: edit(run, val_loss=None), "val_loss: a finished run has one"),
    "an alias": (replaced("config.yaml", b"a: &a [1]\nb: [*a, *a]\n"), "no anchors"),
    "a tag": (
        replaced("config.yaml", b"a: !!python/object/apply:os.system [touch canary]\n"),
        "aliases or tags",
    ),
    "a deep config": (replaced("config.yaml", b"[" * 50_000), "nested too deeply"),
    "half a config": (replaced("config.yaml", b"choices: {}\nseed: 0\n"), "is no run's config"),
    "no config": (lambda run: (run / "config.yaml").unlink(), "No such file"),
    "no record": (replaced("../sweep-quick.json", b'{"name": "../../x"}'), "sweep-quick.json: "),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_folder_is_one_line(what, capsys):
    make_study("study", {"pre": {0: 2.3}, "post": {0: 2.4}})
    breaks, said = HOSTILE[what]
    breaks(folder("pre", 0))
    assert main(["study"]) == 2
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    assert str(Path("study").absolute()) in printed.err
    assert said in printed.err
    assert printed.out == ""
    assert not any(Path(name).exists() for name in ("study/table.md", "canary"))


@pytest.mark.parametrize("rate", ["1e999", "9" * 400])
def test_a_rate_that_no_figure_has_room_for_is_left_out_of_it(rate):
    path = tuning_study()
    path.write_text(path.read_text().replace("0.001", rate))
    assert "## Tuning" not in text()


def test_a_terminal_gets_the_table_in_80_columns():
    names = {"pre": "pre", "post": "a_placement_of_" + "many_" * 20 + "words"}
    runs = []
    for placement, name in names.items():
        for seed, loss in PRE.items():
            config = config_of([f"placement={placement}"], seed)
            runs.append(planned(config, {"placement": name}))
            make_run("study", config, loss)
    make_record("study", runs)
    lines = summary_lines(findings(read_study([Path("study")])))
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == "pre 3 2.3100 ± 0.0100 baseline".split()
    assert "..." in lines[2]
    assert lines[2].endswith("+0.0000     identical")


def test_a_report_drawn_again_unchanged_rewrites_nothing():
    make_study("study", {"pre": PRE, "post": {0: 2.3, 1: None, 2: 2.31}})
    write_report([Path("study")])
    before = tree()
    assert {"study/curves.svg", "study/curves.png"} <= before.keys()
    assert write_report([Path("study")])[0] == Path("study/table.md")
    assert tree() == before


def test_curves_are_drawn_from_whatever_was_measured():
    make_study("study", {"pre": {0: None, 1: None}, "post": PRE})
    (folder("pre", 0) / "metrics.jsonl").write_text("")
    bad = '{"step": 1, "tokens": 5, "val/loss": null}\n{"step": 2, "tokens": "x", "val/loss": 2}\n'
    (folder("pre", 1) / "metrics.jsonl").write_text(bad + '{"step": 3, "tokens": 1e999}\n')
    (folder("post", 0) / "metrics.jsonl").unlink()
    text()
    assert Path("study/curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_ends_above_where_they_began_leaves_the_others_in_view():
    falling, wild = np.array([[0.0, 10, 20], [5.5, 4, 3]]), np.array([[0.0, 10, 20], [5.5, 9, 9e5]])
    low, high = _view([Curve(falling, False), Curve(wild, False)])
    assert low < 3 < 4 < high < 5.5


def test_rates_are_drawn_where_something_was_tuned():
    tuning_study()
    text()
    drawn = Path("study/rates.svg").read_text()
    assert "<!-- post -->" in drawn
    assert "<!-- optimizer.lr -->" in drawn


def test_the_ring_is_drawn_at_the_rate_that_was_chosen_even_where_one_of_its_seeds_diverged(
    monkeypatch,
):
    tried = {1e-3: (4.0, 4.2), 1e-2: (2.0, None), 1e-1: (None, None)}
    runs = []
    for rate, losses in tried.items():
        for seed, loss in enumerate(losses, start=100):
            config = config_of(["placement=pre"], seed, optimizer__lr=rate)
            runs.append(planned(config, {"placement": "pre"}, "tune", {"optimizer.lr": rate}))
            make_run("study", config, loss, status="diverged" if loss is None else "finished")
    best = tuned({"placement": "pre"}, {"optimizer.lr": 1e-2})
    make_record("study", runs, tune={"optimizer.lr": list(tried)}, tuned=[best])
    figures = []
    monkeypatch.setattr(rates, "saved", lambda figure, kind: figures.append(figure) or b"")
    rates.rates(read_study([Path("study")]))
    lines = figures[0].axes[0].lines
    drawn = [(line.get_marker(), line.get_xydata().tolist()) for line in lines]
    top = figures[0].axes[0].get_ylim()[1]
    mean = (2.0 + 5.5) / 2
    assert ("o", [[1e-3, 4.1], [1e-2, mean]]) in drawn
    assert [at for marker, at in drawn if marker == "x"] == [[[1e-2, top]], [[1e-1, top]]]
    rings = [line for line in lines if line.get_markerfacecolor() == "none"]
    assert [ring.get_xydata().tolist() for ring in rings] == [[[1e-2, mean]]]


def test_names_at_the_lines_do_not_overlap_and_keep_their_order():
    wanted = [0.5, 0.51, 0.0, 0.52, 1.0, 0.99]
    placed = apart(wanted, 0.1, 0.0, 1.0)
    assert np.argsort(placed).tolist() == np.argsort(wanted).tolist()
    assert np.diff(sorted(placed)).min() >= 0.1 - 1e-12
    assert min(placed) >= 0
    assert max(placed) <= 1
    assert np.mean(sorted(placed)[1:4]) == pytest.approx(0.51)  # moved evenly to both sides
    assert np.diff(sorted(apart([0.5] * 30, 0.1, 0.0, 1.0))) == pytest.approx(1 / 29)


def test_thirty_variants_have_styles_of_their_own_that_differ_in_grey():
    styles = [style(place) for place in range(30)]
    assert len({str(one) for one in styles}) == 30
    greys = [np.dot([int(c[i : i + 2], 16) for i in (1, 3, 5)], [0.299, 0.587, 0.114])
             for c, _ in styles[:6]]  # fmt: skip
    assert np.diff(greys).min() > 12


def test_the_command_ends_with_one_json_line_and_needs_no_torch():
    make_study("study", {"pre": {0: 2.3}, "post": {0: 2.4}})
    for placement in ("pre", "post"):  # nothing to draw, which takes longer than the rest
        edit(folder(placement, 0), status="running")
    code = (
        "import sys; from transformer_norms.report.__main__ import main; "
        "code = main(['study']); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = {"report": "study/table.md", "runs": 2, "finished": 0, "diverged": 0, "missing": 2}
    assert done.stdout.splitlines() == [json.dumps(answer)]
    assert "baseline" in done.stderr


def test_two_variants_that_share_their_runs_are_both_there_and_identical():
    runs = []
    for seed, loss in PRE.items():
        config = config_of(["placement=pre"], seed)
        make_run("study", config, loss)
        runs += [planned(config, {"final_norm": word}) for word in ("auto", "always")]
    make_record("study", runs, axes=["final_norm"], baseline={"final_norm": "auto"})
    study = read_study([Path("study")])
    found = findings(study)
    assert [variant.name for variant in study.variants] == ["final_norm=auto", "final_norm=always"]
    assert found.comparisons["final_norm=always"].verdict == "identical"
    assert study.count() == {"runs": 3, "finished": 3, "diverged": 0, "missing": 0}
