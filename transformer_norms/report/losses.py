"""Loss curves of runs: read from their rows, and averaged over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np

_SETTLED = 0.4  # the share of training after which losses are in view
ENOUGH = 3  # evaluations of a run whose validation loss makes a curve
Rows = Sequence[Mapping[str, Any]]  # of a run's metrics.jsonl
KEYS = {"val/loss": "validation loss", "train/loss": "training loss"}


@dataclass(frozen=True)
class Curve:
    """Arrays alike in length: loss in nats per token against tokens, and the seconds of training
    that it took, NaN where that is not known."""

    tokens: Any
    loss: Any
    seconds: Any
    diverged: bool = False


def curve_of(rows: Rows, key: str, diverged: bool = False, most: int | None = None) -> Curve | None:
    """Of the rows in which both are finite; of more than `most` rows, as many means of neighbours.
    None where there is no such row."""
    found = [
        (row["tokens"], row[key], row["seconds"] if _number(row.get("seconds")) else nan)
        for row in rows
        if _number(row.get("tokens")) and _number(row.get(key))
    ]
    if not found:
        return None
    tokens, loss, seconds = np.array(found, dtype=float).T
    if most and len(found) > most:
        ends = np.linspace(0, len(found), most + 1).astype(int)
        loss = np.add.reduceat(loss, ends[:-1]) / np.diff(ends)
        tokens, seconds = tokens[ends[1:] - 1], seconds[ends[1:] - 1]
    return Curve(tokens, loss, seconds, diverged)


def _number(value: Any) -> bool:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and abs(value) < 1e300 and isfinite(value)


def averaged(curves: Sequence[Curve]) -> Curve | None:
    """At the tokens of the curve with the fewest points, over what they all cover."""
    if not curves:
        return None
    grid = min((curve.tokens for curve in curves), key=len)
    last = min(curve.tokens[-1] for curve in curves)
    grid = grid[grid <= last]
    return Curve(
        grid,
        np.mean([np.interp(grid, curve.tokens, curve.loss) for curve in curves], axis=0),
        np.mean([np.interp(grid, curve.tokens, curve.seconds) for curve in curves], axis=0),
    )


def which(evaluated: Sequence[int]) -> str:
    """Which loss is drawn: validation where most runs have `ENOUGH` of it, by their counts."""
    enough = [count >= ENOUGH for count in evaluated]
    return "val/loss" if 2 * sum(enough) > len(enough) else "train/loss"


def view(curves: Sequence[Curve]) -> tuple[float, float]:
    """The range of losses that shows how it ended: cut are the first steps, what diverged and what
    learned nothing; where all diverged, what rose far above the losses at the start."""
    if not curves:
        return 0.0, 1.0
    begun = float(np.median([curve.loss[0] for curve in curves]))
    calm = [curve for curve in curves if not curve.diverged]
    if not calm:
        return 0.0, 2 * begun
    calm = [curve for curve in calm if len(curve.loss) == 1 or curve.loss[-1] <= begun] or calm
    horizon = max(curve.tokens[-1] for curve in calm)
    late = [c.loss[(c.tokens >= _SETTLED * horizon) | (c.tokens == c.tokens[-1])] for c in calm]
    low = float(min(values.min() for values in late))
    high = float(np.quantile(np.concatenate(late), 0.98))
    high = min(high, begun) if begun > low else high
    room = 0.06 * (high - low) or 0.1
    return low - room, high + 2 * room
