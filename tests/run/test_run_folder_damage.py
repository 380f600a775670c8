"""A damaged summary.json beside good checkpoints is read from them, and training mends it."""

import json
import os
import shutil
from pathlib import Path

import pytest
from no_files import ends_if_it_hangs
from short_runs import TEXT, go, rows, state, tree

from transformer_norms import ConfigError, load, runs
from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.run import summary
from transformer_norms.run.summary import COPY, read_summary
from transformer_norms.storage.manifest import MANIFEST, read_sealed, seal_manifest


def link_elsewhere(file):
    file.symlink_to(Path("elsewhere").absolute())


def damage_row(file):
    first, _, *rest = Path("elsewhere").read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first, b'{"step": \n', *rest]))


DAMAGE = [b"", b"{", b"[]", b'{"status": "finished"}', b"\xff\xfe", b"[" * 9999, b"9" * 9999]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished run, which has all its checkpoints."""
    home = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        Path("corpus.txt").write_text(TEXT)
        return home / go("trainer.keep=9")["folder"]


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summary._announce.cache_clear()
    Path("corpus.txt").write_text(TEXT)
    folder = Path("runs", "main", trained.name)
    shutil.copytree(trained, folder)
    return folder


@pytest.mark.parametrize("content", DAMAGE)
def test_the_damaged_summary_of_a_result_is_read_as_it_was(run, content, capsys):
    before = read_summary(run)
    (run / "summary.json").write_bytes(content)
    assert read_summary(run) == before
    assert runs("runs/main")[0]["summary"] == before.values()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"{run}/summary.json: ")
    assert said[0].endswith("read from a checkpoint instead: finished, step 24")
    assert (run / "summary.json").read_bytes() == content  # a reader writes nothing


def test_the_command_of_the_run_mends_it_and_trains_nothing(run, capsys):
    before = (run / "summary.json").read_bytes(), rows(run), state(run)
    (run / "summary.json").write_bytes(b"")
    assert go("trainer.keep=9")["status"] == "finished"
    assert (run / "summary.json").read_bytes() == before[0]
    assert rows(run) == before[1]
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition("; ")[2] for line in said if "summary.json" in line] == [
        "read from a checkpoint instead: finished, step 24",
        "written anew from a checkpoint",
    ]


def test_an_unfinished_run_goes_on_from_its_checkpoint_to_the_same_bits(run, trained, capsys):
    shutil.rmtree(run / "checkpoints" / "step-00000024")
    (run / "summary.json").write_bytes(b"{")
    assert read_summary(run).status == "running"
    answer = go("trainer.keep=9")
    ours, theirs = read_summary(run), read_summary(trained)
    for key in ("status", "step", "val_loss", "test_loss", "batch_chain", "source", "start"):
        assert getattr(ours, key) == getattr(theirs, key)
    assert answer["status"] == "finished"
    assert rows(run) == rows(trained)
    for mine, other in zip(state(run), state(trained), strict=True):
        assert mine.keys() == other.keys()
        assert all((mine[key] == other[key]) is not False for key in mine if key != "seconds")
    said = capsys.readouterr().err
    assert "read from a checkpoint instead: running, step 21" in said
    assert "goes on from step 21" in said


def reseal(checkpoint, **changed):
    manifest = read_sealed(checkpoint)
    data = seal_manifest({**manifest, "extra": {**manifest["extra"], **changed}})
    (checkpoint / MANIFEST).write_bytes(data)


def test_a_copy_of_another_run_or_none_is_no_copy(run):
    """A run of an earlier version has none; a checkpoint may have been copied from elsewhere."""
    copy = read_summary(run).values()
    (run / "summary.json").write_bytes(b"")
    for wrong in ({**copy, "identity": "0" * 16}, {**copy, "status": "won"}, None, [], "text"):
        for checkpoint in (run / "checkpoints").iterdir():
            reseal(checkpoint, **{COPY: wrong})
        with pytest.raises(ConfigError, match="summary.json: .*; no checkpoint of the run has a"):
            read_summary(run)
        assert (run / "summary.json").read_bytes() == b""


def test_a_flipped_bit_in_a_copy_is_passed_over_for_an_older_one(run, capsys):
    manifest = run / "checkpoints" / "step-00000024" / MANIFEST
    data = bytearray(manifest.read_bytes())
    data[data.index(b'"val_loss"') + 14] ^= 1
    manifest.write_bytes(data)
    (run / "summary.json").write_bytes(b"")
    assert (read_summary(run).status, read_summary(run).step) == ("running", 21)


def put_in_place(file, make):
    shutil.move(file, "elsewhere")
    make(file)


HOSTILE = {
    "a pipe for rows": ("metrics.jsonl", os.mkfifo, "metrics.jsonl: is no file, but a pipe"),
    "rows behind a link": ("metrics.jsonl", link_elsewhere, "metrics.jsonl: is a link"),
    "a folder for rows": ("metrics.jsonl", Path.mkdir, "metrics.jsonl: is no file, but a folder"),
    "checkpoints behind a link": ("checkpoints", link_elsewhere, "checkpoints: is no folder"),
    "a run behind a link": ("", link_elsewhere, "is a link"),
    "a damaged row": ("metrics.jsonl", damage_row, "metrics.jsonl line 2: not readable as JSON"),
}


@pytest.mark.goal("X1")
@pytest.mark.parametrize("what", HOSTILE)
def test_a_strangers_run_that_goes_on_is_refused_and_nothing_elsewhere_is_changed(run, what):
    shutil.rmtree(run / "checkpoints" / "step-00000024")
    values = read_summary(run).values() | {"status": "preempted", "step": 21}
    summary_text = json.dumps(values)
    (run / "summary.json").write_text(summary_text)
    name, make, said = HOSTILE[what]
    put_in_place(run / name, make)
    before = tree("elsewhere")
    with ends_if_it_hangs(), pytest.raises((ConfigError, NoUsableCheckpoint)) as caught:
        go("trainer.keep=1")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert tree("elsewhere") == before
    if name == "metrics.jsonl":
        assert (run / "summary.json").read_text() == summary_text  # nothing was written


def test_what_is_no_file_is_refused_and_not_replaced(run):
    (run / "summary.json").unlink()
    (run / "summary.json").mkdir()
    with pytest.raises(ConfigError, match="summary.json: is no file, but a folder"):
        go("trainer.keep=9")
    assert (run / "summary.json").is_dir()


def test_the_copy_holds_what_the_summary_does(run):
    written = json.loads((run / "summary.json").read_text())
    assert read_sealed(run / "checkpoints" / "step-00000024")["extra"][COPY] == written
    load(run)  # which verifies the checkpoint whose manifest was sealed again
