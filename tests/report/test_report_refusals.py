"""Which runs a report does not compare, and what it does not answer: in one line, by the name."""

import json
import shutil
from pathlib import Path

import pytest
from own_folder import no_pictures, own_folder  # noqa: F401
from reports import by_name, study_of, text
from run_folders import (
    PRE,
    config_of,
    folder,
    make_record,
    make_run,
    make_study,
    make_sweep,
    planned,
    tree,
)

from transformer_norms.errors import ConfigError
from transformer_norms.report.__main__ import main

OTHER = {
    "data": ({"data__documents": 7}, "data.documents", "12000", "7"),
    "split": ({"data__split": "tail"}, "data.split", "hash", "tail"),
    "test share": ({"data__test_fraction": 0.2}, "data.test_fraction (split)", "0", "0.2"),
    "tokenizer": ({"tokenizer__type": "gpt2"}, "tokenizer.type", "byte", "gpt2"),
    "val_tokens": ({"data__val_tokens": 99}, "data.val_tokens (evaluation)", "2048", "99"),
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


TWO_RUNS = {
    "two variants": {},
    "one variant": {"seeds": (0, 1), "placements": ("pre", "pre")},
    "one seed of one variant": {"placements": ("pre", "pre")},
}


@pytest.mark.goal("Q1", "S5")
@pytest.mark.parametrize("of", TWO_RUNS)
@pytest.mark.parametrize("what", OTHER)
def test_runs_of_another_field_are_not_compared_and_nothing_is_written(what, of, capsys):
    """Nor are they averaged as seeds of one variant."""
    changed, field, here, there = OTHER[what]
    runs = two_runs(changed, **TWO_RUNS[of])
    before = tree()
    assert main(["study"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith(field)
    for word in (here, there, *(run.name for run in runs)):
        assert word in said.err
    assert tree() == before


@pytest.mark.goal("T6", "Q1")
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
    make_sweep("study", [
        ({"placement": placement, "trainer.steps": steps}, seed,
         loss + 0.01 * seed * (placement == "post") - steps / 400)
        for steps in (40, 80)
        for placement, loss in (("pre", 2.3), ("post", 2.4))
        for seed in (0, 1)
    ])  # fmt: skip
    table = text()
    assert by_name(table, "post steps=40")["difference"] == "+0.1050"
    assert by_name(table, "post steps=80")["difference"] == "+0.1050"
    with pytest.raises(ConfigError, match="horizon"):
        text(baseline={"placement": "pre", "trainer.steps": 40})


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--baseline", "placement=sandwich"], "no variant is that; there are pre; post"),
        (["--baseline", "norm=rmsnorm"], "the sweep varies placement"),
        (["--baseline", "placement"], "did you mean 'placement=VALUE'"),
        (["--margin", "nan"], "a number of nats above 0"),
        (["--margin", "0"], "a number of nats above 0"),
        (["--out", "study/sweep-quick.json"], "is not a folder"),
        (["nowhere"], "nowhere: there is no such file or folder"),
        (["empty"], "empty: there is no run in it"),
        (["."], "name one: ./study"),
        (["study", "--out", "/dev/full/x"], "is not a folder"),
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


def test_a_run_of_another_identity_in_a_planned_folder_counts_as_missing():
    make_study("study", {"pre": PRE, "post": PRE})
    here, there = folder("pre", 0), folder("post", 0)
    own, planned_there = (json.loads((one / "summary.json").read_text())["identity"]
                          for one in (here, there))  # fmt: skip
    shutil.rmtree(there)
    shutil.copytree(here, there)
    assert study_of("study").count()["missing"] == 1
    assert f"its identity is {own}, and the sweep planned {planned_there} there" in text()
