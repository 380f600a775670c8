"""A sweep whose folder was damaged: each damage is named, and the rest of the sweep is done."""

import json
import os
import shutil
from pathlib import Path

import pytest
from sweeps import here, sweep, trained

from transformer_norms.commands.runs import main as list_runs
from transformer_norms.comparison.sweep_record import read_record
from transformer_norms.errors import ConfigError
from transformer_norms.report.__main__ import main as report

GRID = ("norm=layernorm,rmsnorm", "seed=0,1,2,3")


def flip_last_bit(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def break_pipe(file):
    file.unlink()
    os.mkfifo(file)


def damage(folders):
    """Damages the folders, each in another way, and the record of the sweep. Returns the word that
    each damage is named by, by folder."""
    empty, pipe, other, config, weights, curve, missing, _ = folders
    (empty / "summary.json").write_text("")
    break_pipe(pipe / "summary.json")
    (other / "summary.json").write_text('{"status": "finished"}')
    text = (config / "config.yaml").read_text()
    (config / "config.yaml").write_text(text[: len(text) // 2])
    flip_last_bit(max(weights.glob("checkpoints/step-*")) / "model.safetensors")
    rows = (curve / "metrics.jsonl").read_text().splitlines(keepends=True)
    (curve / "metrics.jsonl").write_text("".join([rows[0], "{]\n", *rows[1:]]))
    shutil.rmtree(missing)
    record = Path("runs/main/sweep-main.json")
    record.write_text(record.read_text()[:-20])
    return {
        empty: "summary.json: invalid json",
        pipe: "summary.json: is no file, but a pipe",
        other: "summary.json: identity: field required",
        config: "config.yaml: ",
        weights: "model.safetensors",
        curve: "metrics.jsonl",
    }


@pytest.mark.goal("S2")
def test_each_damage_is_named_and_what_is_missing_is_run_and_reported(capsys, trained):
    sweep(capsys, *GRID)
    folders = sorted(path.parent for path in Path("runs/main").glob("*/config.yaml"))
    named = damage(folders)
    trained.clear()
    record = Path("runs/main/sweep-main.json")
    with pytest.raises(ConfigError, match="without this file the same command"):
        sweep(capsys, *GRID)
    assert not trained
    record.unlink()
    answer, code, err = sweep(capsys, *GRID)
    assert set(trained) == {folders[6].name}
    assert code == 1
    assert (answer["runs"], answer["finished"], answer["failed"]) == (8, 5, 3)
    lines = err.splitlines()
    for folder, word in named.items():
        assert any(str(folder) in line and word in line for line in lines), (folder, word)
    assert sum(line.startswith("failed: ") for line in lines) == 3
    assert len(read_record(record).runs) == 8

    said = Path("runs/main/table.md").read_text().replace("\\", "")
    capsys.readouterr()
    assert report(["runs/main"]) == 0
    out, told = capsys.readouterr()
    assert json.loads(out) == {**json.loads(out), "runs": 8, "finished": 4, "missing": 4}
    assert list_runs(["runs/main"]) == 0
    listed = capsys.readouterr().err
    for folder in folders[:4]:
        for text in (said, told, listed):
            assert f"{folder}/{named[folder].partition(':')[0]}" in text
    assert list_runs(["compare", *map(str, folders[:2])]) == 2
    assert capsys.readouterr().err.count("\n") == 1
