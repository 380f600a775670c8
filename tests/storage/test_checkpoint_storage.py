"""Full disks and kills: the order of what reaches the disk, and what is said if they do not."""

import errno
import itertools
import json
import math
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from checkpoints import newest, save
from surroundings import fill, small_disk

from transformer_norms import compose
from transformer_norms.errors import ConfigError, StorageError
from transformer_norms.run.metrics import MetricsFile, read_metrics
from transformer_norms.run.space import check_metrics_size
from transformer_norms.storage import files
from transformer_norms.storage.reading import read_json


@pytest.mark.goal("D1")
@pytest.mark.parametrize("failing", range(1, 7))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses_costs_nothing_but_the_new_checkpoint(
    tmp_path, monkeypatch, failing, code
):
    save(tmp_path, 1)
    fsync, calls = os.fsync, itertools.count(1)

    def refusing(descriptor):
        if next(calls) == failing:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refusing)
        line = rf"{tmp_path}.* bytes needed, \d+ bytes free[^\n]*$"
        with pytest.raises(StorageError, match=line):
            save(tmp_path, 2)
    # The sixth is the last: the new name is there already when the folder cannot be synced.
    assert newest(tmp_path) == (2 if failing == 6 else 1)
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.goal("D4")
def test_metrics_on_a_full_disk_stay_whole_lines(tmp_path):
    with small_disk(tmp_path / "disk", 96 << 10) as disk:
        metrics = MetricsFile(disk / "metrics.jsonl")
        metrics.append({"step": 1})
        ballast = fill(disk)
        with pytest.raises(StorageError, match="metrics.jsonl"):
            metrics.append({"step": 2, "text": "x" * 8192})
        ballast.unlink()
        metrics.append({"step": 3})
        metrics.close()
        assert read_metrics(metrics.path) == [{"step": 1}, {"step": 3}]


@pytest.mark.goal("D4")
def test_metrics_that_are_deleted_while_a_run_writes_end_it(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append({"step": 1})
    metrics.sync()
    metrics.path.unlink()
    with pytest.raises(StorageError, match=r"metrics\.jsonl: was deleted while the run wrote"):
        metrics.sync()


@pytest.mark.goal("D3")
def test_metrics_that_no_reader_takes_are_refused_before_a_run():
    typed = "data=stories", "tracking=none", "trainer.log_every=1"
    check_metrics_size(compose([*typed, "trainer.steps=1000000"]))
    with pytest.raises(ConfigError, match=r"log_every=1 .*10,000,000 steps .* 1\.1 GB at most"):
        check_metrics_size(compose([*typed, "trainer.steps=10000000"]))


@pytest.mark.goal("D3")
def test_preflight_refuses_a_folder_that_takes_no_file():
    with pytest.raises(StorageError, match="/proc"):
        files.preflight(Path("/proc/self"), 1)


def test_an_error_that_is_not_about_storage_stays_itself(tmp_path):
    with pytest.raises(FileNotFoundError), files.storage(tmp_path):
        (tmp_path / "missing").read_bytes()


def test_a_write_into_a_folder_that_is_gone_ends(tmp_path):
    with pytest.raises(StorageError, match="gone: the folder is gone"):
        files.write_json(tmp_path / "gone" / "summary.json", {})


def test_json_is_replaced_at_once_and_never_holds_nan(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    files.write_json(path, {"step": 1})
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, {"loss": math.nan})
    monkeypatch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        files.write_json(path, {"step": 2})
    assert read_json(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_that_are_not_finite_become_null_and_are_named(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    row = {"step": 1, "loss": math.nan, "lr": 0.1, "norm": math.inf, "probe": None}
    metrics.append(row)
    metrics.sync()
    nulls = {"loss": None, "norm": None, "nonfinite": ["loss", "norm"]}
    assert json.loads(metrics.path.read_text()) == row | nulls


def test_a_bad_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step":\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(path)
