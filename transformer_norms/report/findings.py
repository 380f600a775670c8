"""What a study's runs allow to be said: outcomes by seed, comparisons, and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformer_norms.report.comparable import check, differences
from transformer_norms.report.statistics import Comparison, Outcomes, compare
from transformer_norms.report.study import Study, Variant
from transformer_norms.report.tuning import caveats
from transformer_norms.report.verdict import in_words, share_in_words


@dataclass(frozen=True)
class Findings:
    """`loss` is the field of summary.json that counts. Outcomes of every variant, comparisons of
    those that have a baseline, and in which words each differs from it beyond what was asked."""

    study: Study
    loss: str
    outcomes: Mapping[str, Outcomes]
    comparisons: Mapping[str, Comparison]
    differences: Mapping[str, Sequence[str]]

    def sentence(self, variant: Variant) -> str:
        """The verdict on a variant, with what makes its tuning unfair, or how its runs ended."""
        own = self.outcomes[variant.name]
        if not variant.results:
            return f"{variant.name} {_no_results(variant)}"
        if variant.compared and variant.baseline is not None:
            compared, other = self.comparisons[variant.name], self.outcomes[variant.baseline]
            said = in_words(variant.name, variant.baseline, compared, own, other)
            return "; ".join([said, *caveats(variant, self.study.variant(variant.baseline))])
        return f"{variant.name}: {_ended(own)}"


def findings(study: Study) -> Findings:
    """ConfigError where runs are to be compared that must not be."""
    check(study)
    finished = [
        run.summary for v in study.variants for run in v.ended if run.summary.status == "finished"
    ]
    tested = bool(finished) and all(summary.test_loss is not None for summary in finished)
    loss = "test_loss" if tested else "val_loss"
    outcomes = {variant.name: _outcomes(variant, loss) for variant in study.variants}
    compared = [v for v in study.variants if v.compared and v.results]
    pairs = {v.name: (outcomes[v.name], outcomes[v.baseline or v.name]) for v in compared}
    return Findings(
        study,
        loss,
        outcomes,
        compare(pairs, study.effect),
        {variant.name: differences(study, variant) for variant in compared},
    )


def _outcomes(variant: Variant, loss: str) -> Outcomes:
    diverged = {r.seed for r in variant.results if r.status == "diverged"}
    return Outcomes(
        losses={m.seed: m.run.final_loss(loss) for m in variant.results if m.run and m.ended},
        diverged=frozenset(diverged),
        missing=frozenset(member.seed for member in variant.results if not member.ended),
    )


def _ended(outcomes: Outcomes) -> str:
    """`mean 2.3000 nats over 3 seeds; diverged in 1 of 3 (1 to 91 %); 1 missing`"""
    if outcomes.mean is None:
        return f"no run has ended, {len(outcomes.missing)} missing"
    count = len(outcomes.losses)
    words = f"mean {outcomes.mean:.4f} nats over {count} seed{'s' * (count > 1)}"
    if outcomes.diverged:
        words += f"; diverged in {share_in_words(outcomes.divergence)}"
    return words + (f"; {len(outcomes.missing)} missing" if outcomes.missing else "")


def _no_results(variant: Variant) -> str:
    if variant.lost:
        return f"diverged at every value tried ({len(variant.trials)} runs)"
    return "has no runs planned for its result yet"
