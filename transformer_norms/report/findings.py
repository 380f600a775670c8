"""The findings of a study: outcomes by seed, and comparisons with all that belongs to them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.price import Price
from transformer_norms.comparison.statistics import FEWEST
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.comparison.tuning_error import Trial, plain_point, possible_gains
from transformer_norms.comparison.verdict import (
    Comparison,
    Rules,
    Side,
    Sides,
    Verdict,
    compare,
    family_sizes,
    usual_variance,
)
from transformer_norms.data.ngrams import ngram_name
from transformer_norms.report.fairness import check_comparable, differences
from transformer_norms.report.horizons.budgets import EqualBudget, at_equal_budgets
from transformer_norms.report.horizons.prices import prices_of
from transformer_norms.report.study import TUNED_ON, Study, StudyRun, Variant, ended_runs
from transformer_norms.run.failure import best_ngram, passed_orders
from transformer_norms.run.reader import make_table

if TYPE_CHECKING:
    from pandas import DataFrame

# Fields of a summary, and keys of a config, that the table of a study has of each run.
_MEASURED = (
    "val_loss test_loss initial_loss best_val_loss step tokens parameters flops tokens_per_second "
    "seconds peak_memory identity commit dirty"
).split()
_SETTINGS = (
    "data.val_tokens model.context trainer.steps trainer.batch_size trainer.precision"
).split()

_NO_PRICE = (
    "No share of saved tokens can be given: it needs, for both sides, three horizons at which the "
    f"mean loss falls, with the same {FEWEST} seeds at all of them."
)


@dataclass(frozen=True)
class Findings:
    """`rules` are shared by all comparisons.

    By the variant's name: `outcomes` of every variant, `slack` of those that were tuned, in nats,
    `comparisons` of those that have a baseline, `differences` from the baseline beyond what was
    asked, in words. By their texts: the `contrasts` of which every variant has results. `alone`:
    the verdict that a comparison would have without the others, where it is another word.
    `budgets`, by the names of comparisons at an equal budget.
    """

    study: Study
    outcomes: Mapping[str, Outcomes]
    slack: Mapping[str, float]
    rules: Rules
    comparisons: Mapping[str, Comparison]
    differences: Mapping[str, Sequence[str]]
    contrasts: Mapping[str, Comparison]
    alone: Mapping[str, Verdict]
    budgets: Mapping[str, EqualBudget] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = Counter(str(c.verdict) for c in self.every.values())
        words = ", ".join(f"{word} {count}" for word, count in counts.items())
        return f"Findings({len(self.study.variants)} variants: {words or 'nothing compared'})"

    @cached_property
    def table(self) -> "DataFrame":
        """A row for each attempt: its place in the study, the values of its variant and what was
        tuned, how it ended, and what its run measured."""
        failures = self.study.trial_failures | self.study.result_failures
        return make_table([self._attempt(member, failures) for member in self.study.runs])

    def _attempt(self, member: StudyRun, failures: Mapping[Path, str]) -> dict[str, Any]:
        study, run = self.study, member.run
        variant = next((v for v in study.variants if v.values == member.variant), None)
        row = {
            "study": member.folder.parent.name,
            "run": member.folder.name,
            "stage": member.stage,
            "variant": variant.words if variant else "",
            **{axis: member.variant.get(axis) for axis in study.axes},
            **{key: member.tuned.get(key) for key in study.tune},
        }
        if study.tune:
            row["edge"] = " ".join(variant.tuned.edge if variant and variant.tuned else [])
        row |= {"seed": member.seed, "status": member.status}
        if run is None:
            return row
        data, versions = run.summary.data, run.summary.versions
        row |= {
            **{name: getattr(run.summary, name) for name in _MEASURED},
            "data_fingerprint": data.fingerprint,
            "batch_chain": run.summary.batch_chain,
            **{key.rpartition(".")[2]: run.value(key) for key in _SETTINGS},
            "threads": run.summary.threads,
            "device": run.summary.device,
            "torch": versions.get("torch"),
            "python": versions.get("python"),
        }
        if run.ended and member.counts:
            order = best_ngram(run.summary, TUNED_ON if member.stage == "tune" else study.loss)
            row["outcome"] = "failed" if member.folder in failures else "trained"
            row["failure"] = failures.get(member.folder)
            row["passed"] = None if order is None else ngram_name(order) if order else "none"
        return row

    @cached_property
    def prices(self) -> dict[str, Price]:
        """The prices of variants with a baseline by their names, and of other pairs by their texts,
        where the study has shorter horizons of both sides. None at an equal budget."""
        if self.study.at:
            return {}
        sides = sides_of(self.study, self.outcomes, self.slack)
        return prices_of(self.study, sides, self.every, self.rules, self.compared_together)

    @property
    def price_note(self) -> str:
        """Says why a study of several horizons has no price, where its variants are compared."""
        kinds = grouped(self.study.variants, lambda v: v.kind)
        asked = any(len(kind) > 1 for kind in kinds) and self.every and not self.study.at
        return _NO_PRICE if asked and not self.prices else ""

    @property
    def compared(self) -> list[Variant]:
        return [v for v in self.study.variants if v.name in self.comparisons]

    @property
    def every(self) -> dict[str, Comparison]:
        """Every comparison by its name."""
        return {**self.comparisons, **self.contrasts}

    @property
    def family(self) -> dict[str, Comparison]:
        """The comparisons that are judged together, by their names."""
        return {name: c for name, c in self.every.items() if name in self.study.family}

    @property
    def compared_together(self) -> int:
        """The number of comparisons that are judged together."""
        return family_sizes(self.family.values(), self.rules)[0]

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


def findings(study: Study) -> Findings:
    """The findings of a study. Raises ConfigError if runs would be compared that must not be."""
    check_comparable(study)
    failures = study.result_failures
    outcomes = {v.name: outcomes_of(v.results, study.loss, failures) for v in study.variants}
    slack = _tuning_slack(study, outcomes)
    asked = asked_comparisons(study, outcomes, slack)
    budgets: dict[str, EqualBudget] = {}
    if study.at:
        asked, budgets = at_equal_budgets(study, asked, sides_of(study, outcomes, slack))
    usual = usual_variance({v.name: asked[v.name] for v in study.variants if v.name in asked})
    awaited = (study.asked[name].coefficients for name in study.family)
    to_come = sum(any(map(study.awaits, variants)) for variants in awaited)
    rules = Rules(study.margin, usual, study.held_looks, study.order, to_come)
    family = study.family & asked.keys()
    comparisons = compare(asked, rules, described=asked.keys() - family)
    by_itself = replace(rules, usual=None, to_come=0)
    alone = {name: compare({name: asked[name]}, by_itself)[name].verdict for name in family}
    # A sum that is there twice, typed or as a pair, is the one comparison that is judged.
    sums = {name: frozenset(one.coefficients.items()) for name, one in study.asked.items()}
    judged = {sums[name]: comparisons[name] for name in family}
    comparisons = {name: judged.get(sums[name], c) for name, c in comparisons.items()}
    compared = [v for v in study.variants if v.name in comparisons]
    return Findings(
        study=study,
        outcomes=outcomes,
        slack=slack,
        rules=rules,
        comparisons={v.name: comparisons[v.name] for v in compared},
        differences={v.name: differences(study, v, study.baseline_of(v)) for v in compared},
        contrasts={c.text: comparisons[c.text] for c in study.contrasts if c.text in comparisons},
        alone={name: word for name, word in alone.items() if word != comparisons[name].verdict},
        budgets=budgets,
    )


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
    study: Study, outcomes: Mapping[str, Outcomes], slack: Mapping[str, float]
) -> dict[str, Sides]:
    """The sides of each comparison that a study asks for, where all of its variants have results.
    That of a variant with its baseline is there also where the baseline is lost."""

    sides = sides_of(study, outcomes, slack)
    ready = {v.name for v in study.variants if v.results}
    lost = {v.name for v in study.variants if v.lost}
    return {
        name: [sides[one]._replace(coefficient=c) for one, c in contrast.coefficients.items()]
        for name, contrast in study.asked.items()
        if ready.issuperset(contrast.coefficients)
        or (name in ready and lost.issuperset(contrast.coefficients.keys() - {name}))
    }


def sides_of(
    study: Study, outcomes: Mapping[str, Outcomes], slack: Mapping[str, float]
) -> dict[str, Side]:
    """Each variant by its name, with the coefficient 1."""
    return {
        v.name: Side(1.0, outcomes[v.name], slack.get(v.name, 0.0), bool(v.at_edge))
        for v in study.variants
    }


def outcomes_of(members: Sequence[StudyRun], loss: str, failures: Mapping[Path, str]) -> Outcomes:
    """The outcomes of these runs. `failures` are the reasons of those that failed, by folder."""
    ended = ended_runs(members)
    return Outcomes(
        {run.seed: run.final_loss(loss) for run in ended if run.folder not in failures},
        {run.seed: failures[run.folder] for run in ended if run.folder in failures},
        frozenset(member.seed for member in members if not member.ended),
    )
