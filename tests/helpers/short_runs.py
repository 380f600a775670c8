"""Runs of 24 steps in this process, which are stopped at a step, and compared bitwise."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformer_norms import compose, train
from transformer_norms.run.checkpoint import newest
from transformer_norms.signals import Stopping
from transformer_norms.training.trainer import Trainer

TEXT = "".join(
    f"{i} cats sat on {i * i % 97} mats, said the {i % 7}th of them.\n" for i in range(900)
)
BASE = ["model=nano", "model.width=16", "model.heads=2", "model.depth=1", "model.context=16"]
BASE += ["data=text", "data.paths=corpus.txt", "data.val_tokens=500", "tracking=none"]
BASE += ["trainer.steps=24", "trainer.batch_size=4", "trainer.eval_every=10", "trainer.log_every=3"]
BASE += ["trainer.checkpoint_every=7", "trainer.threads=1", "schedule.warmup=4"]
BASE += ["trainer.probe_every=5", "model.dropout=0.1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    return tmp_path


def config_of(*overrides):
    """BASE, where what is given here takes the place of the same key."""
    typed = dict(text.split("=", 1) for text in [*BASE, *overrides])
    if typed["data"] != "text":
        del typed["data.paths"]
    words = tuple(f"{key}={value}" for key, value in typed.items())
    return compose(words) if "continue_from" in typed else composed(words)


composed = cache(compose)  # most tests have the same few configs


def go(*overrides):
    """A short run."""
    return train(config_of(*overrides))


def rows(folder):
    read = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read]


def state(folder):
    saved = newest(Path(folder) / "checkpoints", None, print)
    tensors = {}
    for file in saved.path.glob("*.safetensors"):
        before = "" if file.stem in ("model", "optimizer") else f"{file.stem}/"
        tensors |= {f"{before}{name}": tensor for name, tensor in load_file(file).items()}
    return tensors, {k: v for k, v in saved.state.items() if not k.endswith("seconds")}


def same(one, other):
    (a, s), (b, t) = state(one), state(other)
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a) and s == t and rows(one) == rows(other)


def let_runs_stop(monkeypatch):
    """stop_at(2, 5): the next run is asked to stop after 2 steps, the one after it after 5."""
    train_step, enter = Trainer.train_step, Stopping.__enter__
    current = {"stops": iter([])}

    def entered(self):
        current.update(stopping=self, at=next(current["stops"], None))
        return enter(self)

    def stepped(self):
        reason = train_step(self)
        if self.step == current["at"]:
            current["stopping"].stop_requested = True
        return reason

    monkeypatch.setattr(Stopping, "__enter__", entered)
    monkeypatch.setattr(Trainer, "train_step", stepped)
    return lambda *steps: current.update(stops=iter(steps))


stop_at = pytest.fixture(let_runs_stop, name="stop_at")
