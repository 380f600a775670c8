"""Whatever becomes of W&B, training gives the same bits and the same exit code."""

import hashlib
import json
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from run_folders import make_study
from safetensors.torch import load_file
from short_runs import rows
from test_tracking import CEILING, history, offline_records, rows_of

from transformer_norms import cli as command
from transformer_norms import load
from transformer_norms.storage.reading import read_json
from transformer_norms.tracking import mirror as tracking
from transformer_norms.tracking.__main__ import main

RUN = (
    "model=nano data=stories data.documents=150 trainer.steps=6 trainer.eval_every=3 "
    "trainer.log_every=1 trainer.threads=1 trainer.checkpoint_every=3 trainer.device=cpu"
).split()
NIGHTLY = pytest.mark.nightly
FAILING = """
if {at!r} == "import":
    raise ImportError("no W&B here")
class Settings:
    def __init__(self, *values, **options): pass
class Html(Settings): pass
class Run:
    summary = dict()
    def define_metric(self, *names, **options): pass
    def write_logs(self, text): pass
    def log(self, row, step):
        if {at!r} == "log":
            raise RuntimeError("W&B fails at log")
    def finish(self, exit_code=0): raise RuntimeError("W&B fails at finish")
def init(**options): return Run()
"""


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """However busy the machine is, a command waits until its mirror has ended."""
    monkeypatch.setattr(tracking.Mirror.close, "__defaults__", (CEILING,))


def trained(folder, *typed):
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code = command.main([*RUN, *typed])
    (run,) = folder.glob("runs/main/*/summary.json")
    return code, run.parent


def result(run):
    """Returns all of a run's numbers but the seconds it took."""
    files = sorted(run.glob("checkpoints/*/model.safetensors"))
    weights = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    summary = read_json(run / "summary.json")
    return weights, rows(run), summary["status"], summary["val_loss"], summary["test_loss"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    code, run = trained(tmp_path_factory.mktemp("alone") / "run", "tracking=none")
    assert len(result(run)[0]) == 2
    return code, result(run)


@pytest.mark.goal("S6")
@pytest.mark.parametrize("at", ["import", "log", pytest.param("finish", marks=NIGHTLY)])
def test_a_wandb_that_fails_changes_nothing_in_training(
    at, alone, tmp_path, monkeypatch, measured, capsys
):
    (tmp_path / "wandb.py").write_text(FAILING.format(at=at))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tracking, "_EXIT_SECONDS", CEILING)
    code, run = trained(tmp_path / "run", "tracking.mode=offline")
    assert (code, result(run)) == alone
    failure = "its process ended with code 1" if at == "import" else f"W&B fails at {at}"
    assert failure in capsys.readouterr().err
    measured(f"W&B fails at {at}: bitwise")


@pytest.mark.goal("S6")
@pytest.mark.draws
def test_a_mirror_that_is_killed_changes_nothing_and_sync_makes_up_for_it(
    alone, tmp_path, monkeypatch
):
    started: list[subprocess.Popen[bytes]] = []
    start = tracking._start

    def killed(*arguments):
        started.append(start(*arguments))
        started[0].kill()
        return started[0]

    monkeypatch.setattr(tracking, "_start", killed)
    code, run = trained(tmp_path / "run", "tracking.mode=offline")
    assert started[0].wait() == -signal.SIGKILL
    assert (code, result(run)) == alone
    assert main(["sync", str(run), "--mode", "offline", "--model"]) == 0
    records = offline_records(run.parent)
    assert history(records) == rows_of(run)
    check_model(records, run, tmp_path / "downloaded")
    assert not {"stats", "output_raw"} & {record["type"] for record in records}
    assert sum(record["type"] == "run" for record in records) == 1
    curves = [r for r in records if r["type"] == "files" and "view/curve" in str(r["files"])]
    assert len(curves) == 1


def check_model(records, run, folder):
    """The artifact, laid out as its manifest says, loads as the run does, without the optimizer."""
    artifacts = [record["artifact"] for record in records if record["type"] == "artifact"]
    (artifact,) = [one for one in artifacts if one["type"] == "model"]
    assert {*artifact["aliases"]} == {"final", "step-6", "latest"}
    for entry in artifact["manifest"]["contents"]:
        (folder / entry["path"]).parent.mkdir(parents=True, exist_ok=True)
        (folder / entry["path"]).write_bytes(Path(entry["local_path"]).read_bytes())
    weights = load_file(run / "checkpoints" / "step-00000006" / "model.safetensors")
    model = load(folder).state_dict()
    assert weights.keys() <= model.keys()
    assert all(torch.equal(model[name], tensor) for name, tensor in weights.items())
    there = [[*place.rglob("optimizer.safetensors")] for place in (folder, run)]
    assert [*map(bool, there)] == [False, True]


def test_a_study_and_its_report_are_in_wandb_each_once(tmp_path):
    study = tmp_path / "study"
    make_study(study, {"pre": {0: 2.3}, "post": {0: None}})
    (study / "report.html").write_text("<p>a report</p>")
    (study / "curves.svg").write_text("<svg></svg>")
    for _ in range(2):
        assert main(["sync", str(study), "--mode", "offline"]) == 0
    records = offline_records(study)
    runs = [record["run"] for record in records if record["type"] == "run"]
    assert sorted(run["job_type"] for run in runs) == ["report", "result", "result"]
    assert {run["config"]["update"].get("variant") for run in runs} == {"pre", "post", None}
    assert {run["notes"] for run in runs} == {"Which placement?"}
    summaries = [r["summary"].get("update", {}) for r in records if r["type"] == "summary"]
    assert {"view/curves._type", "view/report._type"} <= {key for one in summaries for key in one}
