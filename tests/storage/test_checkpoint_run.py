"""A checkpoint belongs to its run: what another run sealed is passed over."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import safetensors.numpy
import torch
from run_folders import tree
from safetensors.torch import load_file
from short_runs import rows

from transformer_norms import compose, load, train
from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.run import checkpoint
from transformer_norms.sample import main as sample
from transformer_norms.signals import Stopping
from transformer_norms.storage.manifest import seal_manifest
from transformer_norms.training.trainer import Trainer

TYPED = (
    "model=nano model.width=8 model.heads=2 model.depth=1 model.context=8 data=stories "
    "data.documents=300 tokenizer=byte data.val_tokens=200 tracking=none trainer.steps=8 "
    "trainer.batch_size=2 trainer.eval_every=4 trainer.log_every=1 trainer.checkpoint_every=2 "
    "trainer.keep=9 trainer.threads=1 trainer.probe_every=2 schedule.warmup=2"
).split()
FIRST, NEWEST = "step-00000002", "step-00000004"


def go(*typed):
    """A run; what is given here replaces what TYPED says of the same key."""
    keys = dict(text.split("=", 1) for text in [*TYPED, *typed])
    return train(compose([f"{key}={value}" for key, value in keys.items()]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, cache):
    """Unfinished runs of seeds 0 and 7, with checkpoints of steps 2 and 4, and the whole of 0."""
    home, before, step = tmp_path_factory.mktemp("home"), os.getcwd(), Trainer.train_step
    os.chdir(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_norms.run.run.draw_curve", lambda *_: None)
        go("study=whole")
        entered, enter = [], Stopping.__enter__

        def train_step(self):
            reason = step(self)
            entered[-1].stop_requested = self.step == 4
            return reason

        patch.setattr(Trainer, "train_step", train_step)
        patch.setattr(Stopping, "__enter__", lambda self: entered.append(self) or enter(self))
        for seed in (0, 7):
            assert go(f"seed={seed}")["status"] == "preempted"
    yield home
    os.chdir(before)


@pytest.fixture
def home(runs, tmp_path, monkeypatch):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_of(seed, study="main"):
    (folder,) = Path("runs", study).glob(f"*-s{seed}-*")
    return folder


def newest_of(seed):
    return run_of(seed) / "checkpoints" / NEWEST


def reseal(path, **changed):
    """Seals whatever lies in a checkpoint's folder, as anybody can. A value of None is left out."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["sha256"]
    names = sorted(file.name for file in path.iterdir() if file.name != "manifest.json")
    data = {name: (path / name).read_bytes() for name in names}
    manifest["files"] = {
        name: {"sha256": hashlib.sha256(each).hexdigest(), "size": len(each)}
        for name, each in data.items()
    }
    manifest = {key: value for key, value in (manifest | changed).items() if value is not None}
    (path / "manifest.json").write_bytes(seal_manifest(manifest))


WEIGHT = "embedding.weight"


def edit_state(**changed):
    def act(path):
        state = json.loads((path / "state.json").read_bytes()) | changed
        state = {key: value for key, value in state.items() if value is not ...}
        (path / "state.json").write_text(json.dumps(state))

    return act


def resume(seed=0):
    """The step from which the run would go on, and the lines that are said."""
    lines = []
    identity = json.loads((run_of(seed) / "summary.json").read_text())["identity"]
    folder = run_of(seed) / "checkpoints"
    found = checkpoint.newest(folder, identity, lines.append, ("model", "optimizer"))
    assert all("\n" not in line and "\x1b" not in line for line in lines)
    return found.path.name, lines


def test_what_a_run_saves_is_what_it_goes_on_from(home):
    assert resume() == (NEWEST, [])


def test_a_checkpoint_without_an_optimizer_is_passed_over(home):
    (newest_of(0) / "optimizer.safetensors").unlink()
    reseal(newest_of(0))
    found, (line,) = resume()
    assert found == FIRST
    assert "keeps weights only" in line


def test_weights_that_are_not_the_models_are_one_line(home):
    file = newest_of(0) / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    for changed, words in (
        ({WEIGHT: tensors[WEIGHT].T}, "embedding.weight is [8, 257], not [257, 8]"),
        ({"embedding.wait": tensors[WEIGHT]}, "the weights are not this model's: embedding.wait"),
    ):
        safetensors.numpy.save_file(tensors | changed, file)
        reseal(newest_of(0))
        with pytest.raises(NoUsableCheckpoint) as caught:
            load(run_of(0))
        assert words in str(caught.value)
        assert "model.safetensors" in str(caught.value)


@pytest.mark.goal("C6")
def test_a_run_that_was_killed_before_it_pruned_does_so_when_it_goes_on(home, monkeypatch):
    kept = []
    restore = Trainer.restore

    def restored(self, *given):
        kept.extend(sorted(path.name for path in (run_of(0) / "checkpoints").iterdir()))
        restore(self, *given)

    monkeypatch.setattr(Trainer, "restore", restored)
    go("trainer.keep=1")
    assert kept == [NEWEST]


def finish_like_the_whole(folder):
    """The weights, moments and rows of an undisturbed run, bit by bit."""
    for name in ("model", "optimizer"):
        one, other = (
            load_file(run / "checkpoints" / "step-00000008" / f"{name}.safetensors")
            for run in (folder, run_of(0, "whole"))
        )
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert rows(folder) == rows(run_of(0, "whole"))


@pytest.mark.goal("C1")
@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_a_run_whose_newest_checkpoint_is_cut_goes_on_from_the_one_before_and_ends(
    home, name, capfd
):
    file = newest_of(0) / name
    os.truncate(file, file.stat().st_size // 2)
    assert go()["status"] == "finished"
    said = capfd.readouterr().err
    assert [str(file) in line for line in said.splitlines()].count(True) == 1
    assert "goes on from step 2" in said
    finish_like_the_whole(run_of(0))


@pytest.mark.goal("C3")
def test_a_checkpoint_of_another_run_is_refused_and_the_one_before_is_used(home, capfd):
    foreign = newest_of(7)
    shutil.rmtree(newest_of(0))
    shutil.copytree(foreign, newest_of(0))
    later = newest_of(0).with_name("step-00000008")
    shutil.copytree(foreign, later)
    edit_state(step=8)(later)
    reseal(later, step=8)
    summary = go()
    said = capfd.readouterr().err
    assert said.count("is of another run") == 2
    assert "goes on from step 2" in said
    assert summary["status"] == "finished"
    # A checkpoint of another run is replaced where this run comes to its step.
    finish_like_the_whole(run_of(0))


@pytest.mark.goal("C4")
@pytest.mark.parametrize("name", [FIRST, NEWEST])
def test_a_run_with_nothing_but_checkpoints_of_another_is_an_error(home, name):
    folder, foreign = run_of(0) / "checkpoints", run_of(7) / "checkpoints" / name
    shutil.rmtree(folder)
    shutil.copytree(foreign, folder / name)
    before = tree(run_of(0))
    with pytest.raises(NoUsableCheckpoint, match="none of 1 checkpoints can be used"):
        go()
    with pytest.raises(NoUsableCheckpoint, match="none of 1"):
        load(run_of(0))
    assert sample([str(run_of(0)), "--prompt", "a"]) == 3
    assert tree(run_of(0)) == before  # its summary too: nothing was run


def test_a_run_whose_origin_has_no_checkpoint_that_can_be_used_is_not_begun(home):
    origin = run_of(0, "whole")
    for path in (origin / "checkpoints").iterdir():
        os.truncate(path / "model.safetensors", 99)
    before = tree("runs")
    with pytest.raises(NoUsableCheckpoint, match="none of 4 checkpoints can be used"):
        go(f"continue_from={origin}", "trainer.steps=10", "study=longer")
    assert tree("runs") == before
    assert list(Path("runs/longer").iterdir()) == []


def test_a_renamed_folder_of_another_run_is_refused(home):
    name = run_of(0).name
    shutil.rmtree(run_of(0))
    run_of(7).rename(run_of(7).with_name(name))
    before = sorted(Path("runs").rglob("*"))
    with pytest.raises(NoUsableCheckpoint, match="holds another run"):
        go()
    assert sorted(Path("runs").rglob("*")) == before
    assert load(Path("runs/main", name))  # which may lie anywhere, under any name


def test_a_run_continues_from_its_origins_newest_checkpoint_that_can_be_used(home, capfd):
    origin = run_of(0, "whole")
    last = origin / "checkpoints" / "step-00000008"
    shutil.rmtree(last)
    shutil.copytree(newest_of(7), last)
    edit_state(step=8)(last)
    reseal(last, step=8)
    go(f"continue_from={origin}", "trainer.steps=10", "study=longer")
    said = capfd.readouterr().err
    assert "step-00000008 is of another run" in said
    assert "goes on from step 6" in said
