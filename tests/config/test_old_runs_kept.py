"""K3: runs of the version whose checkpoints did not say which run they are of (form 1) still load.

fixtures/runs_checkpoint_1.tar.xz holds a study of that version, a run that was stopped at step 4,
and the logits that the code of then computed. Earlier ones: test_old_runs.py.
"""

import json
import re
import tarfile
from pathlib import Path

import pytest
import torch
from run_folders import skip_pictures
from safetensors.torch import load_file

from transformer_norms import load, runs
from transformer_norms.__main__ import main
from transformer_norms.comparison.sweep_record import read_record
from transformer_norms.data import load_tokenizer
from transformer_norms.errors import ConfigError, InputError
from transformer_norms.run.checkpoint import newest, verify
from transformer_norms.run.summary import read_summary
from transformer_norms.storage.manifest import DamagedError, seal_manifest

STUDY = Path("runs/kept")
RUN = STUDY / "rmsnorm-pre-nano-stories-s0-4d697e7c"
STOPPED = STUDY / "rmsnorm-pre-nano-stories-s3-888ed811"
pytestmark = pytest.mark.goal("K3")


@pytest.fixture(autouse=True)
def _runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tarfile.open(Path(__file__).parents[1] / "fixtures/runs_checkpoint_1.tar.xz") as archive:
        archive.extractall(filter="data")


def test_each_loads_bitwise(measured, capfd):
    """Every weight has the bits of the file. The logits are those of the code of then to a
    float32's last digit, in which two processors may differ."""
    ids = torch.arange(16)[None] + 97
    expected = json.loads(Path("runs/expected_logits.json").read_text())
    for folder, logits in expected.items():
        model = load(folder)
        newest_file = max(Path(folder).glob("checkpoints/*/model.safetensors"))
        weights, saved = model.state_dict(), load_file(newest_file)
        assert all(torch.equal(weights[name], tensor) for name, tensor in saved.items()), folder
        with torch.no_grad():
            found = model(ids)[0, -1, :4].double().tolist()
        assert found == pytest.approx([*map(float.fromhex, logits)], rel=1e-6, abs=1e-7), folder
    assert "translated" not in capfd.readouterr().err
    measured(f"{len(expected)} runs: weights bitwise, logits to 1e-6 of themselves")


def test_a_stopped_one_has_what_going_on_needs():
    saved = newest(STOPPED / "checkpoints", "888ed8116a7c227a", pytest.fail)
    assert saved.step == 4
    with saved.open("optimizer") as tensors:
        assert len(list(tensors.keys())) > 10


def test_they_are_listed_and_reported(monkeypatch, capsys):
    assert [row["summary"]["status"] for row in runs(STUDY)].count("finished") == 4
    skip_pictures(monkeypatch)
    assert main(["report", str(STUDY)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["finished"] == 4


def later(file, schema=99):
    file.write_text(re.sub(r'"schema": ?\d+', f'"schema": {schema}', file.read_text()))
    return file


def later_manifest():
    file = next(RUN.glob("checkpoints/*/manifest.json"))
    held = json.loads(file.read_bytes())
    del held["sha256"]
    file.write_bytes(seal_manifest(held | {"schema": 99}))
    verify(file.parent)


LATER = {
    "manifest.json": later_manifest,
    "summary.json": lambda: read_summary(later(RUN / "summary.json").parent),
    "sweep-main.json": lambda: read_record(later(STUDY / "sweep-main.json")),
    "tokenizer": lambda: load_tokenizer(
        json.loads(later(RUN / "tokenizer.json").read_text()),
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_a_later_form_is_refused_in_one_line_that_names_it(name):
    with pytest.raises((ConfigError, InputError, DamagedError)) as caught:
        LATER[name]()
    assert str(caught.value).isprintable()
    assert name in str(caught.value)
    assert "schema" in str(caught.value)


def test_a_config_of_a_later_form_names_the_key_that_is_not_known():
    file = RUN / "config.yaml"
    file.write_text(file.read_text() + "quantization: {type: none}\n")
    with pytest.raises(ConfigError, match=r"config.yaml: .*quantization"):
        load(RUN)
