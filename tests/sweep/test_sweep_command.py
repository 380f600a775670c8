"""Sweeps as commands: workers, signals, kill -9, two drivers, launchers and sweepers of Hydra's."""

import csv
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from cheap_jobs import end_process_of_first_seed
from pausing import PAUSE
from run_folders import draw_nothing
from sweeps import BAD, COUNTS, BasicLauncher, sweep, write_norm, write_sweep
from warm import CEILING, TEXT, Command, run_in_this_process

from transformer_norms import cli, compose, train
from transformer_norms.processes import cores
from transformer_norms.sweep import drive, pool
from transformer_norms.sweep.question import read_request

ROOT = Path(__file__).parents[2]
SHORT = ["model=nano", "data=text", "data.paths=corpus.txt", "data.val_tokens=300"]
SHORT += ["tracking=none", "schedule.warmup=3", "trainer.checkpoint_every=50"]
SHORT += ["trainer.probe_every=0", "model.depth=1"]
TWO = "question: Which?\nbaseline: {norm: rmsnorm}\nvary: {norm: [rmsnorm, layernorm]}\n"
MINE = TWO + "tune: {optimizer.lr: [1e-3, 2e-3], seed: [9], refine: 0}\nseeds: [0, 1]\n"
SMALL = TWO + "seeds: [0]\nfixed: {trainer.steps: 12, trainer.log_every: 1}\n"
WAIT = """
import os, time
from pathlib import Path
Path(f"ready-{os.getpid()}").touch()
while not Path("go").exists():
    time.sleep(0.001)
"""

# Each use in training leaves a word.
COUNTED = """
if self.training and torch.is_grad_enabled():
    with open("used.txt", "a") as file:
        file.write(f"{self.factor}\\n")
return x
"""


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    write_sweep(MINE, "")
    Path("mine/configs/sweep/small.yaml").write_text(SMALL)


def start(*arguments, prepare=None, **environment):
    typed = {text.partition("=")[0] for text in arguments}
    short = [text for text in SHORT if text.partition("=")[0] not in typed]
    return Command([*arguments, *short], environment, prepare=prepare)


def summaries(study):
    runs = {}
    for file in Path("runs", study).glob("*/summary.json"):
        with suppress(OSError, ValueError):
            runs[file.parent.name] = json.loads(file.read_text())
    return runs


def workers_at_work(study):
    return {
        summary["process"]["pid"]
        for name, summary in summaries(study).items()
        if summary["status"] == "running"
        and (rows := Path("runs", study, name, "metrics.jsonl")).is_file()
        and rows.stat().st_size
    }


def results(study):
    """The weights and the rows of a study's finished runs, in which each step is there once."""
    runs = {}
    for name, summary in summaries(study).items():
        if summary["status"] == "finished":
            run = Path("runs", study, name)
            rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            untimed = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
            assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})
            weights = max(run.glob("checkpoints/step-*/model.safetensors"))
            runs[name] = weights.read_bytes(), untimed
    return runs


def table(study):
    """The report's table, less what names the folder."""
    return Path("runs", study, "table.tex").read_text().replace(f"tab:{study}", "")


@pytest.mark.nightly  # four processes; test_sweep_pool.py and test_sweep_interrupted.py are quick
def test_a_pool_that_is_stopped_saves_its_runs_which_end_as_runs_one_by_one_do(capsys):
    Path("mine/pause.py").write_text(PAUSE)
    small = ["sweep=small", "plugins=mine", "study=rough", "trainer.replicas=1"]
    stopped = start(*small, "launcher=pool", "launcher.workers=2", PAUSE="5")
    stopped.wait_for(lambda: len(workers_at_work("rough")) == 2)
    os.killpg(stopped.pid, signal.SIGINT)
    code, answer, err = stopped.end()
    assert (code, answer["report"], answer["missing"]) == (75, None, 2), err
    assert not workers_at_work("rough")
    assert all(1 <= summary["step"] <= 5 for summary in summaries("rough").values())

    answer, code, err = sweep(capsys, *small, short=SHORT)
    assert (code, answer["finished"], answer["runs"]) == (0, 2, 2), err
    # A run that a worker of two began goes on with its share of the cores.
    threads = max(1, cores() // 2)
    assert {one["threads"] for one in summaries("rough").values()} == {threads}
    for norm in ("rmsnorm", "layernorm"):
        own = [f"norm={norm}", f"trainer.threads={threads}", "trainer.steps=12", "study=calm"]
        train(compose([*SHORT, *own, "trainer.log_every=1", "trainer.replicas=1"]))
    assert results("rough") == results("calm")


@pytest.mark.goal("S4")
@pytest.mark.parametrize("jobs", [2, nightly(20)])
def test_two_drivers_on_one_study_do_each_job_once(jobs, capsys, measured):
    name = f"counted_{jobs}"  # a name is registered once
    write_norm(name, COUNTED)
    Path("mine/pause.py").write_text(PAUSE)
    numbers = [f"{number}.0" for number in range(10, 10 + jobs)]
    arguments = ["plugins=mine", f"norm={name}", f"norm.factor={','.join(numbers)}"]
    arguments += ["trainer.steps=20", "trainer.threads=1", "trainer.log_every=2"]
    first = start("-m", *arguments, PAUSE="2")
    first.wait_for(lambda: workers_at_work("main"))

    class Second(BasicLauncher):
        def run(self, stacks, stopping):
            ends = super().run(stacks, stopping)
            Path("go").touch()  # once it has found the first driver's run held
            return ends

    second, *ended = sweep(capsys, *arguments, launcher=Second(), short=SHORT)
    code, answer, err = first.end()
    assert (code, ended[0]) == (0, 0), (err, ended)
    for one in (answer, second):
        assert (one["finished"], one["missing"]) == (jobs, 0)
    used = Counter(Path("used.txt").read_text().split())
    # Three norms in each of 20 steps, and in one pass of each driver that builds the model.
    assert used.keys() == set(numbers)
    assert all(uses - 20 * 3 in (3, 6) for uses in used.values())
    assert [len(rows) for _, rows in results("main").values()] == [10] * jobs
    measured(f"{jobs} of {jobs} jobs trained once by two drivers")


@pytest.mark.goal("S3")
@pytest.mark.parametrize("runs", [2, nightly(20)])
def test_runs_that_begin_at_one_moment_have_a_folder_each(runs, measured):
    """Each command waits for all others before it trains."""
    Path("mine/wait.py").write_text(WAIT)
    commands = [
        start("plugins=mine", f"seed={seed}", "trainer.steps=2", "trainer.threads=1")
        for seed in range(runs)
    ]
    for command in commands:
        command.wait_for(Path(f"ready-{command.pid}").exists)
    Path("go").touch()
    folders = set()
    for command in commands:
        code, answer, err = command.end()
        assert (code, answer["status"]) == (0, "finished"), err
        folders.add(answer["run"])
    assert len(folders) == len(list(Path("runs/main").iterdir())) == runs
    measured(f"{len(folders)} folders of {runs} runs that began at one moment")


def test_hydras_joblib_launcher_runs_our_jobs_with_a_users_own_norm(capsys, monkeypatch):
    write_norm("calm", COUNTED)
    typed = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "norm=rmsnorm,calm"]
    typed += ["plugins=mine", "trainer.steps=5", "trainer.threads=1", *SHORT]
    code, answer, err = run_in_this_process(typed, capsys, monkeypatch)
    assert (code, answer["finished"], answer["failed"]) == (0, 2, 0), err
    assert Path("used.txt").is_file()
    assert not list(Path("runs").rglob("multirun.yaml"))  # which hydra.multirun writes


@pytest.mark.goal("S2")
def test_by_default_a_run_that_ends_its_process_fails_alone(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(pool, "_run_in_worker", end_process_of_first_seed)
    monkeypatch.setattr("transformer_norms.sweep.ending._write_report", lambda *_: (None, 0))
    typed = ["-m", "seed=0,1", "trainer.steps=4", *SHORT]
    code, answer, err = run_in_this_process(typed, capsys, monkeypatch)
    assert (code, answer["failed"]) == (1, 1)
    assert err.splitlines()[-1] == "failed: the variant s0: its worker ended with code 9"
    begun = Counter(path.name.split("-")[0] for path in tmp_path.glob("seed*"))
    assert begun == {"seed0": pool.ATTEMPTS, "seed1": 1}


def test_hydras_basic_launcher_trains_in_the_process_of_the_command(monkeypatch):
    """A debugger sees its runs. The default has a worker."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    request, launchers = read_request(["seed=0,1"]), []
    monkeypatch.setattr(
        drive, "run_sweep", lambda words, make, only: launchers.append(make(request)) or 0
    )
    for typed in ([], ["hydra/launcher=basic"], ["launcher=pool", "launcher.workers=3"]):
        assert cli.main(["-m", "seed=0,1", *typed, *SHORT]) == 0
    one, own, three = launchers
    assert type(own).__name__ == "HydraLauncher"
    assert (one.at_once, own.at_once, three.at_once) == (1, 1, 3)


@pytest.mark.nightly
def test_a_sweeper_that_is_not_ours_runs_our_jobs_and_gets_a_report_with_short_names():
    drawn = "optimizer.lr=0.0036370446707501072,0.00759"
    process = start("-m", "hydra/sweeper=basic", drawn, "trainer.steps=5", "study=other")
    code, answer, err = process.end()
    assert (code, answer["study"], answer["finished"]) == (0, "other", 2), err
    table = csv.DictReader(Path("runs/other/results.csv").read_text().splitlines())
    assert {row["optimizer.lr"] for row in table} == {"0.003637", "0.00759"}
    assert Path(answer["report"]).is_file()
    assert {path.name for path in Path().iterdir()} == {"runs", "mine", "corpus.txt"}


def ended_runs(study):
    """The bytes of the summaries of ended runs, and when they were written."""
    return {
        name: (file.read_bytes(), file.stat().st_mtime_ns)
        for name, summary in summaries(study).items()
        if summary["status"] in ("finished", "diverged")
        for file in [Path("runs", study, name, "summary.json")]
    }


def end_through_kills(study, most, arguments, chance, rows):
    """Starts a sweep over and over, and kills its driver, `most` times at most, and at times one of
    its workers, until it has ended: soon after any number of its `rows` of metrics, and so before
    the first, in a save and in the report too. Returns the number of kills."""
    kills, before = 0, {}
    while True:
        driver = start(*arguments, f"study={study}", prepare=draw_nothing)
        if kills < most:
            at = chance.randint(0, rows)
            while driver.poll() is None and rows_of(study) < at:
                time.sleep(0.01)
            end = time.monotonic() + chance.uniform(0, 1.0)
            while driver.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
        else:
            driver.communicate(timeout=CEILING)
        now = ended_runs(study)
        assert {name: now[name] for name in before} == before, "a run that had ended was run again"
        before = now
        if driver.poll() is not None:
            code, answer, err = driver.end()
            if code == 0:
                assert answer["finished"] == answer["runs"] == len(now)
                return kills
            assert (code, "killed by SIGKILL" in err) == (1, True), err  # twice, both by us
        elif (workers := sorted(workers_at_work(study) - {driver.pid})) and chance.random() < 0.5:
            with suppress(ProcessLookupError):  # and the driver, whose other workers live on
                os.kill(chance.choice(workers), signal.SIGKILL)
        driver.kill()
        driver.communicate()
        kills += 1


def rows_of(study):
    files = Path("runs", study).glob("*/metrics.jsonl")
    return sum(file.read_bytes().count(b"\n") for file in files)


@pytest.mark.goal("S1")
@pytest.mark.parametrize(
    ("points", "launcher"), [(1, "basic"), nightly(50, "basic"), nightly(25, "pool")]
)
def test_a_sweep_whose_driver_is_killed_at_any_point_ends_as_a_calm_one(points, launcher, measured):
    """Two stages, or a quick one. KILLS in the environment says how many kills there are."""
    points = int(os.environ.get("KILLS", points))
    quick = points == 1
    common = ["plugins=mine", f"launcher={launcher}", "trainer.checkpoint_every=10"]
    common += ["sweep=small", "trainer.steps=20"] if quick else ["sweep=mine", "trainer.steps=60"]
    common += ["trainer.threads=1", "trainer.log_every=1"]
    code, answer, err = start(*common, "study=calm", prepare=draw_nothing).end()
    assert code == 0, err
    rows, counts, chance = rows_of("calm"), [], random.Random(0)
    while sum(counts) < points:
        study = f"rough{len(counts)}"
        left = points - sum(counts)
        counts.append(end_through_kills(study, left, common, chance, rows))
        assert results(study) == results("calm")
        assert len(results(study)) == answer["runs"]
        assert table(study) == table("calm")
    measured(f"{sum(counts)} of {points} kills over {len(counts)} sweeps, bitwise ({launcher})")


@pytest.mark.nightly
@pytest.mark.goal("S2")
@pytest.mark.parametrize("launcher", ["launcher=basic", "launcher=pool", "hydra/launcher=joblib"])
def test_of_twenty_jobs_those_that_fail_are_named_and_the_others_finish(launcher, measured):
    """An error, a loss that is not a number, sys.exit, its own KeyboardInterrupt, kill -9 as by
    the kernel where memory is short, and an end without a word."""
    write_norm("bad", BAD)
    ends = {0: "RuntimeError: no more", 2: "SystemExit: 7", 3: "KeyboardInterrupt"}
    dies = {4: "killed by SIGKILL", 5: "ended with code 0"}
    if "joblib" in launcher:
        dies = dict.fromkeys(dies, "TerminatedWorkerError")
    together = ", ".join(f"{{norm: bad, norm.factor: {end}.0}}" for end in (-1, *ends, *dies))
    rates = [number / 1000 for number in range(1, 15)]
    Path("mine/configs/sweep/twenty.yaml").write_text(
        f"question: Which?\nbaseline: {{optimizer.lr: 0.001}}\nvary: {{optimizer.lr: {rates}}}\n"
        f"together: [{together}]\nseeds: [0]\nfixed: {{trainer.steps: 8}}\n"
    )
    code, answer, err = start("sweep=twenty", "plugins=mine", launcher).end()
    assert code == 1, err
    assert [answer[key] for key in COUNTS] == [20, 14, 1, 5, 0], err
    for end, cause in {**ends, **dies}.items():
        (line,) = (x for x in err.splitlines() if x.startswith(f"failed: bad factor={end}"))
        assert cause in line
    status = Counter(summary["status"] for summary in summaries("twenty").values())
    assert status == {"finished": 14, "diverged": 1, "failed": 5}
    measured(f"14 of 20 jobs finish, 5 fail and 1 diverges, each with its cause ({launcher})")
