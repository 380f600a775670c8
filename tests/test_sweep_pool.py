"""The pool's workers, with jobs that import nothing: a job whose worker dies, and the GPUs."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from transformer_norms.sweep import pool


def run_cheap_job(overrides):
    """Stands for a job: `fine` ends, `once` kills its worker once, `always` every time."""
    name = overrides[0]
    tried = Path(f"{name}-{os.getpid()}")
    tried.touch()
    attempts = len(list(Path().glob(f"{name}-*")))
    if name == "always" or (name == "once" and attempts == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"status": "finished", "threads": overrides[-1]}


def test_a_worker_that_dies_costs_one_attempt_of_one_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "_run_in_worker", run_cheap_job)
    workers = pool.Pool(1)
    answers = workers.run([["always"], ["once"], ["fine", "trainer.threads=3"]])
    workers.close()
    assert [answer["status"] for answer in answers] == ["failed", "finished", "finished"]
    assert answers[0]["error"] == "its worker was killed by SIGKILL; out of memory?"
    assert answers[2]["threads"] == "trainer.threads=3"  # typed, so no share is given
    assert Counter(path.name.split("-")[0] for path in tmp_path.iterdir()) == {
        "always": pool.ATTEMPTS, "once": 2, "fine": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "gpus", "given"),
    [
        (None, 2, ["0", "1", "0"]),
        (None, 1, ["0", "0", "0"]),
        ("3, 5", 2, ["3", "5", "3"]),
        ("3,-1,5", 1, ["3", "3", "3"]),  # CUDA sees what stands before -1
        ("", 0, ["", "", ""]),
    ],
)
def test_workers_share_the_gpus_turn_by_turn(visible, gpus, given, monkeypatch):
    for number, name in enumerate(given):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        pool._take_gpu(number, gpus)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == name
