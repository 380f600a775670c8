"""A study: the runs that a sweep planned, or that lie in folders, by variant; which of them failed
to train, and which n-grams they are held against (run/failure.py has the rule)."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.statistics import finite
from transformer_norms.comparison.sweep_record import ORDER, Tuned, Values, grouped
from transformer_norms.comparison.verdict import MARGIN
from transformer_norms.config.overrides import HORIZONS
from transformer_norms.errors import ConfigError
from transformer_norms.run.failure import bigram_horizons, failure, ngram_losses
from transformer_norms.run.reader import SavedRun

RATE = "optimizer.lr"
TUNED_ON = "val_loss"  # so that a test split stays unseen until the end
# unplanned: no sweep needs it; superseded: a later attempt, or a better point of the tuning grid,
# is there too; duplicate: the same run counts in another folder; given up: a narrower command
# was typed since, and the run has no result
Stage = Literal["result", "tune", "unplanned", "superseded", "duplicate", "given up"]


class StudyRun(NamedTuple):
    """A planned run, or a run that no sweep planned. `run` is None if there is none that can be
    read, and `absent` is the status then. `identity` is the hash of its config, where it counts."""

    folder: Path
    run: SavedRun | None
    stage: Stage
    variant: Values
    tuned: Values
    seed: int
    identity: str = ""
    absent: str = "missing"

    @property
    def status(self) -> str:
        return self.run.summary.status if self.run else self.absent

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
    baseline, None if nothing is compared. `tuned` is what tuning chose. `words` is the name without
    those that are typed for readers."""

    name: str
    values: Values
    results: list[StudyRun]
    trials: list[StudyRun] = field(default_factory=list)
    baseline: str | None = None
    tuned: Tuned | None = None
    words: str = ""

    @property
    def kind(self) -> Values:
        """Its values without the horizon."""
        return self.values | dict.fromkeys(HORIZONS)

    @property
    def horizon(self) -> list[Any]:
        return [self.values.get(key) for key in HORIZONS]

    @property
    def compared(self) -> bool:
        return self.baseline not in (None, self.name)

    @property
    def lost(self) -> bool:
        """Whether it failed at every value that tuning tried, and so has no results."""
        return self.tuned is not None and self.tuned.best is None

    @property
    def at_edge(self) -> str:
        """`optimizer.lr=0.009`: the best of the tuned values that are the first or the last that
        were tried; empty if there are none."""
        best = self.tuned and self.tuned.best
        if not (self.tuned and best):
            return ""
        return ", ".join(f"{key}={best[key]}" if key in best else key for key in self.tuned.edge)

    @property
    def ended(self) -> list[SavedRun]:
        """The runs that have a result."""
        return ended_runs(self.results)

    def best_text(self, key: str) -> str:
        """`0.003`, or `0.009 (edge)` where a better value may lie beyond the last that was tried;
        empty if no value was chosen."""
        best = (self.tuned and self.tuned.best) or {}
        edge = " (edge)" if self.tuned and key in self.tuned.edge else ""
        return f"{best[key]}{edge}" if key in best else ""

    @property
    def points(self) -> list[list[StudyRun]]:
        """The tuning runs at each point that was tried."""
        return grouped(self.trials, lambda trial: trial.tuned)

    def ngrams(self, loss: str) -> Sequence[float]:
        """The losses of the n-grams of order 1, 2, ... on the tokens of which `loss` is the
        model's; none if no record has them."""
        runs = [*self.ended, *ended_runs(self.trials)]
        return max((ngram_losses(run.summary, loss) for run in runs), key=len, default=[])

    @property
    def flops_per_token(self) -> float | None:
        return next((run.flops_per_token for run in self.ended if run.flops_per_token), None)


@dataclass(frozen=True)
class Study:
    """`home`: the folder of its report. `margin`: the bound of a negligible difference, in nats per
    token. `tune`: the values that were tried of each tuned key. `contrasts`: the comparisons asked
    for in addition to those with a baseline; `left_out`: why one is not among them. `damaged`: a
    line for each file that could not be read.
    `looks`: how often results were looked at, each time with more seeds, and `order` the seeds as
    they were added. `open_ended`: whether the number of seeds follows, or would have followed, from
    a look: it was planned so, seeds were added to results that had been seen, or planned ones were
    given up. `recorded`: whether sweeps planned all runs. `unasked`: what the runs are compared
    with though nobody said so, or why not. `registered`: sentences on the registrations of its
    sweeps. `at`: the budget that both sides of a comparison have, as horizons/budgets.py has it;
    empty for equal steps. `names`: what is shown in the place of words of labels."""

    home: Path
    axes: list[str]
    runs: list[StudyRun]
    variants: list[Variant]
    margin: float = MARGIN
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
    registered: list[str] = field(default_factory=list)
    at: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    @cached_property
    def asked(self) -> dict[str, Contrast]:
        """Every comparison that is asked for: of variants with their baselines by the variants'
        names, and contrasts by their texts."""
        pairs = {
            v.name: Contrast({v.name: 1.0, str(v.baseline): -1.0}, f"{v.name} - {v.baseline}")
            for v in self.variants
            if v.compared
        }
        return pairs | {contrast.text: contrast for contrast in self.contrasts}

    @property
    def family(self) -> set[str]:
        """The names of the comparisons that are judged together: the contrasts that were declared,
        or, without any, each variant against its baseline. All others are described, and so are
        those of one order of the batches: their seeds do not have the scatter of the order."""
        if ORDER in self.axes:
            return set()
        declared = {contrast.text for contrast in self.contrasts if contrast.declared}
        return declared or {variant.name for variant in self.variants if variant.compared}

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
    def baselines(self) -> list[Variant]:
        return [variant for variant in self.variants if variant.baseline == variant.name]

    @cached_property
    def loss(self) -> str:
        """The field of summary.json that counts: the test loss if every finished result has one."""
        finished = [run.summary for run in self.results if run.finished]
        tested = bool(finished) and all(summary.test_loss is not None for summary in finished)
        return "test_loss" if tested else TUNED_ON

    @property
    def loss_name(self) -> str:
        return "test loss" if self.loss == "test_loss" else "validation loss"

    @cached_property
    def result_failures(self) -> dict[Path, str]:
        """Why results failed, by folder. The results of the baselines set the bar."""
        return _failures(self.results, [variant.ended for variant in self.baselines], self.loss)

    @cached_property
    def trial_failures(self) -> dict[Path, str]:
        """Why tuning runs failed, by folder. The tuning runs of the baselines set the bar: it is
        enough that they pass the bigram at one point of the grid."""
        trials = [run for variant in self.variants for run in ended_runs(variant.trials)]
        points = [ended_runs(point) for variant in self.baselines for point in variant.points]
        return _failures(trials, points, TUNED_ON)

    def ngrams(self, loss: str) -> Sequence[float]:
        """The n-grams of all variants, for a figure; none if the variants have different ones,
        because they read different data or different numbers of tokens."""
        every = {tuple(lines) for v in self.variants if (lines := v.ngrams(loss))}
        return every.pop() if len(every) == 1 else ()

    @property
    def held_looks(self) -> int:
        """The looks at which tests have to hold: 2 or more, if the number of seeds follows from
        looks."""
        return max(2, self.looks) if self.open_ended else self.looks

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
        waits = any(v.trials and self.awaits(v.name) for v in self.variants)
        return self.count()["missing"] > 0 or waits


def _failures(
    runs: Iterable[SavedRun], baselines: Iterable[Sequence[SavedRun]], loss: str
) -> dict[Path, str]:
    bigrams = bigram_horizons(([run.summary for run in runs] for runs in baselines), loss)
    reasons = {run.folder: failure(run.summary, loss, bigrams) for run in runs}
    return {folder: reason for folder, reason in reasons.items() if reason}


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
