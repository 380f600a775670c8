"""A checkpoint belongs to its run: what another run sealed is passed over."""

import os
import shutil
from pathlib import Path

import pytest
import short_runs
from run_folders import tree
from short_runs import same

from transformer_norms import load
from transformer_norms.commands.sample import main as sample
from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.training.trainer import Trainer

TYPED = ["trainer.steps=8", "trainer.eval_every=4", "trainer.log_every=1", "trainer.probe_every=2"]
TYPED += ["trainer.checkpoint_every=2", "trainer.keep=9"]
FIRST, NEWEST, LAST = "step-00000002", "step-00000004", "step-00000008"


def go(*typed):
    return short_runs.go(*TYPED, *typed)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, cache):
    """Unfinished runs of seeds 0 and 7, with checkpoints of steps 2 and 4, and whole ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home := tmp_path_factory.mktemp("home"))
        patch.setattr("transformer_norms.run.run.draw_curve", lambda *_: None)
        Path("corpus.txt").write_text(short_runs.TEXT)
        short_runs.let_runs_stop(patch)(None, 4, None, 4)
        for seed in (0, 7):
            assert go(f"seed={seed}", "study=whole")["status"] == "finished"
            assert go(f"seed={seed}")["status"] == "preempted"
    return home


@pytest.fixture
def home(runs, here):
    shutil.copytree(runs, here, dirs_exist_ok=True)


def run_of(seed, study="main"):
    (folder,) = Path("runs", study).glob(f"*-s{seed}-*")
    return folder


def newest_of(seed):
    return run_of(seed) / "checkpoints" / NEWEST


@pytest.mark.goal("C6")
def test_a_run_that_was_killed_before_it_pruned_does_so_when_it_goes_on(home, monkeypatch):
    def restore(*_):
        kept.extend(path.name for path in (run_of(0) / "checkpoints").iterdir())
        raise KeyboardInterrupt

    kept = []
    monkeypatch.setattr(Trainer, "restore", restore)
    with pytest.raises(KeyboardInterrupt):
        go("trainer.keep=1")
    assert kept == [NEWEST]


@pytest.mark.goal("C1")
@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", "optimizer.safetensors"])
def test_a_run_whose_newest_checkpoint_is_cut_goes_on_from_the_one_before_and_ends(
    home, name, capfd
):
    file = newest_of(0) / name
    file.unlink() if "optimizer" in name else os.truncate(file, file.stat().st_size // 2)
    assert go()["status"] == "finished"
    said = capfd.readouterr().err
    assert [str(file.parent) in line for line in said.splitlines()].count(True) == 1
    assert "goes on from step 2" in said
    assert same(run_of(0), run_of(0, "whole"))


def put(foreign, folder):
    """A checkpoint in the place of the one of that step."""
    shutil.rmtree(folder / foreign.name, ignore_errors=True)
    shutil.copytree(foreign, folder / foreign.name)


@pytest.mark.goal("C3")
def test_a_checkpoint_of_another_run_is_refused_and_the_one_before_is_used(home, capfd):
    for foreign in (newest_of(7), run_of(7, "whole") / "checkpoints" / LAST):
        put(foreign, newest_of(0).parent)
    assert go()["status"] == "finished"
    said = capfd.readouterr().err
    assert said.count("is of another run") == 2
    assert "goes on from step 2" in said
    # A checkpoint of another run is replaced where this run comes to its step.
    assert same(run_of(0), run_of(0, "whole"))


@pytest.mark.goal("C4")
@pytest.mark.parametrize("name", [FIRST, NEWEST])
def test_a_run_with_nothing_but_checkpoints_of_another_is_an_error(home, name):
    shutil.rmtree(run_of(0) / "checkpoints")
    put(run_of(7) / "checkpoints" / name, run_of(0) / "checkpoints")
    before = tree(run_of(0))
    for act in (go, lambda: load(run_of(0))):
        with pytest.raises(NoUsableCheckpoint, match="none of 1 checkpoints can be used"):
            act()
    assert sample([str(run_of(0)), "--prompt", "a"]) == 3
    assert tree(run_of(0)) == before  # its summary too: nothing was run


def test_a_run_whose_origin_has_no_checkpoint_that_can_be_used_is_not_begun(home):
    origin = run_of(0, "whole")
    for path in (origin / "checkpoints").iterdir():
        os.truncate(path / "model.safetensors", 99)
    before = tree("runs/whole")
    with pytest.raises(NoUsableCheckpoint, match="none of 4 checkpoints can be used"):
        go(f"continue_from={origin}", "trainer.steps=10", "study=longer")
    assert tree("runs/whole") == before
    assert list(Path("runs/longer").iterdir()) == []


def test_a_renamed_folder_of_another_run_is_refused(home):
    name = run_of(0).name
    shutil.rmtree(run_of(0))
    run_of(7).rename(run_of(7).with_name(name))
    before = tree("runs")
    with pytest.raises(NoUsableCheckpoint, match="holds another run"):
        go()
    assert tree("runs") == before
    assert load(Path("runs/main", name))  # which may lie anywhere, under any name


def test_a_run_continues_from_its_origins_newest_checkpoint_that_can_be_used(home, capfd):
    origin = run_of(0, "whole")
    put(run_of(7, "whole") / "checkpoints" / LAST, origin / "checkpoints")
    go(f"continue_from={origin}", "trainer.steps=10", "study=longer")
    said = capfd.readouterr().err
    assert "step-00000008 is of another run" in said
    assert "goes on from step 6" in said
