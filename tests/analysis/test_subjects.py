"""The models that analyses measure: runs, studies and checkpoints, each with its own text."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import small_studies as small
import torch

from transformer_norms.analysis.command import models_parser
from transformer_norms.analysis.outcome import Analysis, Number, Outcome, Table, csv_of, read_rows
from transformer_norms.analysis.rendering import difference_rows, tables
from transformer_norms.analysis.trained.measuring import (
    compare_numbers,
    measure_models,
    read_subjects,
    typed_keys,
)
from transformer_norms.analysis.trained.subjects import Unmeasured, load_measured
from transformer_norms.errors import ConfigError
from transformer_norms.progress import tell_nobody

PER_SEED = {0: 0.5, 1: 0.7, 2: 0.2}  # differences of pairs
SHARE = {"share": Number("share", format=".3f", compared=True)}


def typed_of(*words):
    return models_parser(None).parse_intermixed_args(list(map(str, words)))


def subjects_of(*words):
    return read_subjects(typed_of(*words), tell_nobody)


def loaded(*words):
    typed = typed_of(*words)
    (subject,) = read_subjects(typed, tell_nobody).members
    return load_measured(subject.folder, typed_keys(typed), typed.text)


def test_a_run_has_the_loss_of_its_own_summary_in_eval_mode():
    folder = small.run_of("study=pair", "norm=rmsnorm", "seed=0")
    (subject,) = subjects_of(folder).members
    one = loaded(folder)
    assert one.evaluate() == json.loads((folder / "summary.json").read_text())["val_loss"]
    assert (subject.name, subject.seed, subject.title) == ("rmsnorm pre", 0, "rmsnorm pre s0")
    assert not any(module.training for module in one.model.modules())
    assert sum(batch[:, 1:].numel() for batch in one.windows()) == one.tokens_read == 60


def test_a_compiled_run_is_read_as_any_other():
    folder = small.run_of("study=compiled", "norm=layernorm")
    copied = shutil.copytree(folder, folder.parent / "again", dirs_exist_ok=True)
    text = (folder / "config.yaml").read_text()
    assert "compile: auto" in text
    (copied / "config.yaml").write_text(text.replace("compile: auto", "compile: block"))
    assert loaded(copied).evaluate() == loaded(folder).evaluate()


def test_a_study_is_grouped_by_variant_and_its_seeds_are_pairs():
    found = subjects_of(small.study())
    assert [subject.title for subject in found.members] == [
        *(f"{norm} s{seed}" for norm in ("rmsnorm", "layernorm") for seed in range(3))
    ]
    assert found.baselines == {"layernorm": "rmsnorm"}  # the project's default
    asked = subjects_of(small.study(), "--baseline", "norm=layernorm")
    assert asked.baselines == {"rmsnorm": "layernorm"}
    assert subjects_of(small.study(), "--baseline", "none").baselines == {}


def test_a_checkpoint_of_transformers_is_the_run_that_it_was_written_from(tmp_path):
    text = tmp_path / "other.txt"
    text.write_text("a fox and a dog, and then another fox")
    folder = small.run_of("study=pair", "norm=rmsnorm", "seed=0")
    ours = loaded(folder, "--text", text)
    theirs = loaded(small.checkpoint(), "--text", text)
    assert np.array_equal(ours.tokens, theirs.tokens)
    assert theirs.evaluate() == pytest.approx(ours.evaluate(), rel=1e-6)
    data = [f"data.paths={small.home() / 'text.txt'}", "data=text", "data.split=tail"]
    typed = [small.checkpoint(), *data, "data.val_tokens=60"]
    (own,) = subjects_of(*typed).members
    assert (own.name, own.seed) == ("exported", None)
    assert loaded(*typed).evaluate() == pytest.approx(loaded(folder).evaluate(), rel=1e-6)


def test_typed_keys_change_how_much_is_read_and_how_precisely():
    folder = small.run_of("study=pair", "norm=rmsnorm", "seed=0")
    typed = ["data.val_tokens=20", "model.context=5", "trainer.precision=fp64"]
    one = loaded(folder, *typed, "trainer.batch_size=2", "trainer.device=cpu")
    assert [tuple(batch.shape) for batch in one.windows()] == [(2, 6), (2, 6)]
    assert next(one.model.parameters()).dtype == torch.float64
    assert one.model.context == small.CONTEXT


def test_models_that_cannot_be_measured_are_left_out_by_name_and_the_rest_is_measured():
    analysis, refused = Analysis("scales", "Scales", {"read": Number("read", compared=True)}), []

    def measure(one, tell, typed):
        if one.config.norm.type in ("layernorm", *refused):
            raise Unmeasured("it has no scale")
        yield {"read": one.tokens_read}

    def measured():
        typed = typed_of(small.study())
        subjects = read_subjects(typed, tell_nobody)
        return measure_models(analysis, measure, typed, tell_nobody, subjects, load_measured)

    outcome = measured()
    assert [(row["model"], row["seed"], row["read"]) for row in outcome.rows] == [
        ("rmsnorm", seed, 60) for seed in range(3)
    ]
    assert outcome.notices == [
        "LEFT OUT: layernorm (seeds 0, 1, 2): it has no scale",
        "60 tokens of text were read, in windows of 8",
    ]
    assert outcome.comparisons == {}
    assert not any("it has no scale" in remark for remark in outcome.remarks)
    refused.append("rmsnorm")
    with pytest.raises(ConfigError, match="layernorm-pre-.*-s2-.*: it has no scale"):
        measured()


def test_a_damaged_run_of_a_study_is_left_out_by_name(tmp_path):
    shutil.copytree(small.study(), tmp_path / "study")
    one = sorted((tmp_path / "study").glob("rmsnorm*"))[0]
    (one / "config.yaml").write_text("{")
    found = subjects_of(tmp_path / "study")
    assert len(found.members) == 5
    assert any(one.name in note for note in found.notes)


def rows_with(differences):
    return [{"model": name, "seed": seed, "share": seed + x * (name == "layernorm")}
            for name in ("rmsnorm", "layernorm") for seed, x in differences.items()]  # fmt: skip


def differences_of(found, rows, numbers=SHARE):
    comparisons = compare_numbers(found, rows, numbers)
    analysis = Analysis("shares", "Shares", numbers)
    return difference_rows(Outcome(analysis, rows, comparisons=comparisons))[1:]


def test_paired_differences_have_the_interval_of_student():
    found, rows = subjects_of(small.study()), rows_with(PER_SEED)
    (row,) = differences_of(found, rows)
    values = np.array([*PER_SEED.values()])
    mean, half = values.mean(), 4.302653 * values.std(ddof=1) / 3**0.5  # t of 2, 97.5 %
    t = mean / (values.std(ddof=1) / 3**0.5)
    p = 1 - t / (t * t + 2) ** 0.5  # Student's with two degrees of freedom, two-sided
    interval = f"{mean - half:+.3f} to {mean + half:+.3f}"
    assert row == ["layernorm - rmsnorm", "share", f"{mean:+.3f}", interval, "3", f"{p:.2g}"]
    (numbers,) = tables(Outcome(Analysis("shares", "Shares", SHARE), rows))
    assert numbers.cells[0][2:] == ["share ± 95 %"]
    assert numbers.cells[1][2] == f"1.000 ± {4.302653 / 3**0.5:.3f}"
    assert numbers.legend == "± 95 %: half of Student's 95 % interval over seeds."
    looked = replace(found, study=replace(found.study, looks=2))
    assert differences_of(looked, rows)[0][3] == ""  # three seeds leave nothing out at every look
    assert csv_of(rows).decode().splitlines()[:2] == ["model,seed,share", "rmsnorm,0,0.0"]
    assert read_rows(csv_of(rows).decode()) == rows


def test_p_counts_every_difference_of_the_command():
    found, one = subjects_of(small.study()), Number("one", compared=True)
    rows = [{**row, "one": row["share"], "two": row["share"]} for row in rows_with(PER_SEED)]
    (alone,) = compare_numbers(found, rows, {"one": one}).values()
    shown = differences_of(found, rows, {"one": one, "two": one})
    assert [row[-1] for row in shown] == [f"{2 * alone.p:.2g}"] * 2


def test_two_seeds_have_no_interval_and_a_run_that_failed_takes_the_difference():
    found, few = subjects_of(small.study()), rows_with({0: 0.5, 1: 0.7})
    failed = replace(found, missing={"layernorm": {2: "diverged"}})
    diverged = [*few, {"model": "layernorm", "seed": 2, "diverged": "the loss is nan at step 5"}]
    for subjects, rows, cells in (
        (found, few, ["+0.600", "", "2", ""]),
        (failed, few, ["failed", ""]),
        (found, diverged, ["failed", ""]),
    ):
        (row,) = differences_of(subjects, rows)
        assert row[2 : 2 + len(cells)] == cells


def test_a_wide_table_is_several_within_80_columns_and_no_number_is_broken():
    heading = ["model", "seeds", *(f"number {n}" for n in range(7))]
    rows = [[name, "3", *(f"-{n}.00136 ± 0.00572" for n in range(7))] for name in ("one", "two")]
    text = Table([heading, *rows], "", 2).text
    assert max(map(len, text.splitlines())) <= 80
    for n in range(7):
        assert text.count(f"-{n}.00136 ± 0.00572") == 2
    assert [part.split()[0] for part in text.split("\n\n")] == ["model"] * 3
