"""Tuning, which is stage 1: all variants search in step, and every variant gets the same number of
points. search.py says which points, and this file reads from the run folders how they ended.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from statistics import fmean

from transformer_norms.comparison.sweep_record import Tuned, Values, distinct
from transformer_norms.run.failure import Horizon, best_ngram, bigram_horizons, failure
from transformer_norms.run.summary import Summary
from transformer_norms.sweep.grid import Tuning, product
from transformer_norms.sweep.planning import Job
from transformer_norms.sweep.search import Attempt, Tried, refinement, widen

Pair = tuple[Values, Values]  # a variant, and a point that it tries


class Tuner:
    """The tuning of a study. `baseline` has the values of the variants that set the bar which a run
    must pass, `allowed` says whether a variant's config can be composed at a point, and `say`
    prints a line. `grid` has the values that all variants try."""

    def __init__(
        self,
        tuning: Tuning,
        variants: Sequence[Values],
        baseline: Values,
        allowed: Callable[[Values, Values], bool],
        say: Callable[[str], None],
    ) -> None:
        self.tuning, self.baseline, self.allowed, self.say = tuning, baseline, allowed, say
        self.grid = {key: list(values) for key, values in tuning.grid.items()}
        self.tried = [Tried(variant) for variant in variants]

    def rounds(self) -> Iterator[list[Pair]]:
        """Yields the points of each round, of all variants together, so that workers stay busy: the
        whole grid, once one step more at an edge, and the refinement of each variant. The caller
        runs them and calls `read` before it asks for more. A variant whose runs have not all ended
        waits for the next command."""
        yield self._everywhere(product(self.grid))
        wider = widen(self.grid, [tried for tried in self.tried if not tried.waits])
        points = [point for point in product(wider) if point not in product(self.grid)]
        if points and all(self.allowed(*pair) for pair in self._everywhere(points)):
            for key in wider:
                if wider[key] != self.grid[key]:
                    steps = ", ".join(str(value) for value in wider[key])
                    self.say(
                        f"{key}: the grid is now {steps} for all variants, because one is best at "
                        "its edge or failed at every value"
                    )
            self.grid = wider
            yield self._everywhere(points)
        for _ in range(self.tuning.refine):
            yield [
                (tried.variant, point)
                for tried in self.tried
                if not tried.waits
                for point in refinement(self.tuning, tried, partial(self.allowed, tried.variant))
            ]

    def _everywhere(self, points: Sequence[Values]) -> list[Pair]:
        return [(tried.variant, point) for tried in self.tried for point in points]

    def read(self, jobs: Sequence[Job]) -> None:
        """Reads how the points that these jobs have tried ended."""
        bigrams = bigram_horizons(self._baseline_points(jobs), "val_loss")
        for tried in self.tried:
            trials = [job for job in jobs if job.run.variant == tried.variant]
            tried.waits = not all(job.ended for job in trials)
            if not tried.waits:
                points = distinct([job.run.tuned for job in trials])
                tried.attempts = [
                    self._attempt(point, [job for job in trials if job.run.tuned == point], bigrams)
                    for point in points
                ]

    def _baseline_points(self, jobs: Sequence[Job]) -> list[list[Summary]]:
        """The ended runs of the baselines at each point. One point at which they pass the bigram is
        enough for all runs to be held against it."""
        points: dict[str, list[Summary]] = {}
        for job in jobs:
            summary = job.summary
            if self.baseline.items() <= job.run.variant.items() and summary and summary.ended:
                place = json.dumps([job.run.variant, job.run.tuned], sort_keys=True)
                points.setdefault(place, []).append(summary)
        return list(points.values())

    def _attempt(self, point: Values, jobs: Sequence[Job], bigrams: Collection[Horizon]) -> Attempt:
        summaries = {job.run.seed: job.summary for job in jobs}
        ended = {seed: summary for seed, summary in summaries.items() if summary}
        losses = trained_losses(ended, bigrams)
        nearest = fmean(_loss_past_unigram(summary) for summary in ended.values()) if ended else inf
        return Attempt(point, losses, len(ended) - len(losses), nearest)

    def choices(self) -> list[Tuned]:
        """The best points of the variants whose trials have all ended."""
        return [
            Tuned(variant=one.variant, best=one.best, edge=one.edge(self.tuning.stepped))
            for one in self.tried
            if not one.waits
        ]


def _loss_past_unigram(summary: Summary) -> float:
    """The validation loss of a run that passes the unigram; else infinity."""
    if summary.val_loss is None or not best_ngram(summary, "val_loss"):
        return inf
    return summary.val_loss


def trained_losses(
    summaries: Mapping[int, Summary], bigrams: Collection[Horizon] = ()
) -> dict[int, float]:
    """The validation losses, by seed, of the runs that trained (run/failure.py). `bigrams` are the
    horizons at which a run has to pass the bigram."""
    return {
        seed: summary.val_loss
        for seed, summary in summaries.items()
        if summary.val_loss is not None and failure(summary, "val_loss", bigrams) is None
    }
