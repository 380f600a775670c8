"""The findings of a study: outcomes by seed, and comparisons with all that belongs to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_norms.comparison.contrasts import Contrast
from transformer_norms.comparison.moderation import ENOUGH, Prior
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.tuning_error import Trial, plain_point, possible_gains
from transformer_norms.comparison.verdict import (
    Comparison,
    Rules,
    Side,
    Sides,
    compare,
    is_awaited,
    usual_variance,
)
from transformer_norms.data.ngrams import ngram_name
from transformer_norms.report.fairness import check_comparable, differences
from transformer_norms.report.study import TUNED_ON, Study, StudyRun, Variant, ended_runs
from transformer_norms.run.failure import best_ngram, passed_orders
from transformer_norms.run.reader import make_table, run_row

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Findings:
    """`rules` are shared by all comparisons.

    By the variant's name: `outcomes` of every variant, `gains` of those that were tuned, in nats,
    `comparisons` of those that have a baseline, `differences` from the baseline beyond what was
    asked, in words. By their texts: the `contrasts` of which every variant has results.
    """

    study: Study
    outcomes: Mapping[str, Outcomes]
    gains: Mapping[str, float]
    rules: Rules
    comparisons: Mapping[str, Comparison]
    differences: Mapping[str, Sequence[str]]
    contrasts: Mapping[str, Comparison]

    @cached_property
    def table(self) -> "DataFrame":
        """A row for each attempt: its place in the study, its planned values under `at.KEY` and
        `tuned.KEY`, how it ended, and its run as `run_row` has it."""
        failures = self.study.trial_failures | self.study.result_failures
        return make_table([self._attempt(member, failures) for member in self.study.runs])

    def _attempt(self, member: StudyRun, failures: Mapping[Path, str]) -> dict[str, Any]:
        study, run = self.study, member.run
        variant = next((v for v in study.variants if v.values == member.variant), None)
        row = (run_row(run) if run else {}) | {
            "study": member.folder.parent.name,
            "run": member.folder.name,
            "stage": member.stage,
            "variant": variant.name if variant else "",
            "seed": member.seed,
            "status": member.status,
            "edge": " ".join(variant.tuned.edge if variant and variant.tuned else []),
            **{f"at.{axis}": member.variant.get(axis) for axis in study.axes},
            **{f"tuned.{key}": member.tuned.get(key) for key in study.tune},
        }
        if run and run.ended and member.counts:
            order = best_ngram(run.summary, TUNED_ON if member.stage == "tune" else study.loss)
            row["outcome"] = "failed" if member.folder in failures else "trained"
            row["failure"] = failures.get(member.folder)
            row["passed"] = None if order is None else ngram_name(order) if order else "none"
        return row

    @property
    def compared(self) -> list[Variant]:
        return [v for v in self.study.variants if v.name in self.comparisons]

    @property
    def compared_together(self) -> int:
        """The number of comparisons over which Holm's correction runs."""
        comparisons = [*self.comparisons.values(), *self.contrasts.values()]
        return self.rules.to_come + sum(
            c.p is not None or c.verdict == "failed" or is_awaited(c, self.rules)
            for c in comparisons
        )

    def passed(self, name: str) -> str | None:
        """The best n-gram that a variant's mean has passed, with all n-grams before it: `bigram`,
        or `none`. It says what the model has learned more than. None if it is not known."""
        study, mean = self.study, self.outcomes[name].mean
        lines = study.variant(name).ngrams(study.loss)
        if mean is None or not lines:
            return None
        order = passed_orders(mean, lines)
        return ngram_name(order) if order else "none"

    def verdict(self, variant: Variant) -> str:
        """The verdict; without a comparison `failed`, `baseline` or nothing."""
        if variant.name in self.comparisons:
            return str(self.comparisons[variant.name].verdict)
        if variant.lost:
            return "failed"
        return "baseline" if variant.baseline == variant.name else ""


def findings(study: Study, noise: Study | None = None) -> Findings:
    """The findings of a study. `noise` is a study beside it that measured how losses scatter; it
    counts where the study itself has too few comparisons to say so. Raises ConfigError if runs
    would be compared that must not be."""
    check_comparable(study)
    outcomes = result_outcomes(study)
    gains = _tuning_slack(study, outcomes)
    asked = asked_comparisons(study, outcomes, gains)
    looks = max(2, study.looks) if study.sequential else 1
    prior = _usual_variance(study, asked, noise)
    rules = Rules(study.effect, prior, looks, study.order, _count_to_come(study))
    comparisons = compare(asked, rules)
    compared = [v for v in study.variants if v.name in comparisons]
    return Findings(
        study=study,
        outcomes=outcomes,
        gains=gains,
        rules=rules,
        comparisons={v.name: comparisons[v.name] for v in compared},
        differences={v.name: differences(study, v) for v in compared},
        contrasts={c.text: comparisons[c.text] for c in study.contrasts if c.text in comparisons},
    )


def compare_also(findings: Findings, contrast: Contrast) -> Comparison | None:
    """One more contrast, compared beside all comparisons of a study by the same rules. None if one
    of its variants has no results."""
    study = replace(findings.study, contrasts=[*findings.study.contrasts, contrast])
    check_comparable(study)
    asked = asked_comparisons(study, findings.outcomes, findings.gains)
    return compare(asked, findings.rules).get(contrast.text)


def _tuning_slack(study: Study, outcomes: Mapping[str, Outcomes]) -> dict[str, float]:
    """The bound of what a better point of the tuned keys could gain, in nats, by the name of each
    variant that was tuned, from its tuning runs that trained."""
    tuned = {
        variant.name: (
            [
                Trial(plain_point(trial.tuned), trial.seed, trial.run.final_loss(TUNED_ON))
                for trial in variant.trials
                if trial.run and trial.ended and trial.folder not in study.trial_failures
            ],
            plain_point(variant.tuned.best),
        )
        for variant in study.variants
        if variant.tuned and variant.tuned.best
    }
    return possible_gains(tuned, [list(one.losses.values()) for one in outcomes.values()])


def asked_comparisons(
    study: Study, outcomes: Mapping[str, Outcomes], gains: Mapping[str, float]
) -> dict[str, Sides]:
    """The comparisons that a study asks for: of variants with their baselines by the variants'
    names, and contrasts by their texts."""

    def side(name: str, coefficient: float) -> Side:
        return Side(coefficient, outcomes[name], gains.get(name, 0.0))

    pairs = {
        v.name: [side(v.name, 1.0), side(study.baseline_of(v).name, -1.0)]
        for v in study.variants
        if v.compared and v.results and not study.awaits(study.baseline_of(v).name)
    }
    contrasts = {
        contrast.text: [side(name, c) for name, c in contrast.coefficients.items()]
        for contrast in study.contrasts
        if all(study.variant(name).results for name in contrast.coefficients)
    }
    return {**contrasts, **pairs}


def _count_to_come(study: Study) -> int:
    """How many comparisons wait for a variant that has no results planned yet."""
    pairs = [(v.name, study.baseline_of(v).name) for v in study.variants if v.compared]
    contrasts = [tuple(contrast.coefficients) for contrast in study.contrasts]
    return sum(any(map(study.awaits, names)) for names in (*pairs, *contrasts))


def _usual_variance(study: Study, asked: Mapping[str, Sides], noise: Study | None) -> Prior | None:
    """The prior of the variances: the study's own, if it has ENOUGH comparisons, or that of the
    noise beside it."""
    pairs = [asked[v.name] for v in study.variants if v.name in asked]
    own = usual_variance(pairs, "the comparisons of this study", fewest=ENOUGH)
    if own or noise is None:
        return own
    beside = asked_comparisons(noise, result_outcomes(noise), {})
    return usual_variance(beside.values(), f"the study {noise.home.name}", fewest=1)


def result_outcomes(study: Study) -> dict[str, Outcomes]:
    """The outcomes of every variant, by its name."""
    failures = study.result_failures
    return {v.name: outcomes_of(v.results, study.loss, failures) for v in study.variants}


def outcomes_of(members: Sequence[StudyRun], loss: str, failures: Mapping[Path, str]) -> Outcomes:
    """The outcomes of these runs. `failures` are the reasons of those that failed, by folder."""
    ended = ended_runs(members)
    return Outcomes(
        {run.seed: run.final_loss(loss) for run in ended if run.folder not in failures},
        {run.seed: failures[run.folder] for run in ended if run.folder in failures},
        frozenset(member.seed for member in members if not member.ended),
    )
