"""Tuning, which is stage 1: finds the point of a grid, such as a learning rate, where a variant
trained best, and widens the grid if the best lies at an edge.
"""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from transformer_norms.run.summary import Summary, read_summary
from transformer_norms.run.sweep_record import Tuned, Values
from transformer_norms.sweep.question import distinct

Grid = dict[str, list[Any]]
Trial = tuple[Values, Path]  # a point of the grid, and the run that tried it


def best_point(variant: Values, trials: Sequence[Trial], grid: Grid) -> Tuned:
    """The point with the lowest mean validation loss over the tuning seeds. A diverged run counts
    as its initial loss, and as infinity if it has none. A point where every seed diverged is never
    the best."""
    with_edges = [key for key, values in grid.items() if _has_steps(values)]
    means = []
    for point in distinct([point for point, _ in trials]):
        summaries = [_summary_of(folder) for tried, folder in trials if tried == point]
        if any(summary.status != "diverged" for summary in summaries):
            losses = [_counted_loss(summary) for summary in summaries]
            means.append((sum(losses) / len(losses), point))
    if not means:
        return Tuned(variant=variant, best=None, edge=with_edges)
    _, best = min(means, key=lambda pair: pair[0])
    edge = [key for key in with_edges if best[key] in (min(grid[key]), max(grid[key]))]
    return Tuned(variant=variant, best=best, edge=edge)


def widen(grid: Grid, tuned: Sequence[Tuned]) -> Grid:
    """The grid, for all variants alike, with one more step at each end where some variant was best.
    A variant that diverged everywhere adds a step at the lower end."""
    wider = {key: list(values) for key, values in grid.items()}
    for key, values in grid.items():
        if not _has_steps(values):
            continue
        steps = sorted(values)
        bests = [one.best[key] if one.best else steps[0] for one in tuned]
        if steps[-1] in bests:
            wider[key].append(_next_step(steps[-2], steps[-1]))
        if steps[0] in bests:
            wider[key].insert(0, _next_step(steps[1], steps[0]))
        wider[key] = list(dict.fromkeys(wider[key]))
    return wider


def new_points(grid: Mapping[str, Sequence[Any]], points: Sequence[Values]) -> list[Values]:
    """The points that have a value outside the grid."""
    return [point for point in points if any(point[key] not in grid[key] for key in grid)]


def _summary_of(folder: Path) -> Summary:
    summary = read_summary(folder)
    assert summary is not None
    return summary


def _counted_loss(summary: Summary) -> float:
    loss = summary.initial_loss if summary.status == "diverged" else summary.val_loss
    return inf if loss is None else float(loss)


def _has_steps(values: Sequence[Any]) -> bool:
    """Whether a grid can be continued: it has at least two values, all numbers above zero."""
    numbers = [value for value in values if type(value) in (int, float) and value > 0]
    return len(numbers) == len(values) > 1


def _next_step(before: float, last: float) -> float:
    """One step of the same ratio further: 1e-3, 2e-3 -> 4e-3."""
    value = last * last / before
    if isinstance(before, int) and isinstance(last, int):
        return max(1, round(value))
    return float(f"{value:.4g}")
