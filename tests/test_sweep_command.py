"""Sweeps as commands: workers, signals, kill -9, two drivers, launchers and sweepers of Hydra's."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from transformer_norms import compose, train
from transformer_norms.run.machine import cores

ROOT = Path(__file__).parents[1]
TEXT = "".join(f"{i} owls read {i * i % 97} books on {i % 7} trees.\n" for i in range(900))
SHORT = ["model=tiny", "data=text", "data.paths=corpus.txt", "data.val_tokens=300"]
SHORT += ["tracking=none", "schedule.warmup=3", "trainer.checkpoint_every=50"]
SHORT += ["trainer.probe_every=0"]
MINE = """
question: Which norm?
baseline: {norm: rmsnorm}
vary: {norm: [rmsnorm, layernorm]}
tune: {optimizer.lr: [1e-3, 2e-3], seed: [9]}
seeds: [0, 1]
fixed: {trainer.steps: 240}
"""
SMALL = """
question: Which norm?
baseline: {norm: rmsnorm}
vary: {norm: [rmsnorm, layernorm, deadly]}
seeds: [0]
fixed: {trainer.steps: 160}
"""

COUNTED = """
import torch
from torch import nn
from transformer_norms.norms import NORMS

@NORMS("counted")
class Counted(nn.Module):
    '''x; each use in training leaves a word'''
    def __init__(self, width: int, *, number: int) -> None:
        super().__init__()
        self.number = number
    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            with open("used.txt", "a") as file:
                file.write(f"{self.number}\\n")
        return x
"""

DEADLY = """
import os, signal
from torch import nn
from transformer_norms.norms import NORMS

@NORMS("deadly")
class Deadly(nn.Module):
    '''x, and the end of its process'''
    def __init__(self, width: int) -> None:
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += self.training
        if self.calls > 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return x
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    folder = Path("mine/configs/sweep")
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(MINE)
    (folder / "small.yaml").write_text(SMALL)


def deadly_norm():
    """One that kills its process once it has trained a little."""
    folder = Path("mine/configs/norm")
    folder.mkdir()
    (folder / "deadly.yaml").write_text("type: deadly\n")
    Path("mine/deadly.py").write_text(DEADLY)


def start(*arguments):
    """In a process group of its own, as a terminal would."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments, *SHORT],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip


def ended(process):
    out, err = process.communicate(timeout=240)
    return process.returncode, json.loads(out.splitlines()[-1]) if out else None, err


def wait_for(condition):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come to that")


def summaries(study):
    found = {}
    for file in Path("runs", study).glob("*/summary.json"):
        try:
            found[file.parent.name] = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
    return found


def workers_at_work(study):
    return {
        summary["process"]["pid"]
        for name, summary in summaries(study).items()
        if summary["status"] == "running"
        and (rows := Path("runs", study, name, "metrics.jsonl")).is_file()
        and rows.stat().st_size
    }


def results(study):
    """What a study's finished runs came to, bit for bit; each of their steps stands there once."""
    found = {}
    for name, summary in summaries(study).items():
        if summary["status"] != "finished":
            continue
        run = Path("runs", study, name)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        steps = [row["step"] for row in rows]
        assert steps == sorted(set(steps))
        weights = max((run / "checkpoints").glob("step-*")) / "model.safetensors"
        untimed = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
        found[run.name] = (weights.read_bytes(), untimed)
    return found


def table(study):
    """The report's table, less what names the folder."""
    return Path("runs", study, "table.tex").read_text()


def test_a_pool_that_is_stopped_and_loses_workers_ends_as_runs_one_by_one_do():
    deadly_norm()
    rough = ["sweep=small", "plugins=mine", "study=rough", "launcher=pool", "launcher.workers=2"]
    first = start(*rough)
    wait_for(lambda: len(workers_at_work("rough")) == 2)
    os.killpg(first.pid, signal.SIGINT)
    code, answer, err = ended(first)
    assert (code, answer["report"]) == (75, None), err
    assert not workers_at_work("rough")
    second = start(*rough)
    os.kill(min(wait_for(lambda: workers_at_work("rough"))), signal.SIGKILL)
    code, answer, err = ended(second)
    # One job kills whichever worker has it: it fails alone, and with its cause.
    assert (code, answer["finished"], answer["failed"]) == (1, 2, 1), err
    failed = [one for one in summaries("rough").values() if one["status"] == "failed"]
    assert ["SIGKILL" in one["error"] for one in failed] == [True]
    assert "SIGKILL" in err

    threads = {one["threads"] for one in summaries("rough").values()}
    assert threads == {max(1, cores() // 2)}
    for norm in ("rmsnorm", "layernorm"):
        train(compose([*SHORT, f"norm={norm}", "trainer.steps=160", "study=calm",
                       f"trainer.threads={max(threads)}"]))  # fmt: skip
    assert results("rough") == results("calm")


def test_two_drivers_on_one_study_do_each_job_once():
    folder = Path("mine/configs/norm")
    folder.mkdir()
    (folder / "counted.yaml").write_text("type: counted\nnumber: 0\n")
    Path("mine/counted.py").write_text(COUNTED)
    arguments = ["-m", "plugins=mine", "norm=counted", "norm.number=0,1"]
    arguments += ["trainer.steps=60", "trainer.threads=1"]
    drivers = [start(*arguments), start(*arguments)]
    for driver in drivers:
        code, answer, err = ended(driver)
        assert (code, answer["finished"], answer["missing"]) == (0, 2, 0), err
    used = Counter(Path("used.txt").read_text().split())
    assert used == {"0": 60 * 5, "1": 60 * 5}  # five norms in each of 60 steps
    assert all(len(rows) == 6 for _, rows in results("main").values())


def test_hydras_joblib_launcher_runs_our_jobs_with_a_users_own_norm():
    Path("mine/configs/norm").mkdir()
    Path("mine/configs/norm/calm.yaml").write_text("type: calm\n")
    Path("mine/calm.py").write_text(
        "from torch import nn\nfrom transformer_norms.norms import NORMS\n"
        "@NORMS('calm')\nclass Calm(nn.Module):\n    '''x'''\n"
        "    def __init__(self, width: int) -> None:\n        super().__init__()\n"
        "    def forward(self, x):\n        return x\n"
    )
    code, answer, err = ended(
        start("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "norm=rmsnorm,calm",
              "plugins=mine", "trainer.steps=5", "trainer.threads=1")
    )  # fmt: skip
    assert (code, answer["finished"], answer["failed"]) == (0, 2, 0), err


@pytest.mark.nightly
def test_hydras_own_sweeper_runs_our_jobs():
    process = start("-m", "hydra/sweeper=basic", "norm=rmsnorm,layernorm", "trainer.steps=5")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert {summary["status"] for summary in summaries("main").values()} == {"finished"}
    assert len(summaries("main")) == 2


def end_through_kills(study, chance):
    """Starts the sweep over and over, kill -9 to the driver or to one of its workers at random
    moments, until it has ended; how many kills that took."""
    rough = ["sweep=mine", "plugins=mine", "launcher=pool", "trainer.steps=1200", f"study={study}"]
    kills, driver = 0, start(*rough)
    while True:
        time.sleep(chance.uniform(0.2, 10.0))
        if driver.poll() is not None:
            code, answer, err = ended(driver)
            assert code in (0, 1), err  # 1: a job lost both of its workers to us
            if code == 0:
                assert (answer["finished"], answer["runs"]) == (10, 10)
                return kills
        elif (workers := sorted(workers_at_work(study))) and chance.random() < 0.5:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
                kills += 1
            continue
        else:
            driver.kill()
            driver.communicate()
            kills += 1
        driver = start(*rough)


@pytest.mark.nightly
def test_sweeps_whose_driver_and_workers_are_killed_at_random_end_as_a_calm_one():
    """As many kills as KILLS says."""
    wanted, chance, counts = int(os.environ.get("KILLS", "50")), random.Random(0), []
    calm = start("sweep=mine", "plugins=mine", "study=calm", "trainer.threads=1",
                 "trainer.steps=1200")  # fmt: skip
    code, _, err = ended(calm)
    assert code == 0, err
    while sum(counts) < wanted:
        study = f"rough{len(counts)}"
        counts.append(end_through_kills(study, chance))
        assert results(study) == results("calm")
        assert table(study) == table("calm")
    print(f"{sum(counts)} kills over {len(counts)} sweeps: {counts}")
