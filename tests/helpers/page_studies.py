"""Studies made up for tests of the page: with tuned rates, a variant that diverged, and probes."""

import json
from pathlib import Path

from markupsafe import Markup
from run_folders import config_at, folder_name, make_sweep, tuned

from transformer_norms.report import page, writing
from transformer_norms.report.charts.panels import SECTIONS, panels
from transformer_norms.report.figures import drawn_with, subplots
from transformer_norms.report.page.charts import Chart
from transformer_norms.report.paper.figure_sheet import TEXT
from transformer_norms.training.measures import Place, key_of

RATES = [5e-3, 1e-2, 2e-2]
LOSSES = {
    ("rmsnorm", "pre"): {0: 2.30, 1: 2.32, 2: 2.31},
    ("rmsnorm", "post"): {0: 2.18, 1: 2.203, 2: 2.191},
    ("layernorm", "pre"): {0: 2.31, 1: 2.325, 2: 2.30},
    ("layernorm", "post"): {0: 2.4, 1: None, 2: 2.45},
}
STEPS = [1, 20, 40]


def value(seed, step, block, measure=0):
    """What a run's probe says; means over seeds are easily computed by hand."""
    return 1 + seed + 10 * block + step / 100 + 1000 * measure


def probed(run, seed):
    """Adds probes to a run's rows: of two blocks, and of what stands before and behind them."""
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()][-len(STEPS) :]
    parts = ("stream_rms", ""), ("gradient_norm", "attention.query"), ("gradient_norm", "mlp.up")
    for row, step in zip(rows, STEPS, strict=True):
        row |= {"step": step, "seconds": step / 2}
        for block in (0, 1):
            for number, place in enumerate(parts):
                row[key_of(Place(*place, block))] = value(seed, step, block, number)
        for name, measured in ("stream_rms", 0.5), ("gradient_norm", 0.25):
            row[key_of(Place(name, "embedding", None))] = measured
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tuned_study(study):
    """Two norms at two placements, each tuned; the highest rate diverges with post."""
    best = {"optimizer.lr": RATES[1]}
    variants = {names: {"norm": names[0], "placement": names[1]} for names in LOSSES}
    trials = [
        (variant, 100, None if "post" in names and loss == 2.5 else loss, {"optimizer.lr": rate})
        for names, variant in variants.items()
        for rate, loss in zip(RATES, (2.6, 2.35, 2.5), strict=True)
    ]
    results = [(variants[names], *run, best) for names in LOSSES for run in LOSSES[names].items()]
    make_sweep(study, results, trials, tuned=[tuned(one, best) for one in variants.values()])
    for variant, seed, loss, _ in results:
        if loss is not None:
            probed(Path(study, folder_name(config_at(variant | best, seed))), seed)


def depth_study(study):
    """Two placements at three depths."""
    results = [
        ({"placement": placement, "model.depth": depth}, seed, 3 - depth / 20 - gain + seed / 100)
        for placement, gain in (("pre", 0.0), ("sandwich", 0.02))
        for depth in (2, 4, 16)
        for seed in (0, 1)
    ]
    return make_sweep(study, results, seeds=[0, 1])


def runs_of(study):
    """Each run folder with its summary."""
    files = sorted(Path(study).glob("*/summary.json"))
    return {file.parent.name: json.loads(file.read_text()) for file in files}


def skip_charts(monkeypatch):
    """Leaves out what takes longest of a page: its drawings, but not the places for them."""

    def charts(findings, rows):
        found = {section: [] for section in SECTIONS}
        for panel in panels(findings, rows):
            found[panel.section].append(Chart(panel, Markup()))
        return found

    monkeypatch.setattr(page, "page_charts", charts)
    monkeypatch.setattr(page, "block_drawings", lambda variants: [])


def skip_files(monkeypatch):
    """Leaves out the figures in files of their own."""
    monkeypatch.setattr(writing, "draw_curves", lambda findings, rows: {})
    monkeypatch.setattr(writing, "draw_rates", lambda study: {})


def panels_of(findings):
    """The panels of a study by name."""
    rows = {run.folder: run.metrics() for run in findings.study.results}
    return {panel.name: panel for panel in panels(findings, rows)}


def axes_of(panel, settings={}):
    """The axes of a panel, drawn."""
    with drawn_with(TEXT, settings):
        _, axes = subplots()
        panel.draw(axes)
    return axes
