"""Run folders and sweep records made up for tests of the report: no training, known numbers."""

import copy
import csv
import json
from contextlib import contextmanager
from functools import cache, reduce
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
        reduce(dict.__getitem__, above, config)[last] = value
        config["chosen"][above[0]][last] = value
    return config


def folder_name(config, attempt=1):
    found = f"{config['choices']['placement']}-s{config['seed']}-{run_hash(config, DATA)[:8]}"
    return found if attempt == 1 else f"{found}-{attempt}"


def make_run(study, config, loss=None, *, status="finished", rows=4, attempt=1, **changed):
    """A run folder whose final validation loss is `loss`; `changed` keys of its summary."""
    folder = Path(study) / folder_name(config, attempt)
    folder.mkdir(parents=True)
    steps = config["trainer"]["steps"]
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
        "batch_chain": f"batches of seed {config['seed']}",
    } | changed
    resolved = {key: value for key, value in config.items() if key != "chosen"}
    held = {"form": 1, **config["chosen"], "resolved": resolved}
    (folder / "config.yaml").write_text(yaml.dump(held, Dumper=yaml.CSafeDumper, sort_keys=False))
    (folder / "summary.json").write_text(json.dumps(summary))
    with (folder / "metrics.jsonl").open("w") as file:
        for i in range(1, rows + 1):
            row = {"step": i, "tokens": tokens * i // rows}
            loss = (summary["val_loss"] or 5.0) + 3 * (1 - i / rows) ** 2
            file.write(json.dumps(row | {"train/loss": loss, "val/loss": loss}) + "\n")
    return folder


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
        "margin": 0.02,
        "tuned": [],
    } | changed
    return SweepRecord(name=name, runs=runs, **facts).write(Path(study))


def make_sweep(study, results=(), trials=(), typed=(), **changed):
    """A sweep with its runs. A result, or a trial, is (variant, seed, loss), and may have the point
    that it was tuned at as a fourth. A variant is its values by key; None diverged."""
    runs, tune = [], {}
    for stage, members in (("tune", trials), ("result", results)):
        for variant, seed, loss, *tuned_at in members:
            point = tuned_at[0] if tuned_at else {}
            config = config_at({**variant, **point}, seed, typed)
            runs.append(planned(config, variant, stage, point))
            make_run(study, config, loss, status="diverged" if loss is None else "finished")
            for key, value in point.items() if stage == "tune" else ():
                tune.setdefault(key, []).extend([value] if value not in tune.get(key, []) else [])
    facts = {
        "axes": list(dict.fromkeys(key for run in runs for key in run.variant)),
        "tune": tune,
        "tune_seeds": sorted({trial[1] for trial in trials}),
    }
    return make_record(study, runs, **facts | changed)


def config_at(values, seed, typed=()):
    """The config of values by key: a choice on an axis is typed, a dotted key is put in."""
    words = [f"{key}={value}" for key, value in values.items() if "." not in key]
    keys = {key.replace(".", "__"): value for key, value in values.items() if "." in key}
    return config_of([*typed, *words], seed, **keys)


def make_study(study, losses, **changed):
    """A sweep over placements with its runs: {"pre": {0: 2.31, 1: None}}; None diverged."""
    return make_sweep(study, by_placement(losses), **changed)


def by_placement(losses, *point):
    """{"pre": {0: 2.31}} as the members of a sweep."""
    return [
        ({"placement": p}, seed, loss, *point) for p in losses for seed, loss in losses[p].items()
    ]


def trials_at(losses):
    """{"pre": {1e-3: 2.5, 1e-2: (2.3, None)}} as the trials of a sweep: the loss at each rate, or
    that of each seed from 100 on."""
    return [
        ({"placement": placement}, seed, loss, {"optimizer.lr": rate})
        for placement, tried in losses.items()
        for rate, by_seed in tried.items()
        for seed, loss in enumerate(by_seed if isinstance(by_seed, tuple) else (by_seed,), 100)
    ]


def tuned(variant, best, *edge):
    return Tuned(variant, best, list(edge))


def tree(folder="."):
    """The mode of each path below a folder, and the time and the content of each file."""
    held = {}
    for path in sorted(Path(folder).rglob("*")):
        is_file = path.is_file() and not path.is_symlink()
        data = (path.lstat().st_mtime_ns, path.read_bytes()) if is_file else ()
        held[str(path)] = (path.lstat().st_mode, *data)
    return held


def text(study="study", **options):
    return write_report([Path(study)], **options)[0].with_name("table.md").read_text()


def rows(study="study"):
    return list(csv.DictReader(Path(study, "results.csv").read_text().splitlines()))


def folder(placement, seed):
    return Path("study", folder_name(config_of([f"placement={placement}"], seed)))


def edit(run, **changed):
    with edited(run / "summary.json") as summary:
        summary |= changed


def edit_each(runs, change):
    """Adds to the summary of each run folder what `change` returns for it."""
    for run in runs:
        with edited(run / "summary.json") as summary:
            summary |= change(summary)


def tuning_study(**changed):
    """pre tried at four rates, post at three of them, where it diverged at the last."""
    tried = {
        "pre": {1e-3: 2.5, 1e-2: 2.3, 1e-1: 2.6, 1.0: 5.0},
        "post": {1e-3: 2.4, 1e-2: 2.9, 1.0: None},
    }
    best = {"pre": {"optimizer.lr": 1e-2}, "post": {"optimizer.lr": 1e-3}}
    results = [one for p in best for one in by_placement({p: PRE}, best[p])]
    chosen = [
        tuned({"placement": "pre"}, best["pre"]),
        tuned({"placement": "post"}, best["post"], "optimizer.lr"),
    ]
    return make_sweep("study", results, trials_at(tried), **{"tuned": chosen} | changed)


def draw_nothing():
    """`skip_pictures` in a process of its own (`warm.Command(prepare=...)`)."""
    skip_pictures(SimpleNamespace(setattr=setattr))


def skip_pictures(monkeypatch):
    """Leaves out the page and the figures, which take longer than the rest of a report.
    tests/report/test_report_figures.py and test_page.py draw them."""
    monkeypatch.setattr(writing, "render_page", lambda content, findings, rows: b"a page")
    monkeypatch.setattr(writing, "draw_curves", lambda findings, rows: {})
    monkeypatch.setattr(writing, "draw_rates", lambda study: {})


@contextmanager
def edited(path):
    """The values of a JSON file, which are written back with what was changed in them."""
    values = json.loads(path.read_text())
    yield values
    path.write_text(json.dumps(values))
