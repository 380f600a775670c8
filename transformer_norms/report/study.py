"""A study: the runs that a sweep planned, or that lie in folders, by variant, and their curves."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.sweep_record import FAILED_AT_START, Tuned, Values
from transformer_norms.errors import ConfigError
from transformer_norms.run.failure import EFFECT
from transformer_norms.run.reader import SavedRun

RATE = "optimizer.lr"
# unplanned: no sweep needs it; superseded: a later attempt, or a better point of the tuning grid,
# stands beside it; duplicate: the same run counts in another folder; given up: a narrower command
# was typed since, and the run has no result
Stage = Literal["result", "tune", "unplanned", "superseded", "duplicate", "given up"]


class StudyRun(NamedTuple):
    """A planned run, or a run that no sweep planned; `run` is None if there is no folder, or if it
    is `damaged`. It is `unbegun` if it failed before its first step. `identity` is the hash of its
    config, where the run counts."""

    folder: Path
    run: SavedRun | None
    stage: Stage
    variant: Values
    tuned: Values
    seed: int
    identity: str = ""
    damaged: bool = False
    unbegun: bool = False

    @property
    def status(self) -> str:
        if self.run is None:
            absent = FAILED_AT_START if self.unbegun else "missing"
            return "damaged" if self.damaged else absent
        return self.run.summary.status

    @property
    def ended(self) -> bool:
        return self.run is not None and self.run.ended

    @property
    def counts(self) -> bool:
        return self.stage in ("result", "tune")


def ended_runs(members: Iterable[StudyRun]) -> list[SavedRun]:
    """The runs that finished or diverged."""
    return [member.run for member in members if member.run and member.run.ended]


@dataclass(frozen=True)
class Variant:
    """`baseline` is the name of the variant to compare with: the variant's own name if it is a
    baseline, None if nothing is compared. `tuned` is what tuning chose."""

    name: str
    values: Values
    results: list[StudyRun]
    trials: list[StudyRun] = field(default_factory=list)
    baseline: str | None = None
    tuned: Tuned | None = None

    @property
    def compared(self) -> bool:
        return self.baseline not in (None, self.name)

    @property
    def lost(self) -> bool:
        """Whether it failed at every value that tuning tried, and so has no results."""
        return self.tuned is not None and self.tuned.best is None

    @property
    def ended(self) -> list[SavedRun]:
        """The runs that have a result."""
        return ended_runs(self.results)

    @property
    def flops_per_token(self) -> float | None:
        return next((run.flops_per_token for run in self.ended if run.flops_per_token), None)


@dataclass(frozen=True)
class Study:
    """`home`: the folder of its report. `effect`: the smallest difference worth naming, in nats per
    token. `tune`: the values that were tried of each tuned key. `contrasts`: the comparisons asked
    for beside those with a baseline; `left_out`: why a comparison is not among them. `damaged`: a
    line for each file that could not be read.
    `looks`: how often results were looked at, each time with more seeds, and `order` the seeds as
    they were added. `open_ended`: whether the number of seeds follows, or would have followed, from
    a look: it was planned so, seeds were added to results that had been seen, or planned ones were
    given up. `recorded`: whether sweeps planned all runs. `unasked`: what the runs are compared
    with though nobody said so, or why not."""

    home: Path
    axes: list[str]
    runs: list[StudyRun]
    variants: list[Variant]
    effect: float = EFFECT
    question: str = ""
    tune: dict[str, list[Any]] = field(default_factory=dict)
    contrasts: list[Contrast] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    looks: int = 1
    order: list[int] = field(default_factory=list)
    open_ended: bool = False
    recorded: bool = True
    unasked: str = ""

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    def awaits(self, name: str) -> bool:
        """Whether a variant has no results planned yet, but will: its tuning has not ended."""
        variant = self.variant(name)
        return not variant.results and not variant.lost

    def baseline_of(self, variant: Variant) -> Variant:
        """The variant that it is compared with; itself if nothing is compared."""
        return self.variant(variant.baseline or variant.name)

    @property
    def results(self) -> list[SavedRun]:
        """The runs that have a result, of all variants."""
        return [run for variant in self.variants for run in variant.ended]

    @property
    def sequential(self) -> bool:
        """Whether tests have to hold at every look: from the first look on, if the number of seeds
        follows from looks."""
        return self.looks > 1 or self.open_ended

    @property
    def rate(self) -> str | None:
        """The tuned key whose curve is shown: the learning rate, else the first with numbers."""
        keys = [key for key, values in self.tune.items() if values and all(map(finite, values))]
        return RATE if RATE in keys else next(iter(keys), None)

    @property
    def counted(self) -> list[StudyRun]:
        """The runs that count, ended or not: results and tuning runs."""
        return [member for member in self.runs if member.counts]

    def count(self) -> dict[str, int]:
        """The number of runs that count, and how many of them ended in which way."""
        runs = {member.folder: member for member in self.counted}.values()
        ended = [member.status for member in runs if member.ended]
        return {
            "runs": len(runs),
            "finished": ended.count("finished"),
            "diverged": ended.count("diverged"),
            "missing": len(runs) - len(ended),
        }

    @property
    def unfinished(self) -> bool:
        """Whether runs are missing, or a variant waits for its results to be planned."""
        waits = any(v.trials and not v.results and not v.lost for v in self.variants)
        return self.count()["missing"] > 0 or waits


def finite(value: Any) -> bool:
    """Whether a figure has room for the value: a number, and not every integer is."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and -1e300 < value < 1e300


# ------------------------------------------------------------------------------------ loss curves

_SETTLED = 0.4  # the share of training after which losses are in view
_ENOUGH = 3  # evaluations of a run whose validation loss makes a curve
Rows = Sequence[Mapping[str, Any]]  # of a run's metrics.jsonl
RowsOf = dict[Path, Rows]  # by run folder
LOSS_KEYS = {"val/loss": "validation loss", "train/loss": "training loss"}


def read_rows(runs: Iterable[SavedRun]) -> tuple[RowsOf, list[str]]:
    """Returns the rows of metrics.jsonl of each run, and a line for each file that is damaged: the
    run counts with its loss, and has no curve."""
    rows: RowsOf = {}
    lines = []
    for run in runs:
        try:
            rows[run.folder] = run.metrics()
        except ConfigError as error:
            rows[run.folder] = []
            lines.append(f"a run has no curve, as its record is damaged: {below_here(str(error))}")
    return rows, lines


def below_here(line: str) -> str:
    """Returns a line that begins with a path. The path is relative where it lies below the current
    folder."""
    return line.removeprefix(f"{os.getcwd()}{os.sep}")


@dataclass(frozen=True)
class Curve:
    """Arrays of one length: loss in nats per token, tokens, and seconds of training (NaN if they
    are not known). `name` is that of its run."""

    tokens: Any
    loss: Any
    seconds: Any
    failed: bool = False
    name: str = ""


def loss_curve(rows: Rows, key: str, failed: bool = False, most: int | None = None) -> Curve | None:
    """The loss `key` of the rows in which it is finite. More than `most` rows become as many means
    of neighbours. None if there is no such row."""
    points = [
        (row["tokens"], row[key], row["seconds"] if finite(row.get("seconds")) else nan)
        for row in rows
        if finite(row.get("tokens")) and finite(row.get(key))
    ]
    if not points:
        return None
    tokens, loss, seconds = np.array(points, dtype=float).T
    if most and len(points) > most:
        ends = np.linspace(0, len(points), most + 1).astype(int)
        loss = np.add.reduceat(loss, ends[:-1]) / np.diff(ends)
        tokens, seconds = tokens[ends[1:] - 1], seconds[ends[1:] - 1]
    return Curve(tokens, loss, seconds, failed)


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """The mean at the tokens of the curve with the fewest points, as far as all curves go."""
    if not curves:
        return None
    grid = min((curve.tokens for curve in curves), key=len)
    grid = grid[grid <= min(curve.tokens[-1] for curve in curves)]
    loss = np.mean([np.interp(grid, curve.tokens, curve.loss) for curve in curves], axis=0)
    seconds = np.mean([np.interp(grid, curve.tokens, curve.seconds) for curve in curves], axis=0)
    return Curve(grid, loss, seconds)


def enough_evaluations(evaluations: Sequence[int]) -> bool:
    """Whether most runs have enough evaluations for curves of the validation loss. `evaluations`
    are their numbers by run."""
    return 2 * sum(count >= _ENOUGH for count in evaluations) > len(evaluations)


def loss_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """The range of losses that shows how training ended. It leaves out the first steps, the runs
    that failed and those that ended above their start. If all failed, it reaches to twice the loss
    at the start."""
    if not curves:
        return 0.0, 1.0
    calm = [curve for curve in curves if not curve.failed]
    initial = float(np.median([curve.loss[0] for curve in calm or curves]))
    if not calm:
        return 0.0, 2 * initial
    calm = [curve for curve in calm if len(curve.loss) == 1 or curve.loss[-1] <= initial] or calm
    horizon = max(curve.tokens[-1] for curve in calm)
    late = [c.loss[(c.tokens >= _SETTLED * horizon) | (c.tokens == c.tokens[-1])] for c in calm]
    low = float(min(values.min() for values in late))
    high = float(np.quantile(np.concatenate(late), 0.98))
    high = min(high, initial) if initial > low else high
    room = 0.06 * (high - low) or 0.1
    return low - room, high + 2 * room
