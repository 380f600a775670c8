"""`launcher=slurm` on a real Slurm: pilots that are stopped, queued again, cancelled, killed."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from pausing import PAUSE
from slurm_here import ask, slurm_here, wait_until, why_not

ROOT = Path(__file__).parents[2]
SIX = ["-m", "norm=rmsnorm,layernorm", "seed=0,1,2"]
TUNED = """
question: Which norm?
baseline: {norm: rmsnorm}
vary: {norm: [rmsnorm, layernorm]}
tune: {optimizer.lr: [1e-3, 2e-3], seed: [9], refine: 0}
seeds: [0, 1]
"""
SWEEP = ["model=nano", "data=stories", "study=main"]
SWEEP += ["data.val_tokens=2000", "tracking=none", "trainer.steps=30", "trainer.threads=1"]
SWEEP += ["trainer.log_every=1", "trainer.probe_every=0", "schedule.warmup=3", "plugins=mine"]
SLURM = ["launcher=slurm", "launcher.pilots=2", "launcher.cpus=1", "launcher.workers=1"]
SLURM += ["launcher.partition=debug"]
OWN_TO_A_RUN = ("seconds", "second", "process", "folder", "memory")  # parts of columns' names

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a Slurm"),
]


@pytest.fixture(scope="module")
def slurm():
    with slurm_here() as environment:
        yield {**environment, "PYTHONPATH": str(ROOT), "PAUSE": "5", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def place(tmp_path):
    """A folder with a plugin that stops training at a step until a signal, or until `go` exists."""
    sweeps = tmp_path / "mine/configs/sweep"
    sweeps.mkdir(parents=True)
    (sweeps / "tuned.yaml").write_text(TUNED)
    (tmp_path / "mine" / "pause.py").write_text(PAUSE)
    return tmp_path


def train(place, environment, *arguments):
    """The exit code, the JSON line and what a person reads of a command."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *SWEEP, *arguments],
        cwd=place, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def statuses(place):
    return {
        json.loads(file.read_text())["status"] for file in place.glob("runs/main/*/summary.json")
    }


def standing(place):
    """How many runs have come to the step where they stand still."""
    rows = [file.read_text() for file in place.glob("runs/main/*/metrics.jsonl")]
    ends = [json.loads(text.splitlines()[-1])["step"] for text in rows if text.endswith("}\n")]
    return ends.count(5)


def job_of(place):
    return json.loads((place / "runs/main/slurm/main.json").read_text())["job"]


def wait_for_end(slurm, job):
    wait_until(lambda: not ask(slurm, "squeue", "--noheader", f"--jobs={job}"))


def process_of(slurm, job, index):
    """The process that this Slurm started for a pilot: Python, and no srun."""
    own = {"SLURM_CONF": slurm["SLURM_CONF"], "SLURM_ARRAY_JOB_ID": job}
    own["SLURM_ARRAY_TASK_ID"] = index
    wanted = {f"{key}={value}".encode() for key, value in own.items()}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            there = wanted <= set((place / "environ").read_bytes().split(b"\0"))
            if there and b"submitit.core._submit" in words and b"python" in words[0]:
                return int(place.name)
    raise AssertionError(f"no process of pilot {index}")


def arrays(place):
    """The arrays that were submitted, of which some pilot has begun."""
    logs = place.glob("runs/main/slurm/*_log.out")
    return sorted({file.name.partition("_")[0] for file in logs})


def results(place):
    """Each run's losses of every step, the table, and the rows of results.csv less their times."""
    losses = {
        file.parent.name: re.findall(r'"train/loss": ([^,}]+)', file.read_text())
        for file in place.glob("runs/main/*-s*/metrics.jsonl")
    }
    with open(place / "runs/main/results.csv") as file:
        rows = [
            {key: value for key, value in row.items() if not any(w in key for w in OWN_TO_A_RUN)}
            for row in csv.DictReader(file)
        ]
    return losses, rows, (place / "runs/main/table.md").read_text()


def local_results(place, environment, *sweep):
    """The results of the same sweep in one process, in a separate folder."""
    local = place / "local"
    local.mkdir()
    (local / "mine").symlink_to(place / "mine")
    (local / "go").touch()
    code, _, err = train(local, environment, *sweep, "launcher=basic")
    assert code == 0, err
    return results(local)


def test_pilots_of_which_one_is_preempted_and_one_killed_end_in_the_local_report(slurm, place):
    code, answer, err = train(place, slurm, *SIX, *SLURM)
    assert (code, answer["missing"], answer["report"]) == (75, 6, None), err
    job = job_of(place)
    wait_until(lambda: standing(place) == 2)
    assert "2 RUNNING; not ended: 2 running, 4 waiting" in train(place, slurm, *SIX, *SLURM)[2]

    ask(slurm, "scancel", "--signal=USR1", f"{job}_0")
    wait_until(lambda: "preempted" in statuses(place))
    os.kill(process_of(slurm, job, 1), signal.SIGKILL)
    (place / "go").touch()
    wait_for_end(slurm, job)
    logs = place / "runs/main/slurm"
    assert f"Requeued job {job}_0" in (logs / f"{job}_0_0_log.out").read_text()
    assert "Traceback" not in (logs / f"{job}_0_0_log.err").read_text()
    assert [file.name for file in logs.glob("*result.pkl")] == [f"{job}_0_0_result.pkl"]

    code, answer, err = train(place, slurm, *SIX, *SLURM)
    assert (code, answer["finished"], answer["report"]) == (0, 6, "runs/main/report.html"), err
    assert arrays(place) == [job]  # one was enough

    assert results(place) == local_results(place, slurm, *SIX)


def test_pilots_share_both_stages_of_a_sweep_that_tunes(slurm, place):
    (place / "go").touch()
    code, answer, err = train(place, slurm, "sweep=tuned", *SLURM, "launcher.wait=true")
    ended = code, answer["finished"], answer["missing"]
    assert ended == (0, 10, 0), err  # a step more at the edge
    (job,) = arrays(place)
    wait_for_end(slurm, job)
    codes = [file.name for file in (place / "runs/main/slurm").glob("*result.pkl")]
    assert sorted(codes) == [f"{job}_0_0_result.pkl", f"{job}_1_0_result.pkl"]
    assert results(place) == local_results(place, slurm, "sweep=tuned")


def test_a_pilot_at_its_time_limit_goes_on_later_and_a_cancelled_one_does_not(slurm, place):
    one = ["launcher=slurm", "launcher.cpus=1", "launcher.workers=1", "launcher.time=3"]
    one += ["launcher.options='--signal=USR1@120'"]
    code, _, err = train(place, slurm, *SIX, *one)
    assert code == 75, err
    job = job_of(place)
    log = place / f"runs/main/slurm/{job}_0_log.out"
    wait_until(lambda: log.exists() and f"Requeued job {job} (999 remaining" in log.read_text())
    assert statuses(place) == {"preempted"}
    wait_until(lambda: "finished" in statuses(place))
    ask(slurm, "scancel", job)  # while the next run stands still
    wait_for_end(slurm, job)
    code, answer, err = train(place, slurm, *SIX, *one)
    assert (code, answer["finished"], answer["missing"]) == (75, 1, 5)
    assert f"the pilots of job {job} have ended without 5 runs" in err
