"""The command line: what it prints, its exit codes, signals, kill -9, two processes on one run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_norms.run.folder import hold_run

ROOT = Path(__file__).parents[1]
TEXT = "".join(f"{i} owls read {i * i % 97} books on {i % 7} trees.\n" for i in range(900))
SHORT = ["model=tiny", "data=text", "data.paths=corpus.txt", "data.val_tokens=300"]
SHORT += ["tracking=none", "trainer.threads=1", "trainer.checkpoint_every=5", "schedule.warmup=3"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)


def start(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *SHORT, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def ended(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, json.loads(out.splitlines()[-1]) if out else None, err


def wait_for_step(step):
    """Until some run below runs/ has trained that far."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for file in Path("runs").glob("*/*/metrics.jsonl"):
            lines = [line for line in file.read_text().splitlines() if line.endswith("}")]
            if lines and json.loads(lines[-1])["step"] >= step:
                return file.parent
        time.sleep(0.01)
    raise AssertionError("training did not begin")


def without_times(folder):
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def weights(folder):
    newest = max(Path(folder, "checkpoints").glob("step-*"))
    return (newest / "model.safetensors").read_bytes(), newest.name


@pytest.mark.area("trust")
def test_sigterm_and_kill_lose_nothing_and_the_same_command_ends_bitwise_equal():
    long = ["trainer.steps=200", "trainer.log_every=1", "trainer.eval_every=50"]
    stopped = start("study=rough", *long)
    folder = wait_for_step(10)
    stopped.send_signal(signal.SIGTERM)
    code, answer, _ = ended(stopped)
    assert (code, answer["status"], answer["run"]) == (75, "preempted", str(folder))
    at = answer["steps"]
    assert weights(folder)[1] == f"step-{at:08d}"
    with hold_run(folder):
        code, _, err = ended(start("study=rough", *long))
    assert code == 75
    assert f"{folder} is being trained by process {stopped.pid}" in err

    killed = start("study=rough", *long)
    wait_for_step(at + 10)
    killed.kill()
    killed.communicate()

    calm = start("study=calm", *long)
    code, answer, _ = ended(start("study=rough", *long))
    assert (code, answer["status"], answer["steps"]) == (0, "finished", 200)
    code, expected, _ = ended(calm)
    assert code == 0
    assert without_times(answer["run"]) == without_times(expected["run"])
    assert weights(answer["run"]) == weights(expected["run"])
    assert not list(Path(answer["run"], "checkpoints").glob(".tmp-*"))


def test_a_sweep_runs_each_job_counts_them_and_writes_nothing_outside_its_study():
    code, answer, err = ended(start("-m", "norm=layernorm,rmsnorm", "trainer.steps=6"))
    assert code == 0, err
    assert answer == {
        "study": "main", "runs": 2, "finished": 2, "diverged": 0, "failed": 0, "missing": 0,
        "report": "runs/main/report.html",
    }  # fmt: skip
    assert len([path for path in Path("runs/main").iterdir() if path.is_dir()]) == 2
    assert {path.name for path in Path.cwd().iterdir()} == {"corpus.txt", "runs"}


def test_hydras_own_flags_answer_and_an_unknown_flag_is_one_line():
    listed = start("--cfg", "job")
    out, _ = listed.communicate(timeout=60)
    assert listed.returncode == 0
    assert "norm:" in out
    Path("mine/configs/norm").mkdir(parents=True)
    Path("mine/configs/norm/ours.yaml").write_text("type: rmsnorm\n")
    out, _ = start("plugins=mine", "--help").communicate(timeout=60)
    assert " ours," in out
    code, _, err = ended(start("--hepl"))
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--hepl" in err
