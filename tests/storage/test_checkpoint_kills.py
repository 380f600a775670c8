"""Kills, damage and NaN in any order: a run never loses its last good checkpoint."""

import os
import random
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import checkpoints
import pytest
from checkpoints import save, tensors
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from surroundings import exit_code

from transformer_norms.run import checkpoint
from transformer_norms.run.checkpoint import NonFiniteError
from transformer_norms.storage.files import remove_leftovers
from transformer_norms.storage.manifest import DamagedError

KEEP = st.integers(1, 3)
# Python reports these changes of a disk; the kill comes just before one.
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "fcntl.flock")


def usable(folder):
    """The step of the checkpoint from which a run would go on, with its numbers, or 0."""
    try:
        return checkpoints.newest(folder, [].append) if any(folder.glob("step-*")) else 0
    except checkpoint.NoUsableCheckpoint:
        return 0


def verifies(path):
    with suppress(DamagedError):
        return bool(checkpoint.verify(path))
    return False


def _die_at(event, act, *given):
    """Calls `act` in this process, which dies just before the event of that number."""
    left = iter(range(event))

    def hook(name, arguments):
        if name in EVENTS and str(arguments[0]).startswith("/") and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    act(*given)
    os._exit(0)


def killed_at(event, act, *given):
    """Whether the process was killed, and did not come to its end before."""
    code = exit_code(_die_at, event, act, *given)
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """A kill loses nothing that was written; only a machine without power would."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Retention(RuleBasedStateMachine):
    """The last checkpoint that verifies and is finite stays, whatever happens to the others."""

    def __init__(self):
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.folder = Path(self.home.name, "checkpoints")

    def teardown(self):
        self.home.cleanup()

    def usable(self):
        return usable(self.folder)

    @rule(keep=KEEP)
    def save(self, keep):
        step = self.usable() + 1
        save(self.folder, step, keep)
        assert self.usable() == step

    @rule(keep=KEEP, bad=st.sampled_from([float("nan"), float("inf")]))
    def save_what_is_not_finite(self, keep, bad):
        before = self.usable()
        content = tensors(before + 1)
        content["optimizer"]["weight.average"][3] = bad
        with pytest.raises(NonFiniteError):
            save(self.folder, before + 1, keep, content)
        assert self.usable() == before

    @rule(keep=KEEP, event=st.integers(0, 30))
    def kill(self, keep, event):
        before = self.usable()
        killed_at(event, save, self.folder, before + 1, keep)
        assert self.usable() in (before, before + 1)

    @precondition(lambda self: list(self.folder.glob("step-*")))
    @rule(data=st.data())
    def corrupt(self, data):
        path = data.draw(st.sampled_from(sorted(self.folder.glob("step-*"))))
        before, intact = self.usable(), verifies(path)
        file = data.draw(st.sampled_from(sorted(path.iterdir())))
        content = bytearray(file.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content)
        # The same bit flipped twice is as it was.
        assert not (intact and verifies(path))
        if path.name != f"step-{before:08d}":
            assert self.usable() >= before

    @precondition(lambda self: list(self.folder.glob("step-*")))
    @rule()
    def purge_leftovers(self):
        before = self.usable()
        remove_leftovers(self.folder)
        assert not list(self.folder.glob(".tmp-*"))
        assert self.usable() == before


@pytest.mark.goal("C5")
@pytest.mark.parametrize("histories", [10, pytest.param(1000, marks=pytest.mark.nightly)])
def test_the_last_good_checkpoint_is_never_removed(histories, measured):
    begun = []
    keys = {"deadline": None, "database": None, "derandomize": True, "stateful_step_count": 12}
    keys |= {"max_examples": histories, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(lambda: begun.append(1) or Retention(), settings=settings(**keys))
    assert len(begun) >= histories
    measured(f"0 violations in {histories} histories")


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def train_on(folder, keep):
    """Goes on as a run does: leftovers first, then one checkpoint after the other."""
    remove_leftovers(folder)
    if saved := usable(folder):
        checkpoint.prune(folder, saved, keep)
    for step in range(saved + 1, 1 << 30):
        save(folder, step, keep)


@pytest.mark.goal("C6")
@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.nightly)])
def test_after_kills_there_is_one_checkpoint_too_many_at_most(tmp_path, kills, measured):
    keep, draw = 2, random.Random(0)
    save(tmp_path / "one", 1, keep)
    one, folder, last, most = size_of(tmp_path / "one") + 64, tmp_path / "checkpoints", 0, 0.0
    for _ in range(kills):
        assert killed_at(draw.randrange(1, 150), train_on, folder, keep)
        most, before, last = max(most, size_of(folder) / one), last, usable(folder)
        assert last >= before
    assert most <= keep + 1
    assert last > kills
    remove_leftovers(folder)
    assert len(list(folder.iterdir())) <= keep + 1
    assert not list(folder.glob(".tmp-*"))
    measured(f"{most:.2f} checkpoints at most with keep={keep}, {kills} kills, no leftovers")


FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


@pytest.mark.goal("C7")
def test_whole_files_are_synced_the_manifest_last_then_the_folder_its_name_and_the_one_above(
    tmp_path, monkeypatch, measured
):
    calls, synced, rename = [], {}, os.rename

    def note_sync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append(("fsync", path.name))
        if path.is_file():
            synced[path.name] = path.read_bytes()

    def note_rename(source, target):
        calls.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    saved = save(tmp_path / "checkpoints", 1)
    (draft,) = {name for _, name in calls if name.startswith(".tmp-")}
    last = [("fsync", draft), ("rename", saved.name), ("fsync", "checkpoints")]
    assert calls == [*(("fsync", name) for name in FILES), *last]
    assert synced == {file.name: file.read_bytes() for file in saved.iterdir()}
    measured("each file whole and synced, the manifest last, then its folder, the name")
