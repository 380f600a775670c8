"""What tuning may have missed at each variant of a study: a bound, from its tuning runs."""

import math
from collections.abc import Mapping
from pathlib import Path

from transformer_norms.comparison.moderation import Spread
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.tuning_error import (
    Trial,
    plain_point,
    possible_gain,
    trial_noise,
)
from transformer_norms.report.regime import TUNED_ON, trial_failures
from transformer_norms.report.study import Study, Variant


def tuning_gains(study: Study, outcomes: Mapping[str, Outcomes]) -> dict[str, float]:
    """The bound of what a better point of the tuned keys could gain, in nats, by the name of each
    variant that was tuned. Where too few trials repeat a point to show their noise, the scatter of
    the results over seeds stands for it, which is larger."""
    failures = trial_failures(study)
    tuned = {
        variant.name: (_trained(variant, failures), plain_point(variant.tuned.best))
        for variant in study.variants
        if variant.tuned and variant.tuned.best
    }
    noise = trial_noise(list(tuned.values())) or _result_noise(outcomes)
    gains = {name: possible_gain(*trials, noise) for name, trials in tuned.items()}
    return {name: gain for name, gain in gains.items() if gain is not None}


def _trained(variant: Variant, failures: Mapping[Path, str]) -> list[Trial]:
    """The tuning runs of a variant that trained."""
    return [
        Trial(plain_point(trial.tuned), trial.seed, trial.run.final_loss(TUNED_ON))
        for trial in variant.trials
        if trial.run and trial.ended and trial.folder not in failures
    ]


def _result_noise(outcomes: Mapping[str, Outcomes]) -> Spread | None:
    """The variance of losses over seeds, pooled over variants."""
    parts = [(o.sd**2, len(o.losses) - 1) for o in outcomes.values() if o.sd]
    freedom = sum(count for _, count in parts)
    if not freedom:
        return None
    return Spread(math.fsum(count * variance for variance, count in parts) / freedom, freedom)
