"""The training losses of tuned models beside their controls', as a table and as lines."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from transformer_norms.analysis.norm_tuning import Cost
from transformer_norms.report.figures import GREY, line_style
from transformer_norms.text_tables import csv_table

SMOOTH = 15  # steps, of what is drawn of a step's differences


def by_name(costs: Sequence[Cost]) -> dict[str, list[Cost]]:
    """The costs of each variant."""
    groups: dict[str, list[Cost]] = {}
    for cost in costs:
        groups.setdefault(cost.name, []).append(cost)
    return groups


def curves_csv(costs: Sequence[Cost]) -> bytes:
    """A row for each step of each model."""
    rows: list[list[Any]] = ["run seed step train_loss train_loss_control".split()]
    for cost in costs:
        pairs = zip_longest(cost.changed.training, cost.control.training, fillvalue="")
        for step, both in enumerate(pairs, start=1):
            rows.append([cost.name, cost.seed, step, *map(str, both)])
    return csv_table(rows)


def draw_differences(axes: Any, costs: Sequence[Cost]) -> None:
    """Draws how far each step's training loss lies above the control's, on the same batch: a thin
    line a seed, a thick one a variant's mean."""
    for place, (name, own) in enumerate(by_name(costs).items()):
        colour, dashes = line_style(place + 1)
        lines = []
        for cost in own:
            losses, others = cost.changed.training, cost.control.training
            steps = min(len(losses), len(others))
            apart = np.array(losses[:steps]) - np.array(others[:steps])
            if steps >= SMOOTH:
                lines.append(np.convolve(apart, np.ones(SMOOTH) / SMOOTH, "valid"))
                each = np.arange(len(lines[-1])) + SMOOTH
                axes.plot(each, lines[-1], color=colour, linewidth=0.4)
        if lines:
            mean = np.mean([line[: min(map(len, lines))] for line in lines], axis=0)
            axes.plot(
                np.arange(len(mean)) + SMOOTH, mean, color=colour, linestyle=dashes, linewidth=1.6,
                label=name,
            )  # fmt: skip
    axes.set(xlabel="step", ylabel=f"training loss - control's, nats\n(mean of {SMOOTH} steps)")
    axes.axhline(0, color=GREY, linewidth=0.8)
