"""What a report says of how fairly the variants were tuned."""

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from own_folder import no_pictures, own_folder  # noqa: F401
from reports import by_name, findings_of, rows, text
from run_folders import (
    PRE,
    config_at,
    config_of,
    edit_each,
    edited,
    make_record,
    make_run,
    make_sweep,
    planned,
    trials_at,
    tuned,
    tuning_study,
)

from transformer_norms.errors import ConfigError
from transformer_norms.report.answer import answer, sentence

STUDY = [Path("study")]


def add_unigram(loss):
    runs = Path("study").glob("*-s*")
    edit_each(runs, lambda summary: {"data": summary["data"] | {"ngrams": {"val": [loss]}}})


@pytest.mark.goal("Q3")
def test_the_audit_of_the_tuning_shows_losses_sensitivity_and_what_was_unfair():
    tuning_study()
    audit = text().partition("## Tuning")[2]
    pre, post = by_name(audit, "pre"), by_name(audit, "post")
    assert float(pre["sensitivity"]) == pytest.approx((2.5 + 2.3 + 2.6 + 5.0) / 4 - 2.3, abs=1e-4)
    assert post["sensitivity"] == ""  # over three of the four rates it would be another measure
    assert (pre["0.01"], post["0.1"], post["1"]) == ("2.3000", "", "diverged")
    assert (pre["best optimizer.lr"], post["best optimizer.lr"]) == ("0.01", "0.001 (edge)")
    assert "0.001 to 1, 3.0 decades" in audit
    assert "UNEQUAL: variants were tried at 3 to 4 points" in audit
    assert "post: EDGE" in audit
    assert "tuning and results have different seeds" in audit
    assert by_name(text(), "post")["seeds"] == "3"  # tuning runs make no verdict


@pytest.mark.goal("Q3")
def test_a_tuning_run_that_is_missing_or_has_a_results_seed_is_told():
    with edited(tuning_study()) as record:
        for run in record["runs"]:
            run["seed"] = 0 if run["stage"] == "tune" else run["seed"]
    shutil.rmtree(Path("study", record["runs"][0]["folder"]))
    audit = text()
    assert "SHARED: seeds of tuning and of results: 0" in audit
    assert "pre: 1 of its tuning runs are missing" in audit


def test_the_budget_and_the_failed_points_of_each_variant_are_named():
    losses = {1e-3: (2.5, 2.4), 1e-2: (2.3, 3.4), 1e-1: (None, None)}
    make_sweep("study", trials=trials_at({"pre": losses, "post": losses}))
    add_unigram(3.3)
    audit = text().partition("## Tuning")[2]
    assert "every variant was tried at the same 3 points of the grid x 2 seeds" in audit
    assert "- pre: trials failed at optimizer.lr=0.01 (1 of 2), optimizer.lr=0.1 (2 of 2)" in audit
    assert by_name(audit, "pre")["0.01"] == "2.3000 (failed)"  # of the run that trained
    assert by_name(audit, "pre")["0.1"] == "diverged"


def test_points_around_each_variants_own_best_stand_in_one_column():
    with edited(tuning_study()) as record:
        for placement, rate in (("pre", 7e-3), ("post", 7e-4)):
            config = config_of([f"placement={placement}"], 100, optimizer__lr=rate)
            run = planned(config, {"placement": placement}, "tune", {"optimizer.lr": rate})
            record["runs"].append(asdict(run))
            make_run("study", config, 2.25)
    audit = text().partition("## Tuning")[2]
    assert by_name(audit, "pre")["at other rates"] == "0.007: 2.2500"
    assert by_name(audit, "post")["at other rates"] == "0.0007: 2.2500"
    assert "0.007" not in by_name(audit, "pre")
    assert "UNEQUAL: variants were tried at 3 to 4 points" in audit  # of the grid
    # The grid that all share makes the sensitivity; the fifth rate is not in it.
    sensitivity = (2.5 + 2.3 + 2.6 + 5.0) / 4 - 2.3
    assert float(by_name(audit, "pre")["sensitivity"]) == pytest.approx(sensitivity, abs=1e-4)


def test_the_sensitivity_leaves_out_what_was_tried_at_some_of_the_rates_alone():
    """A refinement tries other keys at its best rate alone."""
    tried = {(1e-3, 5): 2.5, (1e-2, 5): 2.3, (1e-1, 5): 2.9, (1e-2, 20): 2.1}
    make_sweep("study", trials=[
        ({"placement": "pre"}, 100, loss, {"optimizer.lr": rate, "schedule.warmup": steps})
        for (rate, steps), loss in tried.items()
    ])  # fmt: skip
    row = by_name(text().partition("## Tuning")[2], "pre")
    assert float(row["sensitivity"]) == pytest.approx((2.5 + 2.3 + 2.9) / 3 - 2.3, abs=1e-4)
    assert row["0.01"] == "2.1000"


def test_what_fails_at_every_rate_has_no_sensitivity():
    """Its curve is flat: it would have the best one of all."""
    losses = {"pre": {1e-3: 2.5, 1e-2: 2.3}, "post": {1e-3: 4.01, 1e-2: 4.02}}
    make_sweep("study", trials=trials_at(losses))
    add_unigram(4.0)
    audit = text().partition("## Tuning")[2]
    assert float(by_name(audit, "pre")["sensitivity"]) == pytest.approx(2.4 - 2.3, abs=1e-4)
    assert by_name(audit, "post")["0.01"] == "failed"
    assert by_name(audit, "post")["sensitivity"] == ""


def test_comparisons_that_wait_for_a_tuning_count_as_if_they_were_there(tmp_path):
    """Also where it is the baseline that waits. What is named before stays named."""
    noise = {0: 0.001, 1: -0.002, 2: 0.0015}
    levels = {"pre": 0.0, "post": -0.012, "peri": 0.02}
    variants = [{"schedule.warmup": warmup, "placement": placement}
                for warmup in (5, 20) for placement in levels]  # fmt: skip

    def study(name, *waits):
        results = [
            (one, seed, loss + levels[one["placement"]] * (1 + noise[seed]))
            for one in variants
            if one["schedule.warmup"] == 5 or one["placement"] not in waits
            for seed, loss in PRE.items()
        ]
        record = make_sweep(name, results, tune={"optimizer.lr": [1e-3]}, tune_seeds=[100])
        with edited(record) as values:
            values["runs"] += [asdict(planned(config_at(v, 100), v, "tune")) for v in variants]
        return findings_of(name)

    both = study(tmp_path / "both")
    assert (both.rules.to_come, both.compared_together, len(both.comparisons)) == (0, 4, 4)
    for waits in (["pre"], ["post", "peri"], ["pre", "post"]):
        early = study(tmp_path / "-".join(waits), *waits)
        assert (early.rules.to_come, early.compared_together) == (2, 4)
        assert len(early.comparisons) == 2
        assert all(c.p >= both.comparisons[name].p for name, c in early.comparisons.items())
        for variant in early.study.variants:
            if variant.results and early.study.awaits(early.study.baseline_of(variant).name):
                assert sentence(early, variant).endswith("no value: warmup=20 pre without results")


def test_rates_that_were_chosen_on_the_data_of_the_results_are_told_without_a_test_part():
    tuning_study()
    said = "The tuned values (optimizer.lr) were chosen on the data of the results"
    for told in (True, False):
        assert (said in text()) is told
        assert any(note.startswith(said) for note in answer(findings_of("study")).notes) is told
        edit_each(Path("study").glob("*-s?-*"), lambda s: {"test_loss": s["val_loss"]})


def test_the_verdict_itself_says_what_was_unfair_in_the_tuning():
    path = tuning_study()
    assert (
        "- post is not compared with pre: the best value that post (optimizer.lr=0.001) tried is "
        "the first or the last; more values are needed beyond it; post was tuned at 3 points and "
        "pre at 4\n"
    ) in text()
    assert by_name(text(), "post")["verdict"] == "best rate not found"
    with edited(path) as record:
        record["tuned"][0]["edge"] = ["optimizer.lr"]
        record["runs"] = [run for run in record["runs"] if run["tuned"] != {"optimizer.lr": 0.1}]
        for run in record["runs"]:
            run["seed"] = 2 if run["stage"] == "tune" else run["seed"]
    said = next(line for line in text().splitlines() if line.startswith("- post "))
    assert "that post (optimizer.lr=0.001) and pre (optimizer.lr=0.01) tried is" in said
    assert said.endswith("; tuning had seeds of the results: 2")
    assert "points" not in said


@pytest.mark.goal("Q3")
def test_an_edge_is_said_of_the_key_that_is_at_one():
    tuning_study(tuned=[tuned({"placement": "pre"}, {"optimizer.lr": 1e-2}, "schedule.warmup")])
    audit = text().partition("## Tuning")[2]
    assert by_name(audit, "pre")["best optimizer.lr"] == "0.01"
    assert "pre: EDGE: its best schedule.warmup" in audit
    assert by_name(text(), "pre")["optimizer.lr"] == "0.01"
    shutil.rmtree("study")
    at_edge = tuned({"placement": "pre"}, {"optimizer.lr": 1e-2}, "optimizer.lr")
    tuning_study(tuned=[at_edge])
    assert by_name(text(), "pre")["optimizer.lr"] == "0.01 (edge)"
    assert {row["edge"] for row in rows() if row["variant"] == "pre"} == {"optimizer.lr"}


def test_a_result_at_a_rate_that_a_wider_grid_has_beaten_does_not_count():
    better = tuned({"placement": "pre"}, {"optimizer.lr": 1e-1})
    with edited(tuning_study()) as record:
        for seed in PRE:
            config = config_of(["placement=pre"], seed, optimizer__lr=1e-1)
            make_run("study", config, 2.0)
            run = planned(config, {"placement": "pre"}, "result", better.best)
            record["runs"].append(asdict(run))
        record["tuned"][0] = asdict(better)
    table = text()
    assert by_name(table, "pre")["seeds"] == "3"
    assert by_name(table, "pre")["validation loss, mean ± sd"] == "2.0000 ± 0.0000"
    assert [row["stage"] for row in rows()].count("superseded") == 3
    assert "no longer the best of the tuning: pre-s0-" in table


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
