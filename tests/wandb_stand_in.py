"""A stand-in for W&B that keeps what is logged, and a run folder to mirror."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformer_norms.mirror import parts

from transformer_norms import files
from transformer_norms.tracking.parts import Mirrored


def plain(value: Any) -> Any:
    """What W&B makes a file of, by its kind."""
    return value if isinstance(value, (int, float)) else type(value).__name__


class StandIn:
    """Parts of W&B runs as folders; a row is lost unless its part is finished, as in W&B."""

    def __init__(self, study: Path) -> None:
        self.study = study
        self.parts = 0
        self.starting_step = 0
        self.reachable = False
        self.started: list[dict[str, Any]] = []
        self.in_use: set[str] = set()
        self.defined: dict[str, Any] = {}

    def teardown(self) -> None:
        self.in_use.clear()

    def init(self, **options: Any) -> Any:
        self.started.append(options)
        assert options["id"] not in self.in_use, "W&B: run ID is in use"
        if options["mode"] == "online" and not self.reachable:
            self.in_use.add(options["id"])
            raise ConnectionError("no network,\nno W&B")
        self.parts += 1
        prefix = "offline-" if options["mode"] == "offline" else ""
        part = self.study / "wandb" / f"{prefix}run-{self.parts:03d}-{options['id']}-{self.parts}"
        part.mkdir(parents=True)
        rows: dict[int, dict[str, Any]] = {}
        last = -1

        def log(row: dict[str, Any], step: int) -> None:
            nonlocal last
            assert step >= last, "W&B drops a step that goes back"
            last = step
            rows.setdefault(step, {}).update({key: plain(value) for key, value in row.items()})

        def define_metric(name: str, **options: Any) -> None:
            self.defined[name] = options

        def finish(exit_code: int) -> None:
            (part / "rows.json").write_text(
                json.dumps([exit_code, list(rows), list(rows.values())])
            )

        return SimpleNamespace(
            log=log,
            finish=finish,
            summary={},
            define_metric=define_metric,
            settings=SimpleNamespace(sync_dir=str(part)),
            starting_step=self.starting_step if options["mode"] == "online" else 0,
        )

    def rows(self) -> list[tuple[int, dict[str, Any]]]:
        found = []
        for part in sorted(self.study.glob("wandb/*run-*")):
            _, steps, rows = json.loads((part / "rows.json").read_text())
            found += zip(steps, rows, strict=True)
        return found

    def steps(self) -> list[int]:
        return [step for step, _ in self.rows()]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return tmp_path / "study"


@pytest.fixture
def stand_in(study: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(study)
    monkeypatch.setattr(parts.wandb, "init", stand_in.init)
    monkeypatch.setattr(parts.wandb, "teardown", stand_in.teardown)
    monkeypatch.setattr(Mirrored, "_unreached", False)
    monkeypatch.setattr(Mirrored, "_running", set())
    return stand_in


@pytest.fixture
def metrics(study: Path) -> files.MetricsFile:
    folder = study / "run"
    folder.mkdir(parents=True)
    set_status(folder, "running")
    return files.MetricsFile(folder / "metrics.jsonl")


def set_status(folder: Path, status: str) -> None:
    files.write_json(folder / "summary.json", {"status": status, "choices": {"norm": "rmsnorm"}})


def write(metrics: files.MetricsFile, steps: range) -> None:
    for step in steps:
        metrics.append({"step": step, "tokens": step, "train/loss": 1 / step})
