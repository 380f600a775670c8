"""A stand-in for W&B that keeps what is logged, and a run folder to show."""

import json
from types import SimpleNamespace

import pytest
from run_folders import config_of, edit, make_run

from transformer_norms.run.metrics import MetricsFile
from transformer_norms.tracking import view
from transformer_norms.tracking.view import show_folder


class StandIn:
    """Each W&B run is one file in a folder of W&B's names. As in W&B, rows are lost unless the run
    is finished, a step that goes back is dropped, and a new run of an id replaces the old one."""

    def __init__(self, study):
        self.study = study
        self.reachable = False
        self.started, self.in_use, self.exit_codes = [], set(), []

    def init(self, **options):
        self.started.append(options)
        name, online = options["id"], options["mode"] == "online"
        assert options.get("resume") is None, "W&B would go on where the old run ends"
        assert name not in self.in_use, "W&B: run ID is in use"
        if online and not self.reachable:
            raise ConnectionError("no network,\nno W&B")
        self.in_use.add(name)
        prefix = "run" if online else "offline-run"
        part = self.study / "wandb" / f"{prefix}-{len(self.started):03d}-{name}"
        part.mkdir(parents=True)
        rows = {}

        def log(row, step):
            assert step >= max(rows, default=0), "W&B drops a step that goes back"
            rows.setdefault(step, {}).update(row)

        def finish(exit_code):
            self.in_use.remove(name)
            self.exit_codes.append(exit_code)
            shown = {step: {k: _plain(v) for k, v in row.items()} for step, row in rows.items()}
            (part / "rows.json").write_text(json.dumps(shown))

        # Tests with W&B itself look at these.
        ignored = dict.fromkeys(("define_metric", "write_logs"), lambda *values, **options: None)
        return SimpleNamespace(log=log, finish=finish, summary={}, **ignored)

    def rows(self):
        """The rows of the only part there is."""
        (part,) = self.study.glob("wandb/*run-*/rows.json")
        return {int(step): row for step, row in json.loads(part.read_text()).items()}


def _plain(value):
    """A number, or the name of its class for what W&B makes a file of."""
    return value if isinstance(value, (int, float)) else type(value).__name__


@pytest.fixture
def study(tmp_path):
    return tmp_path / "study"


@pytest.fixture
def stand_in(study, monkeypatch):
    stand_in = StandIn(study)
    monkeypatch.setattr(view.wandb, "init", stand_in.init)
    monkeypatch.setenv("WANDB_MODE", "offline")  # which a view sets for its process
    monkeypatch.setattr(view, "_failures", [])
    return stand_in


class Live:
    """A view of a folder that is shown while its run trains."""

    def __init__(self, folder, mode="offline"):
        self.last = False
        self._view = show_folder(folder, mode, lambda: self.last)

    def update(self, last=False):
        """Shows what is new. Returns whether the view is complete."""
        self.last = last
        return next(self._view, "complete") == "complete"


@pytest.fixture
def run(study):
    return make_run(study, config_of(), status="running", rows=0)


@pytest.fixture
def metrics(run):
    return MetricsFile(run / "metrics.jsonl")


def write(metrics, steps):
    for step in steps:
        metrics.append({"step": step, "tokens": step, "train/loss": 1 / step})


def end(run, status="finished"):
    edit(run, status=status)
    (run / "curve.svg").write_text('<?xml version="1.0"?>\n<svg xmlns="..."></svg>\n')
