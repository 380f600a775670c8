"""The report of run folders: its numbers by hand, what counts, what it notices."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from new_process import run_python
from own_folder import no_pictures, own_folder  # noqa: F401
from reports import by_name, findings_of, line_of, rows, study_of, text
from run_folders import (
    DATA,
    PRE,
    SANDWICH,
    config_of,
    edit,
    folder,
    make_record,
    make_run,
    make_study,
    planned,
)

from transformer_norms.errors import ConfigError
from transformer_norms.report.__main__ import main
from transformer_norms.report.table import column_notes, contrast_table, summary_lines, table
from transformer_norms.report.writing import write_report

T_95 = 4.302652729911275  # Student's 97.5 % point with 2 degrees of freedom, from tables


def test_the_tables_numbers_are_those_of_arithmetic_by_hand():
    make_study("study", {"pre": PRE, "sandwich": SANDWICH})
    row = by_name(text(), "sandwich")
    differences = np.array([-0.02, -0.017, -0.019])
    half = T_95 * np.sqrt(((differences - differences.mean()) ** 2).sum() / 2) / np.sqrt(3)
    assert row["difference"] == f"{differences.mean():+.4f}" == "-0.0187"
    low, high = differences.mean() - half, differences.mean() + half
    assert row["95 % interval"] == row["bounds"] == f"{low:+.4f} to {high:+.4f}"
    assert row["validation loss, mean ± sd"] == "2.2913 ± 0.0115"
    assert (row["seeds"], row["median"], row["verdict"]) == ("3", "2.2910", "better")
    assert by_name(text(), "pre")["verdict"] == "baseline"


@pytest.mark.parametrize(
    ("losses", "changed"),
    [
        ({"pre": PRE, "sandwich": SANDWICH, "out": PRE}, {"contrasts": ["sandwich - out"]}),
        ({"pre": {0: 2.3, 1: 2.31}, "post": {0: 2.3, 1: None}}, {}),
        ({"pre": PRE}, {}),
    ],
)
def test_each_column_is_explained_once_in_sentences_of_at_most_25_words(losses, changed):
    make_study("study", losses, **changed)
    found = findings_of("study")
    columns = {**table(found), **contrast_table(found)}
    notes = column_notes(found, columns)
    told = [note.partition(": ")[0] for note in notes]
    assert sorted(told) == sorted({*columns} - {"variant", "contrast", "value", "verdict"} | (
        {"verdict"} if "p" in columns else set()))  # fmt: skip
    sentences = [one for note in notes for one in re.split(r"[.;:] ", note)]
    assert max(len(one.split()) for one in sentences) <= 25
    assert all(f"\n- {note.replace('&', '&amp;')}\n" in f"{text()}" for note in notes)


@pytest.mark.parametrize(("split", "told"), [("hash", True), ("position", False)])
def test_the_test_loss_counts_where_every_finished_run_has_one(split, told):
    """The report says which tokens it is of by the split that was made, not by the typed one."""
    data = {"identity": DATA, "fingerprint": "f" * 64, "corpus": DATA, "split": split}
    for seed, loss in PRE.items():
        config = config_of(["placement=pre"], seed, data__split="hash")
        run = make_run("study", config, loss, test_loss=loss + 0.5, data=data)
    said, part = text(), "The test part is as large as the validation part (data.split=hash)"
    assert "test loss, mean ± sd: final test loss in nats" in said
    assert " 2.8100 ± 0.0100 " in said
    assert (part in said) is told
    edit(run, test_loss=None)
    said = text()
    assert "validation loss, mean ± sd: final validation loss in nats" in said
    assert " 2.3100 ± 0.0100 " in said
    assert part not in said


@pytest.mark.goal("Q1")
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
        "c" * 40, "False", "2.13.0", "a processor, 2 cores", "1", "fp32", "2048", "40"
    ]  # fmt: skip
    assert (second["placement"], second["seed"], second["status"]) == ("post", "0", "finished")


@pytest.mark.goal("Q4")
def test_a_diverged_run_is_counted_and_no_part_of_a_mean():
    make_study("study", {"pre": PRE, "post": {0: 2.3, 1: None, 2: None}})
    edit(folder("post", 2), initial_loss=5.7)
    table = text()
    row = by_name(table, "post")
    assert row["validation loss, mean ± sd"] == "2.3000"
    assert (row["median"], row["verdict"]) == ("failed", "failed")
    assert "2 of 3 (9 to 99 %)" in row["failed"]
    numbers = {"difference", "95 % interval", "bounds", "p", "detectable"}
    assert not numbers & set(line_of(table, "variant"))
    assert "no difference is given where a run failed" in table


@pytest.mark.goal("Q4")
def test_a_diverged_run_that_somebody_deleted_is_noticed(capsys):
    make_study("study", {"pre": PRE, "post": {0: 2.3, 1: None, 2: 2.31}})
    for diverged, missing in ((1, 0), (0, 1)):
        assert main(["study"]) == 0
        answer = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert [*answer.values()] == ["study/report.html", 6, 5, diverged, missing]
        shutil.rmtree(folder("post", 1), ignore_errors=True)
    table = Path("study", "table.md").read_text()
    assert by_name(table, "post")["missing"] == "1"
    assert f"missing of post: {folder('post', 1).name} (missing, result)" in table
    assert [row["status"] for row in rows()].count("missing") == 1


@pytest.mark.parametrize("status", ["failed", "running", "preempted"])
def test_a_run_that_has_not_ended_is_missing_and_named(status):
    make_study("study", {"pre": PRE, "post": PRE})
    edit(folder("post", 1), status=status, val_loss=None)
    table = text()
    post = by_name(table, "post")
    assert (post["missing"], post["seeds"]) == ("1", "2")
    assert f"{folder('post', 1).name} ({status}, result)" in table


def test_runs_of_no_plan_and_earlier_attempts_are_listed_and_left_out():
    make_study("study", {"pre": PRE, "post": PRE})
    extra = make_run("study", config_of(["placement=post"], 7), 0.5)
    make_run("study", config_of(["placement=post"], 1), 2.0, attempt=2)
    make_run("study", config_of(["placement=post"], 1), 2.92, attempt=10)
    table, name = text(), folder("post", 1).name
    assert by_name(table, "post")["seeds"] == "3"
    mean = f"{(2.30 + 2.92 + 2.31) / 3:.4f}"
    assert by_name(table, "post")["validation loss, mean ± sd"].startswith(mean)
    assert f"left out, planned by no sweep: {extra.name}" in table
    assert f"left out, since a newer attempt counts: {name}, {name}-2" in table
    row = next(row for row in rows() if row["run"] == extra.name)
    assert (row["stage"], row["placement"], row["val_loss"]) == ("unplanned", "post", "0.5")
    assert [row["stage"] for row in rows()].count("superseded") == 2


def test_two_sweeps_of_one_question_are_put_together_unless_their_margins_differ(capsys):
    make_study("study", {"pre": PRE, "post": PRE})
    config = config_of(["placement=peri"])
    runs = [planned(config, {"placement": "peri"})]
    runs += [planned(config_of(["placement=pre"]), {"placement": "pre"})]
    make_run("study", config, 2.2)
    make_record("study", runs, name="more")
    assert list(study_of("study").count().values()) == [7, 7, 0, 0]
    assert by_name(text(), "peri")["seeds"] == "1"
    make_record("study", runs, name="more", margin=0.01)
    assert main(["study"]) == 2
    assert "sweep-quick.json differ in margin (0.01 and 0.02)" in capsys.readouterr().err
    assert main(["study", "--margin", "0.01"]) == 0
    capsys.readouterr()
    assert main(["study/sweep-more.json", "--out", "alone"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 2
    assert Path("alone/table.md").is_file()


def test_without_a_record_runs_that_differ_in_their_seed_alone_are_a_variant():
    for placement, losses in (("pre", PRE), ("post", SANDWICH)):
        for rate in (0.003, 0.01):
            for seed, loss in losses.items():
                config = config_of([f"placement={placement}"], seed, optimizer__lr=rate)
                make_run("study", config, loss + rate)
    table = text()
    assert "--baseline" in table
    assert by_name(table, "post lr=0.01")["seeds"] == "3"
    assert "verdict" not in line_of(table, "variant")
    for baseline, variant, column, cell in (
        ({"placement": "pre"}, "post lr=0.01", "verdict", "better"),
        ({"placement": "pre"}, "pre lr=0.003", "verdict", "baseline"),
        ({"placement": "pre", "optimizer.lr": 0.003}, "pre lr=0.01", "difference", "+0.0070"),
    ):
        assert by_name(text(baseline=baseline), variant)[column] == cell


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ([("norm=rmsnorm", {"norm__eps": 1e-5}), ("norm=dyt", {}),
          ("norm=rmsnorm", {"norm__eps": 1e-3})],
         {"dyt", "rmsnorm eps=1e-05", "rmsnorm eps=0.001"}),
        ([("model.width=64", {}), ("model.width=128", {})], {"width=64", "width=128"}),
        ([("placement=pre", {}), ("placement=post", {})], {"pre", "post"}),
        ([("placement=pre", {}), ("placement=post", {}), ("placement=post final_norm=always", {})],
         {"pre final_norm=norm", "post final_norm=none", "post final_norm=always"}),
    ],
    ids=["a key that not all have", "a key that others follow from", "a placement", "two choices"],
)  # fmt: skip
def test_typed_variants_are_named_by_what_differs_and_does_not_follow(typed, names):
    for overrides, keys in typed:
        make_run("study", config_of(overrides.split(), **keys), 2.3)
    found = [v.name for v in study_of("study").variants]
    assert {*found} == names
    if found[0] == "pre":  # the default, and so the baseline
        assert [v.name for v in study_of("study", baseline={"placement": "pre"}).variants] == found


def test_two_variants_that_come_to_one_run_both_have_it():
    runs = []
    for seed, loss in PRE.items():
        config = config_of(["placement=pre"], seed)
        make_run("study", config, loss)
        runs += [planned(config, {"placement": "pre", "final_norm": n}) for n in ("auto", "always")]
    make_record("study", runs, axes=["placement", "final_norm"], baseline={"final_norm": "always"})
    assert by_name(text(), "pre final_norm=auto")["verdict"] == "not decided yet"
    assert list(study_of("study").count().values()) == [3, 3, 0, 0]


def test_a_warning_of_all_variants_is_said_once():
    make_study("study", {"pre": PRE, "post": PRE})
    for placement in ("pre", "post"):
        edit(folder(placement, 0), warnings=["thin ice"])
    edit(folder("post", 1), warnings=["deep water"])
    assert [line for line in text().splitlines() if "thin" in line or "deep" in line] == [
        "- 2 runs (pre, post): thin ice",
        "- 1 run (post): deep water",
    ]


def test_folders_may_be_words_and_one_alone_is_told_to_be_a_list():
    make_study("study", {"pre": PRE})
    assert write_report(["study"], out="elsewhere")[0] == Path("elsewhere/report.html")
    with pytest.raises(ConfigError, match=r"such as \['study'\]"):
        write_report("study")


def test_what_differs_beyond_the_axis_stands_beside_the_verdict():
    make_study("study", {"pre": PRE, "post": PRE})
    edit(folder("post", 0), parameters=115200, flops=6100.0 * 40 * 32 * 16)
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
        assert said in beside, said
    assert "placement.equation" not in beside  # that is what was asked


def test_the_margin_of_a_negligible_difference_is_the_sweeps_or_what_is_typed():
    make_study("study", {"pre": PRE, "sandwich": SANDWICH}, margin=0.5)
    assert by_name(text(), "sandwich")["verdict"] == "equivalent"
    assert by_name(text(margin=0.001), "sandwich")["verdict"] == "better"


def test_a_terminal_gets_the_table_in_80_columns():
    long = "a_placement_of_" + "many_" * 20 + "words"
    configs = [config_of([f"placement={p}"], seed) for p in ("pre", "post") for seed in PRE]
    for config in configs:
        make_run("study", config, PRE[config["seed"]])
    names = ["pre"] * 3 + [long] * 3
    make_record(
        "study", [planned(c, {"placement": n}) for c, n in zip(configs, names, strict=True)]
    )
    lines = summary_lines(findings_of("study"))
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == "pre 3 2.3100 ± 0.0100 baseline".split()
    assert "..." in lines[2]
    assert lines[2].endswith("+0.0000     not decided yet")


def test_the_command_ends_with_one_json_line_and_needs_torch_for_drawings_alone():
    make_study("study", {"pre": {0: 2.3}, "post": {0: 2.4}})
    for placement in ("pre", "post"):  # nothing to draw, which takes longer than the rest
        edit(folder(placement, 0), status="running")
    code = (
        "import sys; from transformer_norms.report.__main__ import main; "
        "code = main(['study']); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    answer = {"report": "study/report.html", "runs": 2, "finished": 0, "diverged": 0, "missing": 2}
    assert run_python(code).splitlines() == [json.dumps(answer)]


EQUATIONS = [
    "x + norm(f(x))",
    "norm(x + 0.5 * f(norm@head(x), q=norm)) + x0 * (2*N)",
    {"attention": "norm(x + f(x))", "mlp": "x - b*f(norm(x))"},
]


def test_a_typed_equation_is_its_variants_name_in_every_file():
    """The record of a sweep has the text, or the text of each part."""
    runs = []
    for place, equation in enumerate(EQUATIONS):
        for seed in (0, 1):
            config = config_of([], seed, optimizer__lr=1e-3 * (1 + place))
            runs.append(planned(config, {"placement.equation": equation}))
            make_run("study", config, 2.3 + place / 10 + seed / 100)
    first = {"placement.equation": EQUATIONS[0]}
    make_record("study", runs, axes=["placement.equation"], baseline=first)
    table, tex = text(), Path("study/table.tex").read_text()
    names = [*EQUATIONS[:2], "attention: norm(x + f(x)), mlp: x - b*f(norm(x))"]
    assert {row["variant"] for row in rows()} == set(names)
    assert {row["placement.equation"] for row in rows()} == set(names)
    for name in names:
        assert f"| {name.replace('*', chr(92) + '*')} " in table
        assert f"{name} & " in tex
