"""Holds a study against n-grams: which of its runs failed to train, and which n-grams its models
have passed. run/failure.py has the rule."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer_norms.report.study import Study, StudyRun, Variant, ended_runs
from transformer_norms.run.failure import bigram_horizons, failure, ngram_losses
from transformer_norms.run.reader import SavedRun

TUNED_ON = "val_loss"  # so that a test split stays unseen until the end


def result_failures(study: Study, loss: str) -> dict[Path, str]:
    """Returns why results failed, by folder. The results of the baselines set the bar."""
    baselines = [variant.ended for variant in study.variants if variant.baseline == variant.name]
    return _failures(study.results, baselines, loss)


def trial_failures(study: Study) -> dict[Path, str]:
    """Returns why tuning runs failed, by folder. The tuning runs of the baselines set the bar: it
    is enough that they pass the bigram at one point of the grid."""
    trials = [run for variant in study.variants for run in ended_runs(variant.trials)]
    points = [
        ended_runs(point)
        for variant in study.variants
        if variant.baseline == variant.name
        for point in tuning_points(variant)
    ]
    return _failures(trials, points, TUNED_ON)


def all_failures(study: Study, loss: str) -> dict[Path, str]:
    """Returns why runs failed, tuning runs and results alike, by folder."""
    return trial_failures(study) | result_failures(study, loss)


def _failures(
    runs: Iterable[SavedRun], baselines: Sequence[Sequence[SavedRun]], loss: str
) -> dict[Path, str]:
    groups = [[run.summary for run in members] for members in baselines]
    bigrams = bigram_horizons(groups, loss)
    reasons = {run.folder: failure(run.summary, loss, bigrams) for run in runs}
    return {folder: reason for folder, reason in reasons.items() if reason}


def tuning_points(variant: Variant) -> list[list[StudyRun]]:
    """The tuning runs of a variant at each point that was tried."""
    points: dict[str, list[StudyRun]] = {}
    for trial in variant.trials:
        points.setdefault(json.dumps(trial.tuned, sort_keys=True), []).append(trial)
    return list(points.values())


def ngram_lines(variant: Variant, loss: str) -> Sequence[float]:
    """The losses of the n-grams of order 1, 2, ... on the tokens of which `loss` is the model's;
    none if no record has them."""
    runs = [*variant.ended, *ended_runs(variant.trials)]
    return max((ngram_losses(run.summary, loss) for run in runs), key=len, default=[])


def shared_lines(study: Study, loss: str) -> Sequence[float]:
    """The lines of all variants, for a figure; none if the variants have different lines, because
    they read different data or different numbers of tokens."""
    every = {tuple(lines) for v in study.variants if (lines := ngram_lines(v, loss))}
    return every.pop() if len(every) == 1 else ()
