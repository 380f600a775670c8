"""Run folders and sweep records made up for tests of the report: no training, known numbers."""

import copy
import csv
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import yaml

from transformer_norms.comparison.sweep_record import PlannedRun, SweepRecord, Tuned
from transformer_norms.config.compose import compose
from transformer_norms.config.tree import chosen_value
from transformer_norms.kinds import plain
from transformer_norms.report import writing
from transformer_norms.report.writing import write_report
from transformer_norms.run.identity import run_hash

BASE = ("model=nano", "data=stories", "tracking=none", "trainer.steps=40", "trainer.device=cpu")
DATA = {"type": "stories", "documents": 12000, "grammar_seed": 0}
CONTEXT, BATCH = 32, 16  # of model=nano and of the trainer
FLOPS = 6000.0  # per token
PRE = {0: 2.30, 1: 2.32, 2: 2.31}
SANDWICH = {0: 2.28, 1: 2.303, 2: 2.291}


@cache
def composed(overrides):
    return plain(compose([*BASE, *overrides]))


def config_of(overrides=(), seed=0, **keys):
    """The resolved values, `chosen` beside them, composed once; a
    seed, and dotted keys as `trainer__steps=80`, are put in afterwards."""
    config = copy.deepcopy(composed(tuple(overrides)))
    config["seed"] = config["chosen"]["seed"] = seed
    if chosen_value(config["chosen"], "data.seed") == "auto":
        config["data"]["seed"] = seed
    for key, value in keys.items():
        *above, last = key.split("__")
        node = config
        for name in above:
            node = node[name]
        node[last] = value
        config["chosen"][above[0]][last] = value
    return config


def folder_name(config, attempt=1):
    found = f"{config['choices']['placement']}-s{config['seed']}-{run_hash(config, DATA)[:8]}"
    return found if attempt == 1 else f"{found}-{attempt}"


def make_run(study, config, loss=None, *, status="finished", rows=4, attempt=1, **changed):
    """A run folder whose final validation loss is `loss`; `changed` keys of its summary."""
    folder = Path(study) / folder_name(config, attempt)
    folder.mkdir(parents=True)
    seed, steps = config["seed"], config["trainer"]["steps"]
    tokens = steps * CONTEXT * BATCH
    summary = {
        "schema": 1,
        "status": status,
        "step": steps,
        "steps": steps,
        "val_loss": loss if status == "finished" else None,
        "best_val_loss": loss,
        "test_loss": None,
        "initial_loss": 5.5,
        "tokens": tokens,
        "seconds": 2.5,
        "parameters": 115072,
        "flops": FLOPS * tokens,
        "tokens_per_second": 8192.0,
        "peak_memory": 1 << 28,
        "choices": config["choices"],
        "identity": run_hash(config, DATA),
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "commit": "c" * 40,
        "dirty": False,
        "data": {"identity": DATA, "fingerprint": "f" * 64, "corpus": DATA},
        "source": {"block.py": "aa", "norms/rmsnorm.py": "bb"},
        "device": "a processor, 2 cores",
        "threads": 1,
        "warnings": [],
        "batch_chain": f"batches of seed {seed}",
    } | changed
    resolved = {key: value for key, value in config.items() if key != "chosen"}
    held = {"form": 1, **config["chosen"], "resolved": resolved}
    (folder / "config.yaml").write_text(yaml.dump(held, Dumper=yaml.CSafeDumper, sort_keys=False))
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "metrics.jsonl").write_text("".join(map(_line, _rows(rows, tokens, summary))))
    return folder


def _rows(count, tokens, summary):
    final = summary["val_loss"] or 5.0
    for i in range(1, count + 1):
        loss = final + 3 * (1 - i / count) ** 2
        yield {"step": i, "tokens": tokens * i // count, "train/loss": loss, "val/loss": loss}


def _line(row):
    return json.dumps(row) + "\n"


def planned(config, variant, stage="result", tuned=None):
    return PlannedRun(
        folder_name(config), run_hash(config, DATA), stage, variant, tuned or {}, config["seed"]
    )


def make_record(study, runs, name="quick", **changed):
    """sweep-NAME.json: placements against pre, unless `changed`."""
    facts = {
        "question": "Which placement?",
        "axes": ["placement"],
        "baseline": {"placement": "pre"},
        "tune": {},
        "tune_seeds": [],
        "seeds": [0, 1, 2],
        "effect": 0.005,
        "tuned": [],
    } | changed
    return SweepRecord(name=name, runs=runs, **facts).write(Path(study))


def make_study(study, losses, **changed):
    """A sweep over placements with its runs: {"pre": {0: 2.31, 1: None}}; None diverged."""
    runs = []
    for placement, by_seed in losses.items():
        for seed, loss in by_seed.items():
            config = config_of([f"placement={placement}"], seed)
            runs.append(planned(config, {"placement": placement}))
            make_run(study, config, loss, status="diverged" if loss is None else "finished")
    return make_record(study, runs, **changed)


def tuned(variant, best, *edge):
    return Tuned(variant, best, list(edge))


def tree(folder="."):
    return {
        str(file): (file.lstat().st_mtime_ns, file.read_bytes())
        for file in sorted(Path(folder).rglob("*"))
        if file.is_file() and not file.is_symlink()
    }


def text(study="study", **options):
    return write_report([Path(study)], **options)[0].with_name("table.md").read_text()


def rows(study="study"):
    return list(csv.DictReader(Path(study, "results.csv").read_text().splitlines()))


def line_of(table, start):
    """The words of the first table row that begins with `start`."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {start} "))
    return [word.strip() for word in line.strip("|").split("|")]


def by_name(table, variant):
    return dict(zip(line_of(table, "variant"), line_of(table, variant), strict=True))


def folder(placement, seed):
    return Path("study", folder_name(config_of([f"placement={placement}"], seed)))


def edit(run, **changed):
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def tuning_study(**changed):
    """pre tried at four rates, post at three of them, where it diverged at the last."""
    tried = {
        "pre": {1e-3: 2.5, 1e-2: 2.3, 1e-1: 2.6, 1.0: 5.0},
        "post": {1e-3: 2.4, 1e-2: 2.9, 1.0: None},
    }
    runs = []
    for placement, losses in tried.items():
        variant = {"placement": placement}
        for rate, loss in losses.items():
            config = config_of([f"placement={placement}"], 100, optimizer__lr=rate)
            runs.append(planned(config, variant, "tune", {"optimizer.lr": rate}))
            make_run("study", config, loss, status="diverged" if loss is None else "finished")
        best = min((rate for rate in losses if losses[rate]), key=losses.get)
        for seed, loss in PRE.items():
            config = config_of([f"placement={placement}"], seed, optimizer__lr=best)
            runs.append(planned(config, variant, "result", {"optimizer.lr": best}))
            make_run("study", config, loss)
    facts = {
        "tune": {"optimizer.lr": [1e-3, 1e-2, 1e-1, 1.0]},
        "tune_seeds": [100],
        "tuned": [
            tuned({"placement": "pre"}, {"optimizer.lr": 1e-2}),
            tuned({"placement": "post"}, {"optimizer.lr": 1e-3}, "optimizer.lr"),
        ],
    }
    return make_record("study", runs, **facts | changed)


def draw_nothing():
    """`skip_pictures` in a process of its own (`warm.Command(prepare=...)`)."""
    skip_pictures(SimpleNamespace(setattr=setattr))


def skip_pictures(monkeypatch):
    """Leaves out the page and the figures, which take longer than the rest of a report.
    tests/report/test_report_figures.py and test_page.py draw them."""
    monkeypatch.setattr(writing, "render_page", lambda findings, rows, refresh: b"a page")
    monkeypatch.setattr(writing, "draw_curves", lambda findings, rows: {})
    monkeypatch.setattr(writing, "draw_rates", lambda study: {})
