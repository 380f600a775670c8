"""The pool's workers, with jobs that import nothing: what becomes of a job whose worker dies."""

import os
import signal
from collections import Counter
from pathlib import Path

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
