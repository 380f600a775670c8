"""Tuning, which is stage 1: all variants search in step. Each tries the grid and as many points
around its best; where its best is at an edge or below a failure, it goes on by itself. search.py
says which points, and this file reads from the run folders how they ended.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from math import inf
from statistics import fmean

from transformer_norms.comparison.sentences import plural
from transformer_norms.comparison.sweep_record import Tuned, Values, grouped, label
from transformer_norms.run.failure import Horizon, best_ngram, bigram_horizons, failure
from transformer_norms.run.summary import Summary
from transformer_norms.sweep.design import MOST_OUTWARD, Tuning
from transformer_norms.sweep.planning import Job, Pair
from transformer_norms.sweep.search import Attempt, Search, values_to_go_on


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
        self.tuning, self.baseline, self.say = tuning, baseline, say
        self.searches = [Search(one, tuning, partial(allowed, one)) for one in variants]

    def rounds(self) -> Iterator[list[Pair]]:
        """Yields the points of each round, of all variants together, so that workers stay busy.

        The first round is the grid. A variant that is best at its edge goes outward until it is
        not. Then each variant is refined, and tries a point between its best and one that failed.
        The caller runs them and calls `read` before it asks for more. A variant whose runs have
        not all ended waits for the next command.
        """
        yield [(one.variant, point) for one in self.searches for point in self.tuning.points]
        yield from self._outward()
        for _ in range(self.tuning.refine):
            yield self._next_round(Search.refinement)
        yield from self._outward()
        if pairs := self._next_round(Search.bisection):
            self._tell(pairs, "half way from the best value to one that failed")
            yield pairs

    def _outward(self) -> Iterator[list[Pair]]:
        while pairs := self._next_round(Search.steps_outward):
            self._tell(pairs, "a step outward from a best value at the edge")
            for search in self.searches:
                search.outward += any(variant == search.variant for variant, _ in pairs)
            yield pairs

    def _next_round(self, step: Callable[[Search], list[Values]]) -> list[Pair]:
        """The points of a step, of each variant whose runs have all ended."""
        going_on = [search for search in self.searches if not search.waits]
        return [(search.variant, point) for search in going_on for point in step(search)]

    def _tell(self, pairs: Sequence[Pair], step: str) -> None:
        runs = plural(len(pairs) * len(self.tuning.seed), "more run")
        names = ", ".join(dict.fromkeys(label(variant) for variant, _ in pairs))
        self.say(f"{runs} of tuning, {step}: {names}")

    def read(self, jobs: Sequence[Job]) -> None:
        """Reads how the points that these jobs have tried ended."""
        bigrams = bigram_horizons(self._baseline_points(jobs), "val_loss")
        for search in self.searches:
            trials = [job for job in jobs if job.run.variant == search.variant]
            search.waits = not all(job.ended for job in trials)
            if not search.waits:
                points = grouped(trials, lambda job: job.run.tuned)
                search.attempts = [_read_attempt(point, bigrams) for point in points]

    def _baseline_points(self, jobs: Sequence[Job]) -> list[list[Summary]]:
        """The ended runs of the baselines at each point. One point at which they pass the bigram is
        enough for all runs to be held against it."""
        of_baselines = [job for job in jobs if self.baseline.items() <= job.run.variant.items()]
        points = grouped(of_baselines, lambda job: [job.run.variant, job.run.tuned])
        return [[s for job in point if (s := job.summary) and s.ended] for point in points]

    def choices(self) -> list[Tuned]:
        """The best points of the variants whose trials have all ended."""
        return [Tuned(s.variant, s.best, s.edge) for s in self.searches if not s.waits]

    def lines(self) -> list[str]:
        """Says what was chosen after how many points, and what to type if a best is at an edge."""
        lines = []
        for search in self.searches:
            name, best = label(search.variant), search.best
            if search.waits:
                lines.append(f"{name}: not all of its tuning runs have ended")
            elif best is None:
                lines.append(f"{name}: nothing to tune, every trial failed")
            else:
                pairs = ", ".join(f"{key}={value}" for key, value in best.items())
                still = f"; still the edge of {', '.join(search.edge)}" if search.edge else ""
                points = plural(len(search.points), "point")
                lines.append(f"{name}: best at {pairs}, of {points}{still}")
        return lines + [line for key in self.tuning.stepped if (line := self._way_on(key))]

    def _way_on(self, key: str) -> str:
        """Says what to type for a key whose best is at an edge after MOST_OUTWARD steps."""
        at_edge = [
            (label(search.variant), best[key])
            for search in self.searches
            if search.outward == MOST_OUTWARD and key in search.edge and (best := search.best)
        ]
        if not at_edge:
            return ""
        names, bests = zip(*at_edge, strict=True)
        values = ",".join(map(str, values_to_go_on(self.tuning.grid[key], bests)))
        return f"the best {key} is not found of {', '.join(names)}; to go on, type {key}={values}"


def _read_attempt(jobs: Sequence[Job], bigrams: Collection[Horizon]) -> Attempt:
    """Returns the attempt of these jobs, which have one point and have all ended. The runs that
    trained (run/failure.py) have a loss; at the horizons `bigrams` they pass the bigram."""
    summaries = {job.run.seed: summary for job in jobs if (summary := job.summary)}
    losses = {
        seed: summary.val_loss
        for seed, summary in summaries.items()
        if summary.val_loss is not None and failure(summary, "val_loss", bigrams) is None
    }
    past_unigram = [
        inf if one.val_loss is None or not best_ngram(one, "val_loss") else one.val_loss
        for one in summaries.values()
    ]
    return Attempt(jobs[0].run.tuned, losses, len(jobs) - len(losses), fmean(past_unigram))
