"""A stand-in for W&B that keeps what is logged, and a run folder to show."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from run_folders import config_of, edit, make_run

from transformer_norms.run.metrics import MetricsFile
from transformer_norms.tracking import view
from transformer_norms.tracking.view import View


class StandIn:
    """Each W&B run is one file in a folder of W&B's names. As in W&B, rows are lost unless the run
    is finished, a step that goes back is dropped, and a new run of an id replaces the old one."""

    def __init__(self, study):
        self.study = study
        self.reachable = False
        self.started: list[dict[str, Any]] = []
        self.in_use: set[str] = set()
        self.defined: dict[str, Any] = {}
        self.exit_codes: list[int] = []
        self.console: list[str] = []
        self.artifacts: list[tuple[str, str, list[str], dict[str, str]]] = []
        self.server: dict[str, dict[int, dict[str, Any]]] = {}

    @property
    def modes(self):
        return [options["mode"] for options in self.started]

    def teardown(self):
        self.in_use.clear()

    def init(self, **options):
        self.started.append(options)
        name, online = options["id"], options["mode"] == "online"
        assert options.get("resume") is None, "W&B would go on where the old run ends"
        assert name not in self.in_use, "W&B: run ID is in use"
        self.in_use.add(name)
        if online and not self.reachable:
            raise ConnectionError("no network,\nno W&B")
        prefix = "run" if online else "offline-run"
        part = self.study / "wandb" / f"{prefix}-{len(self.started):03d}-{name}"
        part.mkdir(parents=True)
        rows: dict[int, dict[str, Any]] = {}
        if online:
            self.server[name] = rows

        def log(row, step):
            assert step >= max(rows, default=0), "W&B drops a step that goes back"
            kinds = {k: v if isinstance(v, (int, float)) else v for k, v in row.items()}
            rows.setdefault(step, {}).update(kinds)

        def define_metric(metric, **kinds):
            self.defined[metric] = kinds

        def finish(exit_code):
            self.in_use.remove(name)
            self.exit_codes.append(exit_code)
            shown = {step: {k: _plain(v) for k, v in row.items()} for step, row in rows.items()}
            (part / "rows.json").write_text(json.dumps(shown))

        return SimpleNamespace(
            log=log, finish=finish, summary={}, define_metric=define_metric,
            write_logs=self.console.append, log_artifact=self.keep_artifact,
        )  # fmt: skip

    def keep_artifact(self, artifact, aliases):
        paths = {entry.path: entry.local_path for entry in artifact.manifest.entries.values()}
        self.artifacts.append((artifact.name, artifact.type, aliases, paths))

    def rows(self):
        """The rows of the only part there is."""
        (part,) = self.study.glob("wandb/*run-*/rows.json")
        return {int(step): row for step, row in json.loads(part.read_text()).items()}


def _plain(value):
    """The name of its class stands for what W&B makes a file of."""
    return value if isinstance(value, (int, float)) else type(value).__name__


@pytest.fixture
def study(tmp_path):
    return tmp_path / "study"


@pytest.fixture
def stand_in(study, monkeypatch):
    stand_in = StandIn(study)
    monkeypatch.setattr(view.wandb, "init", stand_in.init)
    monkeypatch.setattr(View, "unreached", False)
    return stand_in


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
