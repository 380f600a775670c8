"""A damaged summary.json beside good checkpoints is read from them, and training mends it."""

import json
import shutil
from pathlib import Path

import pytest
from test_run_folder import TEXT, go, rows, state

from transformer_norms import ConfigError, load, runs
from transformer_norms.manifest import MANIFEST, read_sealed, seal_manifest
from transformer_norms.run import summary
from transformer_norms.run.summary import COPY, read_summary

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
