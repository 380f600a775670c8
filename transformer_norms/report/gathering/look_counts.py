"""Counts the looks at the results of a study, and tells whether its seeds follow from one."""

from collections.abc import Sequence

from transformer_norms.comparison.sweep_record import Look
from transformer_norms.report.study import StudyRun, Variant


def count_looks(looks: Sequence[Look], variants: Sequence[Variant]) -> int:
    """How often results were looked at: the number of different sets of seeds of one variant, of
    the variant that has most. A variant that is added later does not make a second look of the
    first one at others. Without looks it is one."""
    sets = ({frozenset(_seen_seeds(look, v)) for look in looks} - {frozenset()} for v in variants)
    return max(map(len, sets), default=1) or 1


def seeds_follow(
    runs: Sequence[StudyRun], looks: Sequence[Look], variants: Sequence[Variant]
) -> bool:
    """Whether the number of seeds of a comparison follows from a look: more of them are planned
    than an earlier look saw, or planned ones were given up."""
    given_up = [run.variant for run in runs if run.stage == "given up"]
    by_name = {variant.name: variant for variant in variants}
    for variant in variants:
        sides = [variant, by_name[variant.baseline or variant.name]]
        if variant.baseline == variant.name and any(one.compared for one in variants):
            continue  # its seeds count in pairs with those of the others
        planned = set.intersection(*({run.seed for run in side.results} for side in sides))
        for look in looks:
            seen = set.intersection(*(_seen_seeds(look, side) for side in sides))
            if set() < seen < planned:
                return True
        if planned and any(side.values in given_up for side in sides):
            return True
    return False


def _seen_seeds(look: Look, variant: Variant) -> set[int]:
    """The seeds of a variant that a look saw, even if the variant had other values then: another
    question may have planned the same runs."""
    named = {seed for one in look.seen if one.variant == variant.values for seed in one.seeds}
    return named | {run.seed for run in variant.results if run.identity in look.identities}
