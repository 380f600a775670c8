"""The next command removes the drafts of killed writers, and leaves those of living ones."""

import os
import re
import signal
from pathlib import Path

import pytest
from run_folders import make_record, tree
from surroundings import TINY, exit_code

from transformer_norms import compose, train
from transformer_norms.judge import ledger
from transformer_norms.report.writing import write_files
from transformer_norms.storage import files
from transformer_norms.storage.files import draft_of, hold_draft, write_bytes, write_json
from transformer_norms.storage.manifest import build_folder


def leave(folder):
    """A file and a folder, as killed processes leave them, and what only looks like them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".tmp-7-step-00000300").mkdir()
    (folder / ".tmp-7-step-00000300" / "model.safetensors").write_bytes(b"half")
    (folder / ".tmp-8-manifest.json").write_text("{")
    (folder / ".tmp-9-link").symlink_to("/nowhere")
    (folder / ".tmp-mine").write_text("the user's")


def drafts(folder):
    return {path.name for path in Path(folder).rglob(".tmp-*")} - {".tmp-mine"}


@pytest.mark.goal("C6")
def test_a_writer_removes_what_killed_ones_left_beside_it_and_leaves_a_living_ones_draft(tmp_path):
    leave(tmp_path)
    with build_folder(tmp_path / "step-00000400") as draft:
        draft.write("a", [b"a"])
        write_bytes(tmp_path / "summary.json", b"{}")
        assert drafts(tmp_path) == {draft.folder.name}
        living = tmp_path / ".tmp-1-b"
        with hold_draft(living, living.touch):
            files.remove_leftovers(tmp_path)
            assert drafts(tmp_path) == {draft.folder.name, living.name}
        draft.seal({})
    assert not drafts(tmp_path)
    assert (tmp_path / ".tmp-mine").read_text() == "the user's"
    assert (tmp_path / "step-00000400" / "a").read_bytes() == b"a"


def test_a_draft_that_is_removed_before_it_is_locked_is_made_again(tmp_path):
    draft, count = tmp_path / ".tmp-1-a", iter(range(9))

    def make():
        draft.touch(exist_ok=False)
        if next(count) < 2:  # another process takes it for a leftover
            draft.unlink()

    with hold_draft(draft, make):
        assert draft.exists()
    assert next(count) == 3
    assert not draft.exists()


def propose(folder):
    parties = (ledger.Party(x, "/code", [x], "c" * 16, None, x * 16) for x in "ab")
    return ledger.enter_proposal(folder / "ledger.json", *parties, 0.1)


# A command that has nothing to write, as all it would write is there.
WRITERS = {
    "a report": lambda folder: write_files(folder, {"table.md": b"x"}),
    "a sweep's record": lambda folder: make_record(folder, []),
    "a ledger": propose,
}


@pytest.mark.goal("C6")
@pytest.mark.parametrize("what", WRITERS)
def test_a_command_that_writes_nothing_new_removes_leftovers(tmp_path, what):
    WRITERS[what](tmp_path)
    leave(tmp_path)
    WRITERS[what](tmp_path)
    assert not drafts(tmp_path)


@pytest.mark.goal("C6", "R7")
def test_a_finished_run_loses_the_leftovers_and_nothing_else():
    folder = Path(train(compose(TINY))["folder"])
    before = tree(folder)
    for place in (folder, folder / "checkpoints"):
        leave(place)
        (place / ".tmp-mine").unlink()
    assert train(compose(TINY))["status"] == "finished"
    assert tree(folder) == before


def _killed_while_writing(folder, name):
    replace = os.replace

    def kill(source, target):
        if Path(target).name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = kill
    write_json(Path(folder, name), {"a": 1})


@pytest.mark.goal("C6")
def test_the_lock_of_a_draft_ends_with_its_writer(tmp_path):
    assert exit_code(_killed_while_writing, tmp_path, "summary.json") == -signal.SIGKILL
    (left,) = drafts(tmp_path)
    mine = draft_of(tmp_path / "summary.json").name
    assert re.fullmatch(mine.replace(f"-{os.getpid()}-", r"-\d+-"), left)
    assert left != mine
    write_json(tmp_path / "other.json", {})
    assert not drafts(tmp_path)
