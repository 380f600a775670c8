"""Bounds the tuning error of each variant of a study, from its tuning runs."""

from collections.abc import Mapping
from pathlib import Path

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.tuning_error import Trial, plain_point, possible_gains
from transformer_norms.report.regime import TUNED_ON, trial_failures
from transformer_norms.report.study import Study, Variant


def tuning_gains(study: Study, outcomes: Mapping[str, Outcomes]) -> dict[str, float]:
    """The bound of what a better point of the tuned keys could gain, in nats, by the name of each
    variant that was tuned."""
    failures = trial_failures(study)
    tuned = {
        variant.name: (_trained(variant, failures), plain_point(variant.tuned.best))
        for variant in study.variants
        if variant.tuned and variant.tuned.best
    }
    return possible_gains(tuned, [list(one.losses.values()) for one in outcomes.values()])


def _trained(variant: Variant, failures: Mapping[Path, str]) -> list[Trial]:
    """The tuning runs of a variant that trained."""
    return [
        Trial(plain_point(trial.tuned), trial.seed, trial.run.final_loss(TUNED_ON))
        for trial in variant.trials
        if trial.run and trial.ended and trial.folder not in failures
    ]
