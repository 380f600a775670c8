"""The pool's workers, with jobs that import nothing: a job whose worker dies, and the GPUs."""

import os
import signal
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from cheap_jobs import run_cheap_job, tries
from refusing import refused

from transformer_norms.config.launchers import PoolSettings
from transformer_norms.processes import SHARE, cores
from transformer_norms.signals import Stopping
from transformer_norms.sweep import pool

KILLED = "its worker was killed by SIGKILL; out of memory?"


def run_jobs(*stacks):
    """The errors of cheap jobs that a pool of one worker has run, by name; '' is no error."""
    jobs = [[SimpleNamespace(folder=Path(n), overrides=[n]) for n in stack] for stack in stacks]
    with closing(pool.Pool(1)) as workers, Stopping() as stopping:
        ends = workers.run(jobs, stopping)
    for end in ends.values():
        assert end.status == ("failed" if end.error else "finished")
    return {folder.name: end.error for folder, end in ends.items()}


@pytest.fixture
def cheap(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "_run_in_worker", run_cheap_job)


@pytest.mark.goal("S2")
def test_a_worker_that_dies_costs_one_attempt_of_one_job(cheap, tmp_path):
    """The first three jobs are a stack, in which the second one is to blame."""
    left = "its worker ended with code 0"
    errors = {"a": "", "always": KILLED, "b": "", "once": "", "leaves": left, "fine": ""}
    assert run_jobs(["a", "always", "b"], ["once"], ["leaves"], ["fine"]) == errors
    begun = {"a": 2, "always": pool.ATTEMPTS, "b": 1, "once": 2, "leaves": pool.ATTEMPTS, "fine": 1}
    assert tries(tmp_path) == begun


@pytest.mark.parametrize(("dying", "died"), [(1, []), (99, ["a", "b"])])
def test_a_worker_that_is_killed_at_birth_costs_one_attempt_of_one_job(
    cheap, monkeypatch, dying, died
):
    """The first `dying` workers are killed before they can read what their job is."""
    born, whole = [], pool.Worker.__init__

    def begin(worker, share):
        whole(worker, share)
        born.append(worker)
        if len(born) <= dying:
            worker.process.kill()
            worker.process.join()

    monkeypatch.setattr(pool.Worker, "__init__", begin)
    assert run_jobs("a", "b") == {name: KILLED if name in died else "" for name in "ab"}
    assert len(born) == (2 * pool.ATTEMPTS if died else 2)


def test_a_worker_that_had_a_signal_itself_gets_no_second_one_from_the_pool():
    with Stopping() as run:
        run.deferring = True
        assert not pool._was_asked()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert pool._was_asked()
    assert not pool._was_asked()


@pytest.mark.parametrize(("visible", "gpus", "given"), [
    (None, 2, ["0", "1", "0"]),
    (None, 1, ["0", "0", "0"]),
    ("3, 5", 2, ["3", "5", "3"]),
    ("3,-1,5", 1, ["3", "3", "3"]),  # CUDA sees what comes before -1
    ("", 0, ["", "", ""]),
])  # fmt: skip
def test_workers_share_the_gpus_turn_by_turn(visible, gpus, given, monkeypatch):
    for number, name in enumerate(given):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        pool._take_gpu(number, pool.visible_gpus(gpus))
        assert os.environ.get("CUDA_VISIBLE_DEVICES", "") == name


@pytest.mark.parametrize(
    ("workers", "per_gpu", "gpus", "expected"),
    [("auto", 1, 0, 2), ("auto", 1, 4, 4), ("auto", 3, 4, 12), (5, 1, 4, 5), (5, 1, 0, 5)],
)
def test_a_pool_has_per_gpu_workers_on_each_gpu(workers, per_gpu, gpus, expected, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    own = {"stacked": "none", "part": "none"}
    made = pool.Pool.of(PoolSettings(workers=workers, per_gpu=per_gpu, pools=3, **own))
    assert (made.workers, made.at_once) == (expected, 3 * expected)
    if not gpus:
        said = refused(pool.Pool.of, PoolSettings(workers="auto", per_gpu=2, pools=1, **own))
        assert said.startswith("launcher.per_gpu=2: there is no GPU")


@pytest.mark.parametrize(("share", "seen"), [("1", 1), ("", None), ("4096", None)])
def test_a_job_uses_no_more_cores_than_slurm_gave_it(share, seen, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", share)
    assert cores() == (seen or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("workers", [1, 2, 64])
def test_a_worker_has_its_share_of_the_cores_and_at_least_one(workers, monkeypatch):
    seen, taken = sorted(os.sched_getaffinity(0)), []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: taken.extend(cores))
    for number in range(workers):
        monkeypatch.setenv(SHARE, "")
        pool._take_cores(number, workers)
        assert cores() == max(1, len(seen) // workers)
    if 1 < workers <= len(seen):  # else nobody chooses cores: Slurm may name a number of them alone
        assert sorted(taken) == seen[: len(taken)]
        assert len(taken) == len(seen) // workers * workers
