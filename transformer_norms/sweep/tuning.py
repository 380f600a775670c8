"""Stage 1's answer: at which point of the grid each variant trained best, and whether the grid was
wide enough to tell."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from transformer_norms.run.folder import summary_of
from transformer_norms.run.sweep_record import Tuned, Values

Grid = dict[str, list[Any]]
Trial = tuple[Values, Path]  # a point of the grid, and the run that tried it


def chosen(variant: Values, trials: Sequence[Trial], grid: Grid) -> Tuned:
    """The point with the lowest mean validation loss over the tuning seeds, in which a diverged run
    counts as its initial loss, infinity where it has none. A point where every seed diverged is
    no choice."""
    losses: dict[int, list[float]] = {}
    sound: set[int] = set()
    points: list[Values] = []
    for point, folder in trials:
        if point not in points:
            points.append(point)
        number = points.index(point)
        summary = summary_of(folder)
        diverged = summary["status"] == "diverged"
        loss = summary["initial_loss"] if diverged else summary["val_loss"]
        losses.setdefault(number, []).append(inf if loss is None else loss)
        if not diverged:
            sound.add(number)
    if not sound:
        return Tuned(variant=variant, best=None, edge=[key for key in grid if _steps(grid[key])])
    best = points[min(sound, key=lambda number: sum(losses[number]) / len(losses[number]))]
    edge = [key for key, steps in grid.items() if _steps(steps) and best[key] in _ends(steps)]
    return Tuned(variant=variant, best=best, edge=edge)


def extended(grid: Grid, answers: Sequence[Tuned]) -> Grid:
    """The grid with a step more at each end where some variant did best, for all variants alike;
    below, for a variant that diverged everywhere."""
    wider = {key: list(values) for key, values in grid.items()}
    for key, values in grid.items():
        if not _steps(values):
            continue
        lowest, highest = _ends(values)
        bests = [answer.best[key] if answer.best else lowest for answer in answers]
        steps = sorted(values)
        if highest in bests:
            wider[key].append(_next(steps[-2], steps[-1]))
        if lowest in bests:
            wider[key].insert(0, _next(steps[1], steps[0]))
        wider[key] = list(dict.fromkeys(wider[key]))
    return wider


def _steps(values: Sequence[Any]) -> bool:
    """Whether the grid has steps to go on with: two numbers above zero, at least."""
    numbers = [value for value in values if type(value) in (int, float) and value > 0]
    return len(numbers) == len(values) > 1


def _ends(values: Sequence[Any]) -> tuple[Any, Any]:
    return min(values), max(values)


def _next(before: float, last: float) -> float:
    """One step of the same ratio further: 1e-3, 2e-3 -> 4e-3."""
    value = last * last / before
    whole = isinstance(before, int) and isinstance(last, int)
    return max(1, round(value)) if whole else float(f"{value:.4g}")


def missing_from(grid: Mapping[str, Sequence[Any]], points: Sequence[Values]) -> list[Values]:
    """Those points that have a value outside of the grid."""
    return [point for point in points if any(point[key] not in grid[key] for key in grid)]
