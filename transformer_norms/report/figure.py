"""curves.svg and curves.png: how the variants trained, and where every seed ended."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from transformer_norms.report.drawing import pyplot, saved
from transformer_norms.report.findings import Findings
from transformer_norms.report.panels import Curve, finals, training
from transformer_norms.report.reading import Run
from transformer_norms.report.table import LOSSES

_EVALUATIONS = 3  # of a run whose validation loss makes a curve
_WIDTH, _HEIGHT, _PER_NAME = 8.6, 3.4, 0.15  # inches


def curves(findings: Findings) -> dict[str, bytes]:
    """The figure as an SVG and as a PNG; none where no run has ended."""
    study = findings.study
    shown = [variant for variant in study.variants if variant.ended]
    if not shown:
        return {}
    plt = pyplot()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(_WIDTH, max(_HEIGHT, _PER_NAME * len(shown) + 1)),
        width_ratios=(1.5, 1), layout="constrained",
    )  # fmt: skip
    figure.get_layout_engine().set(wspace=0.05)
    loss, drawn = _read([variant.ended for variant in shown])
    names = [variant.name for variant in shown]
    training(left, names, drawn)
    left.set(xlabel="tokens", ylabel=f"{loss}, nats per token")
    finals(right, names, [findings.outcomes[name] for name in names])
    right.set(xlabel=f"final {LOSSES[findings.loss]}, nats per token")
    files = {f"curves.{kind}": saved(figure, kind) for kind in ("svg", "png")}
    plt.close(figure)
    return files


def _read(runs: Sequence[Sequence[Run]]) -> tuple[str, list[list[Curve]]]:
    """Which loss is drawn, validation where most runs have enough of it, and the curves."""
    rows = {run.folder: run.metrics() for members in runs for run in members}
    evaluated = [len(_points(found, "val/loss")) >= _EVALUATIONS for found in rows.values()]
    key = "val/loss" if 2 * sum(evaluated) > len(evaluated) else "train/loss"
    drawn = [
        [
            Curve(np.array(points).T, run.summary.status == "diverged")
            for run in members
            if (points := _points(rows[run.folder], key))
        ]
        for members in runs
    ]
    return {"val/loss": "validation loss", "train/loss": "training loss"}[key], drawn


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """Where both are finite numbers."""
    found: list[tuple[float, float]] = []
    for row in rows:
        x, y = row.get("tokens"), row.get(key)
        if isinstance(x, (int, float)) and isinstance(y, (int, float)) and isfinite(x + y):
            found.append((x, y))
    return found
