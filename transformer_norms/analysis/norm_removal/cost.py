"""What removing a run's norms cost, as numbers, and as two CSV files that hold them all."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_norms.analysis.norm_removal.tuning import (
    AT_ONCE,
    BEFORE,
    ORDER,
    TUNED,
    Timetable,
    Tuned,
)
from transformer_norms.analysis.writing import spreadsheet

RESULTS, CURVES = "norm_removal.csv", "norm_removal_curves.csv"
_RESULTS = "run seed stage step val_loss val_loss_control rounding diverged".split()
_CURVES = "run seed step train_loss train_loss_control".split()


@dataclass(frozen=True)
class Cost:
    """Of the run `name`, `seed`: at each stage its step and the validation loss, and the
    control's (None where it has none); the training losses of each step; all in nats per token.

    `rounding`: the largest difference between logits before and after folding, in float64, over
    the largest logit; None where nothing was folded. `diverged`: whose tuning ended early and why,
    or ''.
    """

    name: str
    seed: int
    steps: dict[str, int]
    removed: dict[str, float]
    control: dict[str, float]
    training: list[float]
    control_training: list[float]
    rounding: float | None
    diverged: str

    @property
    def gap(self) -> float | None:
        """Nats per token above the control, at the end of both."""
        if TUNED not in self.removed or TUNED not in self.control:
            return None
        return self.removed[TUNED] - self.control[TUNED]


def cost_of(
    name: str, seed: int, timetable: Timetable, removed: Tuned, control: Tuned,
    rounding: float | None,
) -> Cost:  # fmt: skip
    steps = {stage: step for step, stage in timetable.stages.items()}
    steps |= {BEFORE: 0, AT_ONCE: timetable.start, TUNED: len(control.training)}
    reached = {**removed.validation, **control.validation}
    ends = {"without norms": removed.diverged, "control": control.diverged}
    return Cost(
        name, seed, {stage: steps[stage] for stage in ORDER if stage in reached},
        removed.validation, control.validation, removed.training, control.training, rounding,
        "; ".join(f"{whose}: {why}" for whose, why in ends.items() if why),
    )  # fmt: skip


def as_csv(costs: Sequence[Cost]) -> dict[str, bytes]:
    """Both files: a row for each stage of each run, and for each step."""
    stages, curves = [], []
    for one in costs:
        for stage, step in one.steps.items():
            last = stage == [*one.steps][-1]
            ends = [one.rounding, one.diverged] if last else ["", ""]
            losses = [one.removed.get(stage), one.control.get(stage)]
            stages.append([one.name, one.seed, stage, step, *losses, *ends])
        for step in range(max(len(one.training), len(one.control_training))):
            both = [_at(losses, step) for losses in (one.training, one.control_training)]
            curves.append([one.name, one.seed, step + 1, *both])
    return {RESULTS: spreadsheet([_RESULTS, *stages]), CURVES: spreadsheet([_CURVES, *curves])}


def _at(losses: Sequence[float], step: int) -> str:
    return str(losses[step]) if step < len(losses) else ""


def read(folder: Path) -> list[Cost]:
    """What `as_csv` wrote there."""
    stages, curves = (_grouped(folder / name) for name in (RESULTS, CURVES))
    found = []
    for key, rows in stages.items():
        rounding, own = rows[-1]["rounding"], curves[key]
        found.append(
            Cost(
                rows[0]["run"],
                int(rows[0]["seed"]),
                {row["stage"]: int(row["step"]) for row in rows},
                {row["stage"]: float(row["val_loss"]) for row in rows if row["val_loss"]},
                {
                    row["stage"]: float(row["val_loss_control"])
                    for row in rows
                    if row["val_loss_control"]
                },
                [float(row["train_loss"]) for row in own if row["train_loss"]],
                [float(row["train_loss_control"]) for row in own if row["train_loss_control"]],
                float(rounding) if rounding else None,
                rows[-1]["diverged"],
            )  # fmt: skip
        )
    return found


def _grouped(file: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    with open(file, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            found.setdefault((row["run"], row["seed"]), []).append(row)
    return found
