"""Nightly: a run that is killed with -9 anywhere, and started again, is the run that nobody
disturbed. tests/run/test_command.py kills one run at one step."""

import itertools
import json
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from killing import DyingCommand
from warm import TEXT

EVERY = 5
TYPED = ["model=nano", "model.width=16", "model.heads=2", "model.depth=1", "model.context=16"]
TYPED += ["data=text", "data.paths=corpus.txt", "data.val_tokens=200", "tracking=none"]
TYPED += ["trainer.threads=1", "trainer.batch_size=4", "trainer.steps=24", "trainer.log_every=1"]
TYPED += ["trainer.eval_every=6", f"trainer.checkpoint_every={EVERY}", "schedule.warmup=3"]
TYPED += ["model.dropout=0.1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)


def command(study, *more, phase=None, count=0):
    """A command with a token cache of its study's own."""
    caches = {"TRANSFORMER_NORMS_CACHE": str(Path("caches", study).resolve())}
    return DyingCommand([*more, *TYPED, f"study={study}"], caches, phase, count)


def contents(study):
    """All that a run leaves, without its times: bytes of tensors and of the curve, state, rows."""
    (folder,) = (path for path in Path("runs", study).iterdir() if path.is_dir())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows]
    assert steps == list(range(1, 25))
    found = {"rows": [{k: v for k, v in row.items() if k != "seconds"} for row in rows]}
    for file in folder.rglob("*"):
        name = str(file.relative_to(folder))
        assert ".tmp-" not in name
        if file.suffix in (".safetensors", ".svg"):
            found[name] = file.read_bytes()
        elif file.name == "state.json":
            state = json.loads(file.read_text())
            found[name] = {k: v for k, v in state.items() if not k.endswith("seconds")}
    summary = json.loads((folder / "summary.json").read_text())
    kept = "status step val_loss best_val_loss test_loss batch_chain spikes initial_loss tokens"
    return found | {key: summary[key] for key in kept.split()}


def repeated(commands):
    """How many steps each command made again, of those of the commands before it."""
    furthest = 0
    for made in (each.trained for each in commands if each.trained):
        yield furthest + 1 - made[0]
        furthest = max(furthest, *made)


@pytest.mark.goal("R1")
@pytest.mark.draws
@pytest.mark.parametrize(
    ("words", "points"),
    [
        pytest.param([], 90, marks=pytest.mark.nightly),
        pytest.param(["-m", "seed=0"], 10, marks=pytest.mark.nightly),
    ],
)
def test_a_run_that_is_killed_anywhere_ends_as_one_that_nobody_disturbed(words, points, measured):
    calm = command("calm", *words)
    assert calm.wait() == 0, calm.err
    expected, chance, kills, most = contents("calm"), random.Random(points), Counter(), 0
    only = {"report"} if words else calm.calls.keys() - {"report"}
    phases = itertools.cycle(sorted(only))
    for number in itertools.count():
        if kills.total() >= points:
            break
        study, tried = f"rough{number}", []
        while True:
            phase = next(phases)
            count = chance.randint(1, calm.calls[phase]) if kills.total() < points else 0
            tried.append(command(study, *words, phase=phase, count=count))
            if tried[-1].wait() != -signal.SIGKILL:
                break
            kills[phase] += 1
        assert tried[-1].returncode == 0, tried[-1].err
        assert contents(study) == expected, tried
        most = max(most, *repeated(tried), 0)
    assert most <= EVERY
    where = ", ".join(f"{count} in {phase}" for phase, count in sorted(kills.items()))
    measured(f"{kills.total()} kills ({where}), {number} runs bitwise, {most} steps repeated")
