"""Draws the curve of one run: loss against tokens."""

from io import BytesIO
from pathlib import Path
from typing import Any

from transformer_norms.run.metrics import read_metrics
from transformer_norms.run.summary import Summary
from transformer_norms.storage.files import write_bytes

TRAIN, VALIDATION, LINE = "#9db4c8", "#0b4f8a", "#666666"  # dark enough for print in grey
NAME_HEIGHT = 0.045  # of the axes


def draw_curve(folder: Path, summary: Summary) -> Path:
    """Writes the folder's curve.svg: train and validation loss in nats per token, with what no
    model at all would score (uniform, n-grams) and, where it is known, the text's own entropy."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    rows = read_metrics(folder / "metrics.jsonl")
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    _plot(axes, rows, "train/loss", "training", TRAIN, 1.0)
    _plot(axes, rows, "val/loss", "validation", VALIDATION, 1.8)
    _name_lines(axes, summary.data.reference_lines())
    axes.set(xlabel="tokens", ylabel="loss, nats per token", title=folder.name)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    path = folder / "curve.svg"
    svg = BytesIO()
    with rc_context({"svg.hashsalt": folder.name}):  # the same curve is the same file
        figure.savefig(svg, format="svg", metadata={"Date": None})
    write_bytes(path, svg.getvalue())
    return path


def _name_lines(axes: Any, lines: dict[str, float]) -> None:
    """Draws each line, with its name to the right of the axes. Names that would cover one another
    are written further down."""
    for value in lines.values():
        axes.axhline(value, color=LINE, linewidth=0.8, linestyle=":")
    low, high = axes.get_ylim()
    place = high
    for name, value in sorted(lines.items(), key=lambda line: -line[1]):
        place = min(value, place - NAME_HEIGHT * (high - low))
        axes.annotate(
            f"{name} {value:.2f}", (1, place), xycoords=("axes fraction", "data"),
            xytext=(3, 0), textcoords="offset points", va="center", color=LINE, fontsize=8,
        )  # fmt: skip


def _plot(axes: Any, rows: list[Any], key: str, label: str, colour: str, width: float) -> None:
    points = [(row["tokens"], row[key]) for row in rows if row.get(key) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=width)
        axes.annotate(
            label, points[-1], xytext=(4, 6 if key == "train/loss" else -10),
            textcoords="offset points", ha="right", color=colour, fontsize=9,
        )  # fmt: skip
