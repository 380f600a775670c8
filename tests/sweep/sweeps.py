"""Sweeps in this process, of runs of four steps, for the tests of a sweep."""

import json
import math
from collections import Counter
from functools import cache, partial
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest
import yaml
from run_folders import skip_pictures
from warm import TEXT

from transformer_norms import compose
from transformer_norms.config.chosen_files import default_axes
from transformer_norms.config.saved import to_yaml
from transformer_norms.run import run as running
from transformer_norms.run.plan import Plan
from transformer_norms.run.summary import Data, Summary
from transformer_norms.storage.locks import take_lock
from transformer_norms.sweep import drive, launching
from transformer_norms.sweep.launcher import Launcher
from transformer_norms.sweep.launching import run_jobs

SHORT = ["model=nano", "model.depth=1", "data=text", "data.paths=corpus.txt", "tracking=none"]
SHORT += "data.val_tokens=300 trainer.threads=1 trainer.steps=4 trainer.batch_size=2".split()
SHORT += ["schedule.warmup=1", "trainer.probe_every=0"]

NORM = """
import os, signal, sys
import torch
from torch import nn
from transformer_norms.norms import NORMS

@NORMS("NAME")
class Norm(nn.Module):
    '''x, or what `factor` says'''
    def __init__(self, width: int, *, factor: float) -> None:
        super().__init__()
        self.factor, self.calls = factor, 0
        if factor == 7:
            raise RuntimeError("no room")
    def forward(self, x):
"""
# At its fifth call it ends its run in the way that `factor` says.
BAD = """
self.calls += self.training
if self.calls <= 4:
    return x
if self.factor == 0:
    raise RuntimeError("no more")
if self.factor in (3, 6):
    raise (KeyboardInterrupt if self.factor == 3 else GeneratorExit("enough"))
{2: lambda: sys.exit(7), 4: lambda: os.kill(os.getpid(), signal.SIGKILL),
 5: lambda: os._exit(0)}.get(self.factor, int)()
return x * (float("nan") if self.factor < 0 else 1.0)
"""

REFUSALS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
COUNTS = "runs finished diverged failed missing".split()


class BasicLauncher(Launcher):
    """Runs jobs here, one at a time, and counts what was asked of it."""

    def __init__(self, at_once=1):
        self.asked, self.at_once = [], at_once

    def run(self, stacks, stopping):
        jobs = [job for stack in stacks for job in stack]
        self.asked += [job.overrides for job in jobs]
        return {job.folder: run_jobs([job.overrides])[0] for job in jobs}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    skip_pictures(monkeypatch)
    compose_once(monkeypatch)


def compose_once(monkeypatch, composed=None):
    """A test composes each config once, which a sweep does for a plan and for a run of it, and
    hashes no source file."""
    monkeypatch.setattr("transformer_norms.run.identity.code", lambda config: {})
    composed = composed or cache(lambda overrides: compose(list(overrides)))
    for module in ("planning", "launching"):
        monkeypatch.setattr(
            f"transformer_norms.sweep.{module}.compose", lambda words: composed(tuple(words))
        )


@pytest.fixture
def trained(monkeypatch):
    counts = Counter()
    whole = running.Run.train

    def count(self, *arguments):
        counts[self.folder.name] += 1
        return whole(self, *arguments)

    monkeypatch.setattr(running.Run, "train", count)
    return counts


def sweep(capsys, *arguments, launcher=None, short=SHORT):
    """(the JSON line, the exit code, what a person reads)."""
    code = drive.run_sweep([*short, *arguments], lambda request: launcher or BasicLauncher())
    out, err = capsys.readouterr()
    return json.loads(out.splitlines()[-1]), code, err


# ------------------------------------------------------------------ runs whose losses are made up

MADE_UP = ["model=nano", "data=stories", "tracking=none", "trainer.steps=4", "trainer.threads=1"]
SHIFTS = {"rmsnorm": 0.0, "layernorm": -0.08, "dyt": 0.08, "scalenorm": 0.0, "derf": math.inf}
SD = 0.01
composed = cache(lambda overrides: compose(list(overrides)))  # all tests have the same configs
_axes, _yamls = cache(default_axes), {}  # by the ids of configs, which `composed` keeps
made_up_sweep = partial(sweep, short=MADE_UP)


class Killed(BaseException):
    """No handler of the sweep sees it, as none sees kill -9."""


class Trainings:
    """Runs that train at once. `left` runs may still begin; those of `broken` norms raise. `runs`
    are the norms and seeds of the others in order, and `folders` their names."""

    def __init__(self):
        self.runs, self.folders, self.left, self.broken = [], [], math.inf, set()

    def train(self, run, *_):
        config = run.config
        norm, seed = config.choices["norm"], config.seed
        self.left -= 1
        if norm in self.broken:
            raise RuntimeError("out of memory")
        self.runs.append((norm, seed))
        self.folders.append(run.folder.name)
        run.folder.mkdir(parents=True)
        yaml = _yamls[id(config)] = _yamls.get(id(config)) or to_yaml(config)
        (run.folder / "config.yaml").write_text(yaml)
        (run.folder / "metrics.jsonl").write_text("")
        loss = self.loss(config)
        trained = math.isfinite(loss)
        summary = Summary(
            status="finished" if trained else "diverged", step=4, steps=4, tokens=64, seconds=90.0,
            val_loss=loss if trained else None, choices=dict(config.choices),
            identity=run.plan.hash, data=Data(identity=run.plan.data_identity, fingerprint="f"),
            batch_chain=f"seed {seed}", weights_only=True,
        )  # fmt: skip
        summary.write(run.folder)
        return summary

    def start(self, jobs):
        if self.left == 0:  # not in the run, which answers anything that is raised as its failure
            raise Killed
        return launching.run_jobs(jobs)

    def killed_after(self, left, command):
        """Runs a command that is killed after `left` runs."""
        self.left = left
        with pytest.raises(Killed):
            command()
        self.left = math.inf

    def loss(self, config):
        norm = config.choices["norm"]
        common, own = np.random.default_rng([config.seed, *norm.encode()]).normal(size=2)
        return 3 + SHIFTS[norm] + SD * own if norm != "rmsnorm" or common else 3.0

    @property
    def seeds(self):
        return {norm: {s for n, s in self.runs if n == norm} for norm in SHIFTS}


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    skip_pictures(monkeypatch)
    compose_once(monkeypatch, composed)
    monkeypatch.setattr("transformer_norms.run.plan.default_axes", _axes)
    made = Trainings()
    monkeypatch.setattr(running.Run, "train", lambda run, *rest: made.train(run, *rest))
    monkeypatch.setattr("sweeps.run_jobs", made.start)
    return made


# --------------------------------------------------------------------------- what a test writes


def write_sweep(content, question="question: Which?\n"):
    folder = Path("mine/configs/sweep")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.yaml").write_text(question + content)
    return ["sweep=mine", "plugins=mine"]


def write_norm(name, forward):
    """A norm of the plugins in `mine`. Returns its file."""
    folder, file = Path("mine/configs/norm"), Path("mine", f"{name}.py")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(f"type: {name}\nfactor: 1.0\n")
    file.write_text(NORM.replace("NAME", name) + indent(forward, " " * 8))
    return file.resolve()


def begin_elsewhere(job, **process):
    """The lock and the summary of a run that another process trains."""
    plan = Plan(compose(job.overrides))
    data = Data(identity=plan.data_identity, fingerprint=plan.tokens().fingerprint)
    summary = Summary(
        status="running", identity=plan.hash, source=plan.code, data=data, process=process
    )
    job.folder.mkdir(parents=True)
    summary.write(job.folder)
    return take_lock(job.folder), summary
