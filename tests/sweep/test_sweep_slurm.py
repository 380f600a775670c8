"""`launcher=slurm` with programs in the place of Slurm's: what is submitted, when, and what the
command says. tests/scale/test_slurm.py has a real Slurm."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from refusing import refused
from sweeps import MADE_UP, BasicLauncher, trainings, write_sweep
from sweeps import made_up_sweep as sweep

from transformer_norms.errors import StorageError
from transformer_norms.storage.locks import take_lock
from transformer_norms.sweep import pilots
from transformer_norms.sweep.question import read_request

PROGRAMS = {
    "sbatch": 'n=$(ls | grep -c "^job-"); cp "$1" "job-$n"; echo "Submitted batch job $n"',
    "squeue": 'echo "$*" >> asked; [ ! -f broken ] || { cat broken >&2; exit 1; }; cat queue',
    "srun": "exit 1",
    "scontrol": 'echo "$*" >> controlled',
}
SIGNALS = (signal.SIGTERM, signal.SIGCONT, signal.SIGUSR1)
TWO = "baseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\nseeds: [0, 1, 2]\n"


@pytest.fixture
def slurm(trainings, monkeypatch, tmp_path):
    """Programs that note what they are asked. `queue` is what squeue prints. The runs of pilots are
    made up."""
    Path("bin").mkdir()
    for name, line in PROGRAMS.items():
        write_program(name, line)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SUBMITIT_FOLDER"):
        monkeypatch.setenv(name, "")  # so that it is put back
    for name, value in (("EXECUTOR", "slurm"), ("PREEMPT_SIGNAL", "USR1")):
        monkeypatch.setenv(f"SUBMITIT_{name}", value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(pilots, "_LOOK_EVERY", 0)
    monkeypatch.setattr(pilots, "Pool", Inside)
    Path("queue").touch()
    Inside.settings.clear()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield trainings
    for number, handler in before.items():  # submitit has its own
        signal.signal(number, handler)


def write_program(name, line):
    program = Path("bin", name)
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)


class Inside(BasicLauncher):
    """Stands for the pool of a pilot: runs the jobs in this process."""

    settings: list = []

    @classmethod
    def of(cls, settings):
        cls.settings.append(settings)
        return cls()


def command(capsys, *typed, text=TWO, only=""):
    """The JSON line, the exit code and the lines of `train.py sweep=mine launcher=slurm`."""
    own = write_sweep(text)
    words = ["launcher=slurm", "launcher.pilots=2", "launcher.cpus=2", "launcher.time=30", *typed]
    request = replace(read_request(own), only=only)
    launcher = pilots.make_launcher([*MADE_UP, *own, *words], request)
    return sweep(capsys, *own, launcher=launcher)


def submissions():
    return sorted(file.name for file in Path().glob("job-*"))


def run_pilots(job, number=1):
    from submitit.core.submission import process_job

    for index in range(number):
        os.environ.update(SLURM_ARRAY_JOB_ID=job, SLURM_ARRAY_TASK_ID=str(index))
        process_job("runs/mine/slurm")


def test_the_command_submits_once_shows_the_pilots_and_ends_in_the_report(slurm, capsys):
    own = "partition=long gpus=2 memory=1.5 options='--nice=3'".split()
    answer, code, err = command(capsys, *(f"launcher.{word}" for word in own))
    assert (code, answer["missing"], answer["report"]) == (75, 6, None)
    assert "submitted job 0, 2 pilots for 6 runs" in err
    assert json.loads(Path("runs/mine/slurm/mine.json").read_text()) == {"job": "0"}
    script = Path("job-0").read_text()
    flags = "array=0-1%2 time=30 cpus-per-task=2 gpus-per-node=2 mem=1536M partition=long nice=3"
    for flag in (*flags.split(), "signal=USR1@90", "requeue", "job-name=mine"):
        assert f"#SBATCH --{flag}\n" in script
    assert "--cpus-per-task=2 " in script.split("srun")[1]

    Path("queue").write_text("RUNNING None\nPENDING BeginTime\n")
    answer, code, err = command(capsys)
    assert (code, answer["missing"], submissions()) == (75, 6, ["job-0"])
    assert "job 0: 1 PENDING (BeginTime), 1 RUNNING; not ended: 6 waiting" in err
    assert slurm.runs == []

    run_pilots("0", 2)
    assert len(slurm.runs) == 6  # the second pilot found nothing to do
    pool = {"workers": "auto", "per_gpu": 1, "stacked": "none", "pools": 2, "part": "none"}
    assert [asdict(one) for one in Inside.settings] == [pool, pool]
    answer, code, _ = command(capsys)
    assert (code, answer["finished"], answer["report"]) == (0, 6, "runs/mine/report.html")
    assert submissions() == ["job-0"]

    more_seeds = TWO.replace("[0, 1, 2]", "[0, 1, 2, 3]")
    answer, code, _ = command(capsys, text=more_seeds)
    assert (code, answer["missing"], answer["failed"]) == (75, 2, 0)
    assert submissions() == ["job-0", "job-1"]


def test_pilots_that_ended_too_early_are_submitted_anew(slurm, capsys):
    command(capsys)
    slurm.killed_after(4, lambda: run_pilots("0"))
    answer, code, err = command(capsys)
    assert (code, answer["finished"], answer["missing"]) == (75, 4, 2)
    assert "the pilots of job 0 have ended without 2 runs; their logs are in runs/mine/slurm" in err
    assert submissions() == ["job-0", "job-1"]


def test_a_failure_is_told_once_and_then_tried_again(slurm, capsys):
    slurm.broken.add("layernorm")
    command(capsys)
    run_pilots("0")
    answer, code, err = command(capsys)
    assert (code, answer["finished"], answer["failed"]) == (1, 3, 3)
    names = ", ".join(f"layernorm s{seed}" for seed in range(3))
    assert f"failed: 3 runs ({names}): the pilots ended without it" in err
    assert submissions() == ["job-0"]
    assert command(capsys)[1] == 75
    assert submissions() == ["job-0", "job-1"]


def test_a_command_that_waits_ends_in_the_report(slurm, capsys, monkeypatch):
    looks = []

    def states(job):
        looks.append(job)
        if len(looks) == 3:
            slurm.killed_after(4, lambda: run_pilots(job))
        elif job == "1":
            run_pilots(job)
        return Counter({"RUNNING": 2} if len(looks) < 3 else {})

    monkeypatch.setattr(pilots, "pilot_states", states)
    answer, code, _ = command(capsys, "launcher.wait=true")
    assert (code, answer["finished"], submissions()) == (0, 6, ["job-0", "job-1"])


def test_a_command_that_waits_does_not_submit_pilots_for_ever(slurm, capsys):
    answer, code, err = command(capsys, "launcher.wait=true")
    assert (code, answer["finished"], submissions()) == (1, 0, ["job-0"])
    assert "the pilots ended without it; their logs are in runs/mine/slurm" in err


def test_a_signal_while_the_command_waits_submits_no_other_pilots(slurm, capsys, monkeypatch):
    def be_killed_and_stop(stopping):
        slurm.killed_after(4, lambda: run_pilots("0"))  # some runs have ended, and the pilots too
        stopping.stop_requested = True

    monkeypatch.setattr(pilots, "_pause", be_killed_and_stop)
    answer, code, _ = command(capsys, "launcher.wait=true")
    assert (code, answer["finished"], submissions()) == (75, 4, ["job-0"])


@pytest.mark.parametrize("record", ["{", "{}", "[]"])
def test_a_damaged_record_of_what_was_submitted_is_refused_once(record, slurm, capsys):
    command(capsys)
    Path("runs/mine/slurm/mine.json").write_text(record)
    assert refused(command, capsys).startswith("runs/mine/slurm/mine.json: ")
    assert submissions() == ["job-0"]


def test_an_unexpected_error_with_slurm_is_not_tried_again_for_each_run(slurm, capsys, monkeypatch):
    fail = Mock(side_effect=RuntimeError("no idea"))
    monkeypatch.setattr(pilots, "submit", fail)
    with pytest.raises(RuntimeError, match="no idea"):
        command(capsys)
    fail.assert_called_once()


@pytest.mark.parametrize(
    ("error", "code", "submitted"),
    [("slurm_load_jobs error: Unable to contact slurm controller", 75, 1),
     ("slurm_load_jobs error: Invalid job id specified", 75, 2)],
)  # fmt: skip
def test_without_an_answer_of_slurm_nothing_is_submitted_twice(
    error, code, submitted, slurm, capsys
):
    command(capsys)
    Path("broken").write_text(error)
    answer, code_now, err = command(capsys)
    assert (code_now, len(submissions()), answer["report"]) == (code, submitted, None)
    assert ("squeue: slurm_load_jobs error: Unable" in err) == (submitted == 1)


def test_a_refusal_of_sbatch_is_one_line(slurm, capsys):
    line = "sbatch: error: invalid partition specified: nowhere"
    write_program("sbatch", f"echo '{line}' >&2; exit 1")
    assert refused(command, capsys) == line


def test_without_submitit_or_slurm_the_launcher_says_what_is_missing(slurm, monkeypatch, tmp_path):
    asked = ["launcher=slurm"], read_request(["seed=0"])
    Path("bin/srun").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "there is no srun here" in refused(pilots.make_launcher, *asked)
    monkeypatch.setitem(sys.modules, "submitit", None)  # run_command says what brings it
    with pytest.raises(ModuleNotFoundError, match="submitit"):
        pilots.make_launcher(*asked)


def test_slurm_is_told_the_signal_that_a_pilot_listens_to(slurm, monkeypatch):
    """In a fresh process: submitit reads the variable when it is imported, and never again."""
    monkeypatch.delenv("SUBMITIT_PREEMPT_SIGNAL")
    lines = """
from transformer_norms.sweep.pilots import make_launcher
from transformer_norms.sweep.question import read_request
make_launcher(["launcher=slurm"], read_request(["seed=0"]))
from submitit.core.job_environment import JobEnvironment
print(JobEnvironment.USR_SIG)
"""
    own = {**os.environ, "PYTHONPATH": str(Path(pilots.__file__).parents[2])}
    said = subprocess.check_output([sys.executable, "-c", lines], env=own, text=True)
    assert said.strip() == pilots.SIGNAL


@pytest.mark.parametrize(
    ("broken", "state", "queued"),
    [(None, "RUNNING", ["requeue 0_0"]), (None, "COMPLETING", []),
     ("squeue", "RUNNING", []), ("scontrol", "RUNNING", [])],
)  # fmt: skip
def test_a_pilot_that_was_told_to_stop_queues_itself_unless_it_was_cancelled_or_cannot(
    broken, state, queued, slurm, capsys, monkeypatch
):
    command(capsys, "launcher.part=1/3", only="smoke")

    stop = Mock(return_value=75)
    monkeypatch.setattr(pilots, "run_sweep", stop)
    Path("queue").write_text(f"{state} None\n")
    Path("controlled").touch()
    if broken:
        write_program(broken, "echo no answer >&2; exit 1")
    with pytest.raises(SystemExit):
        run_pilots("0")
    arguments, _, only = stop.call_args.args
    assert arguments == (*MADE_UP, *write_sweep(TWO), "launcher.part=1/3")
    assert (only, Path("controlled").read_text().splitlines()) == ("smoke", queued)
    if broken != "squeue":
        assert "--jobs=0_0 " in Path("asked").read_text()  # the whole array has other states
    assert not list(Path("runs/mine/slurm").glob("*result.pkl"))


def test_a_file_system_without_locks_is_named(monkeypatch, tmp_path):
    error = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=error))
    with pytest.raises(StorageError, match="its file system offers no locks"):
        take_lock(tmp_path)
