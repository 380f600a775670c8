"""A damaged file of a run, and a run of a stranger, are refused in one line."""

import json
import os
import shutil
from pathlib import Path

import pytest
from no_files import ends_if_it_hangs
from run_folders import tree
from short_runs import TEXT, go, here  # noqa: F401

from transformer_norms import ConfigError, runs
from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.run.summary import read_summary


def link_elsewhere(file):
    file.symlink_to(Path("elsewhere").absolute())


def damage_row(file):
    first, _, *rest = Path("elsewhere").read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first, b'{"step": \n', *rest]))


DAMAGE = [b"", b"{", b"[]", b'{"status": "finished"}', b"\xff\xfe", b"[" * 9999, b"9" * 9999]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    home = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        Path("corpus.txt").write_text(TEXT)
        return home / go("trainer.keep=9")["folder"]


@pytest.fixture
def run(trained, here):  # noqa: F811
    folder = Path("runs", "main", trained.name)
    shutil.copytree(trained, folder)
    return folder


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_summary_is_one_line_that_names_it_and_stays_as_it_is(run, content):
    (run / "summary.json").write_bytes(content)
    for read in lambda: read_summary(run), lambda: runs("runs/main"), lambda: go("trainer.keep=9"):
        with pytest.raises(ConfigError, match="summary.json: ") as caught:
            read()
        assert str(caught.value).isprintable()
    assert (run / "summary.json").read_bytes() == content
    assert go("trainer.keep=9", "again=true")["folder"] == f"{run}-2"


HOSTILE = {
    "a pipe for rows": ("metrics.jsonl", os.mkfifo, "metrics.jsonl: is not a file, but a pipe"),
    "rows behind a link": ("metrics.jsonl", link_elsewhere, "metrics.jsonl: is a link"),
    "a folder for rows": ("metrics.jsonl", Path.mkdir, "metrics.jsonl: is not a file, but a"),
    "checkpoints behind a link": ("checkpoints", link_elsewhere, "checkpoints: is not a folder"),
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
    shutil.move(run / name, "elsewhere")
    make(run / name)
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
    with pytest.raises(ConfigError, match="summary.json: is not a file, but a folder"):
        go("trainer.keep=9")
    assert (run / "summary.json").is_dir()
