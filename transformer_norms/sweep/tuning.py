"""Tuning, which is stage 1: all variants search in step. Each tries the grid and as many points
around its best; where its best is at an edge or below a failure, it goes on by itself. search.py
says which points, and this file reads from the run folders how they ended.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from statistics import fmean

from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.sweep_record import Tuned, Values, distinct, grouped, label
from transformer_norms.run.failure import Horizon, best_ngram, bigram_horizons, failure
from transformer_norms.run.summary import Summary
from transformer_norms.sweep.grid import MOST_OUTWARD, Tuning, product
from transformer_norms.sweep.planning import Job, Pair
from transformer_norms.sweep.search import (
    Allowed,
    Attempt,
    Tried,
    bisection,
    refinement,
    steps_outward,
    values_to_go_on,
)

Search = Callable[[Tuning, Tried, Allowed], list[Values]]


class Tuner:
    """The tuning of a study. `baseline` has the values of the variants that set the bar which a run
    must pass, `allowed` says whether a variant's config can be composed at a point, and `say`
    prints a line."""

    def __init__(
        self,
        tuning: Tuning,
        variants: Sequence[Values],
        baseline: Values,
        allowed: Callable[[Values, Values], bool],
        say: Callable[[str], None],
    ) -> None:
        self.tuning, self.baseline, self.allowed, self.say = tuning, baseline, allowed, say
        self.tried = [Tried(variant) for variant in variants]

    def rounds(self) -> Iterator[list[Pair]]:
        """Yields the points of each round, of all variants together, so that workers stay busy.

        The first round is the grid. A variant that is best at its edge goes outward until it is
        not. Then each variant is refined, and tries a point between its best and one that failed.
        The caller runs them and calls `read` before it asks for more. A variant whose runs have
        not all ended waits for the next command.
        """
        yield [(tried.variant, at) for tried in self.tried for at in product(self.tuning.grid)]
        yield from self._outward()
        for _ in range(self.tuning.refine):
            yield self._searching(refinement)
        yield from self._outward()
        if pairs := self._searching(bisection):
            self._tell(pairs, "half way from the best value to one that failed")
            yield pairs

    def _outward(self) -> Iterator[list[Pair]]:
        while pairs := self._searching(steps_outward):
            self._tell(pairs, "a step outward from a best value at the edge")
            for tried in self.tried:
                tried.outward += any(variant == tried.variant for variant, _ in pairs)
            yield pairs

    def _searching(self, search: Search) -> list[Pair]:
        """The points of a search, of each variant whose runs have all ended."""
        return [
            (tried.variant, point)
            for tried in self.tried
            if not tried.waits
            for point in search(self.tuning, tried, partial(self.allowed, tried.variant))
        ]

    def _tell(self, pairs: Sequence[Pair], step: str) -> None:
        runs = plural(len(pairs) * len(self.tuning.seed), "more run")
        names = ", ".join(dict.fromkeys(label(variant) for variant, _ in pairs))
        self.say(f"{runs} of tuning, {step}: {names}")

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
        of_baselines = [job for job in jobs if self.baseline.items() <= job.run.variant.items()]
        points = grouped(of_baselines, lambda job: [job.run.variant, job.run.tuned])
        summaries = [[job.summary for job in trials] for trials in points]
        return [[one for one in trials if one and one.ended] for trials in summaries]

    def _attempt(self, point: Values, jobs: Sequence[Job], bigrams: Collection[Horizon]) -> Attempt:
        summaries = {job.run.seed: job.summary for job in jobs}
        ended = {seed: summary for seed, summary in summaries.items() if summary}
        losses = trained_losses(ended, bigrams)
        past_unigram = [
            inf if one.val_loss is None or not best_ngram(one, "val_loss") else one.val_loss
            for one in ended.values()
        ]
        nearest = fmean(past_unigram) if ended else inf
        return Attempt(point, losses, len(ended) - len(losses), nearest)

    def choices(self) -> list[Tuned]:
        """The best points of the variants whose trials have all ended."""
        stepped = self.tuning.stepped
        return [Tuned(t.variant, t.best, t.edge(stepped)) for t in self.tried if not t.waits]

    def lines(self) -> list[str]:
        """Says what was chosen after how many points, and what to type if a best is at an edge."""
        lines = []
        for tried in self.tried:
            name, best, edge = label(tried.variant), tried.best, tried.edge(self.tuning.stepped)
            if tried.waits:
                lines.append(f"{name}: not all of its tuning runs have ended")
            elif best is None:
                lines.append(f"{name}: nothing to tune, every trial failed")
            else:
                pairs = ", ".join(f"{key}={value}" for key, value in best.items())
                still = f"; still the edge of {', '.join(edge)}" if edge else ""
                lines.append(
                    f"{name}: best at {pairs}, of {plural(len(tried.points), 'point')}{still}"
                )
        return lines + [line for key in self.tuning.stepped if (line := self._way_on(key))]

    def _way_on(self, key: str) -> str:
        """Says what to type for a key whose best is at an edge after MOST_OUTWARD steps."""
        at_edge = [
            (label(tried.variant), best[key])
            for tried in self.tried
            if tried.outward == MOST_OUTWARD and (best := tried.best) and tried.edge([key])
        ]
        if not at_edge:
            return ""
        names, bests = zip(*at_edge, strict=True)
        values = ",".join(map(str, values_to_go_on(self.tuning.grid[key], bests)))
        return f"the best {key} is not found of {', '.join(names)}; to go on, type {key}={values}"


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
