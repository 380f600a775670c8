"""Which run a command means: one that is there already, another one, or one that it continues."""

import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rank_workers import ROOT
from run_folders import tree
from short_runs import BASE, TEXT, config_of, go, here, rows, same, stop_at

from transformer_norms import ConfigError, compose, runs, train
from transformer_norms.config.tree import diff
from transformer_norms.run import identity
from transformer_norms.run.identity import code
from transformer_norms.run.plan import Plan
from transformer_norms.storage import loaded_code
from transformer_norms.storage.loaded_code import hash_loaded


@pytest.mark.goal("R7")
def test_a_finished_run_is_found_done_and_no_file_changes(capfd):
    done = go()
    before = tree(done["folder"])
    again = go()
    assert tree(done["folder"]) == before
    assert again["val_loss"] == done["val_loss"]
    assert "has finished already" in capfd.readouterr().err
    assert len(list(Path("runs/main").iterdir())) == 1


@pytest.mark.goal("R7")
@pytest.mark.nightly
def test_the_command_of_a_finished_run_changes_no_file(measured):
    go()
    before, begun = tree("runs"), os.times()
    again = subprocess.run([sys.executable, ROOT / "train.py", *BASE], stdout=subprocess.PIPE)
    assert (again.returncode, json.loads(again.stdout)["status"]) == (0, "finished")
    assert tree("runs") == before
    ended = os.times()
    seconds = sum(ended[2:4]) - sum(begun[2:4])  # of child processes
    assert seconds < 6
    measured(f"exit 0 after {seconds:.1f} s of the processor, {len(before)} files unchanged")


def test_again_runs_beside_it_and_the_newest_is_then_meant():
    first, second, third = go(), go("again=true"), go()
    assert second["folder"] == first["folder"] + "-2"
    assert third["folder"] == second["folder"]
    assert same(first["folder"], second["folder"])
    assert [str(run["folder"]) for run in runs("runs")] == [second["folder"]]


def test_one_identity_however_it_is_typed_and_watched():
    extras = (
        "trainer.steps=24",
        "trainer.steps=2.4e1 trainer.log_every=4 optimizer.lr=0.003",
        "trainer.steps=24.0 optimizer.lr=3e-3",
        "placement=pre init=mup trainer.keep=5 trainer.checkpoint_every=0",
        "trainer.probe_every=0 study=unwatched",
        "final_norm=always study=other",
    )
    hashes = {Plan(config_of(*extra.split())).hash for extra in extras}
    assert hashes == {go()["identity"]}
    assert Plan(config_of("seed=1")).hash not in hashes


@pytest.mark.goal("R8")
def test_other_code_is_noticed_and_named(capfd, monkeypatch, stop_at):
    done = go()
    original = identity.code

    def edited(config):
        return {**original(config), "norms/rmsnorm.py": "0" * 16}

    monkeypatch.setattr(identity, "code", edited)
    assert go()["val_loss"] == done["val_loss"]
    assert "run by other code (norms/rmsnorm.py differs); again=true" in capfd.readouterr().err
    assert go("again=true")["folder"].endswith("-2")
    stop_at(9)
    assert go("seed=4")["status"] == "preempted"
    monkeypatch.setattr(identity, "code", original)
    with pytest.raises(ConfigError, match=r"norms/rmsnorm.py differs"):
        go("seed=4")


def test_what_a_plugins_file_imports_is_code_of_the_run_too():
    Path("mine/core").mkdir(parents=True)
    Path("mine/core/k.py").write_text("K = 0.5\n")
    Path("mine/use.py").write_text("")
    files = code(compose([*BASE, "plugins=mine"]))
    Path("mine/core/k.py").write_text("K = 0.7\n")
    assert code(compose([*BASE, "plugins=mine"])) == files  # this process runs what it has loaded
    loaded_code._first.clear()  # another one
    assert list(diff(files, code(compose([*BASE, "plugins=mine"])))) == ["plugins/core/k.py"]


def test_code_that_is_loaded_again_is_the_edited_one(monkeypatch):
    """As a notebook does it: what runs is what was loaded last."""
    monkeypatch.syspath_prepend(".")
    file = Path("edited_module.py").absolute()
    file.write_text("VALUE = 1\n")
    module, loaded = importlib.import_module("edited_module"), hash_loaded({"it": file})
    file.write_text("VALUE = 22\n")
    assert hash_loaded({"it": file}) == loaded
    assert importlib.reload(module).VALUE == 22
    assert hash_loaded({"it": file}) != loaded
    del sys.modules["edited_module"]


def test_the_code_of_a_run_is_its_own_norms_and_no_other(here):
    files = code(compose([*BASE, "norm=rmsnorm"]))
    assert "norms/rmsnorm.py" in files
    assert "norms/layernorm.py" not in files
    elsewhere = ("report", "tracking", "sample", "sweep", "probes")
    assert not [name for name in files if name.startswith(elsewhere)]
    assert "norms/layernorm.py" in code(compose([*BASE, "final_norm=layernorm"]))


@pytest.mark.goal("R8")
def test_continue_from_alone_goes_on_with_the_config_of_that_run_and_refuses_any_other():
    first = go()
    more = [f"continue_from={first['folder']}", "trainer.steps=40"]
    further = train(compose(more))
    assert further["status"] == "finished"
    assert further["folder"] == go(*more)["folder"]
    assert further["folder"] != str(Plan(config_of("trainer.steps=40")).folder)
    before, after = rows(first["folder"]), rows(further["folder"])
    assert (after[: len(before)], after[-1]["step"]) == (before, 40)
    for steps in ([], ["trainer.steps=24"]):
        with pytest.raises(ConfigError, match="a later trainer.steps .* ended at step 24"):
            train(compose([more[0], *steps]))
    summary = Path(first["folder"], "summary.json")
    whole = summary.read_text()
    summary.write_text(whole.replace('"finished"', '"running"'))
    with pytest.raises(ConfigError, match=r"is not \(running\); config=runs/\S+ resumes it"):
        train(compose(more))
    summary.write_text(whole)
    # The origin is still what its own command and a part of its name mean, and a chain is a run of
    # its own.
    assert go()["folder"] == first["folder"]
    part = first["folder"][-8:]
    assert train(compose([f"continue_from={part}", "trainer.steps=40"])) == further
    third = go(f"continue_from={further['folder']}", "trainer.steps=50")
    direct = go(f"continue_from={first['folder']}", "trainer.steps=50")
    assert third["folder"] != direct["folder"]
    assert third["val_loss"] != direct["val_loss"]


# A key of each group of a config, and one that a choice brings.
CHANGES = """
norm=layernorm norm.eps=1e-3 placement=sandwich placement.equation=norm(x+f(x)) init.std.up=0.1
position=learned mlp.activation=gelu embed=norm qk_norm=head architecture.tied=false model.depth=2
model.dropout=0.2 seed=1 data.seed=5 data.val_tokens=400 data=stories tokenizer=bpe optimizer=muon
optimizer.lr=1e-2 optimizer.lr_factor.head=2 schedule.warmup=5 trainer.batch_size=8 trainer.clip=2
""".split()


@pytest.mark.goal("R8")
def test_each_changed_setting_is_refused_beside_continue_from(measured):
    more = [f"continue_from={go()['folder']}", "trainer.steps=40"]
    before = tree("runs")
    for change in CHANGES:
        with pytest.raises(ConfigError) as error:
            train(compose([*more, change]))
        said = str(error.value)
        assert "\n" not in said
        assert "only trainer.steps may differ; " in said, change
        assert change.partition(".")[0].partition("=")[0] in said
        assert " there and " in said
    assert tree("runs") == before
    measured(f"{len(CHANGES)} of {len(CHANGES)} changed settings refused in one line")


def test_what_is_continued_follows_the_schedule_of_the_later_horizon():
    first = go("schedule.final=0.1")
    longer = train(compose([f"continue_from={first['folder']}", "trainer.steps=44"]))
    rates = {row["step"]: row["lr"] for row in rows(longer["folder"]) if "lr" in row}
    # cos at (step - warmup) / (steps - warmup): the last of 24 steps, and a later one of 44
    for step, done, span in ((24, 19, 20), (27, 22, 40)):
        share = 0.1 + 0.9 * (1 + math.cos(math.pi * done / span)) / 2
        assert rates[step] == pytest.approx(3e-3 * share)
    constant = ["schedule=constant", "data.val_tokens=auto"]
    first = go(*constant)
    longer = train(compose([f"continue_from={first['folder']}", "trainer.steps=40"]))
    assert longer["val_loss"] == go(*constant, "trainer.steps=40")["val_loss"]


@pytest.mark.goal("R8")
def test_continue_from_refuses_other_data_takes_a_renamed_file_and_says_other_code(monkeypatch):
    first = go("schedule=constant")
    shutil.copy("corpus.txt", "renamed.txt")
    more = [f"continue_from={first['folder']}", "trainer.steps=30"]
    renamed = [*more, "data.paths=renamed.txt"]
    assert train(compose([*renamed, "study=renamed"]))["status"] == "finished"
    Path("corpus.txt").write_text(TEXT.replace("cats", "dogs"))
    with pytest.raises(ConfigError, match="sha256 .*data.paths"):
        train(compose(more))
    original = identity.code
    monkeypatch.setattr(identity, "code", lambda c: {**original(c), "schedule.py": "0" * 16})
    (said,) = train(compose([*renamed, "study=by_other_code"]))["warnings"]
    assert "run by other code (schedule.py differs)" in said
