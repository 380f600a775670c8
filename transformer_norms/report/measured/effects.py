"""Main effects and interactions, where a study crosses the values of two axes."""

import shlex
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod

from transformer_norms.comparison.contrasts import Contrast, find_contrast, shown_text
from transformer_norms.comparison.sweep_record import ORDER, distinct, words_of
from transformer_norms.comparison.verdict import compare
from transformer_norms.errors import ConfigError
from transformer_norms.report.fairness import check_contrast
from transformer_norms.report.findings import Findings, asked_comparisons
from transformer_norms.report.study import Study
from transformer_norms.report.table import contrast_table
from transformer_norms.text_tables import Table

NOTE = (
    "Each value of one axis has runs at each value of the other. A main effect is the mean of the "
    "difference over the other axis, and an interaction is how much the difference changes. A row "
    "that is described is not tested, as it is not among the contrasts that the sweep declared."
)
_MOST = 24  # rows: more are not a small table


def effect_table(found: Findings) -> Table:
    """A row for each effect: described, unless the study judges the same sum. Nothing where no
    effect has an interval, or at an equal budget."""
    effects = {} if found.study.at else {e.text: e for e in factorial_effects(found.study)}
    study = replace(found.study, contrasts=[*effects.values()])
    asked = asked_comparisons(study, found.outcomes, found.slack)
    asked = {text: one for text, one in asked.items() if text in effects}
    compared = compare(asked, found.rules, described=asked)
    judged = [(found.study.asked[name].coefficients, c) for name, c in found.family.items()]
    same = {t: c for t, e in effects.items() for sums, c in judged if e.coefficients == sums}
    if not any(c.interval for c in compared.values()):
        return {}
    return contrast_table(replace(found, study=study, contrasts=compared | same))


def factorial_effects(study: Study) -> list[Contrast]:
    """The main effects and interactions of a full factorial of two axes, else nothing.

    With L(a, b) the loss at two values, the main effect of a against the reference r is the mean of
    L(a, b) - L(r, b) over all b. The interaction of a and b, with the reference s of b, is
    (L(a, b) - L(r, b)) - (L(a, s) - L(r, s)). References are the baseline's values, else the first.
    Effects between losses that must not be compared, as of two horizons, are left out.
    """
    variants = {variant.name: variant.values for variant in study.variants}
    every = [v.values for v in (*study.baselines, *study.variants)]  # references come first
    levels = {axis: distinct(values.get(axis) for values in every) for axis in study.axes}
    axes = [axis for axis in levels if len(levels[axis]) > 1]
    crossed = len(variants) == prod(map(len, levels.values()))
    if len(axes) != 2 or not crossed or ORDER in axes:
        return []
    # The axis of the baseline comes first, and one that gives each value its own baseline last.
    axes.sort(key=lambda axis: len(distinct(v.values.get(axis) for v in study.baselines)))
    (r, *first), (s, *second) = (
        [shlex.quote(words_of(axis, value)[0]) for value in levels[axis]] for axis in axes
    )
    texts = [*(f"{a} - {r}" for a in first), *(f"{b} - {s}" for b in second)]
    texts += [f"({a} - {r}) under {b} - ({a} - {r}) under {s}" for a, b in product(first, second)]
    effects = []
    for text in texts if len(texts) <= _MOST else ():
        with suppress(ConfigError):
            effect = find_contrast(text, variants)
            check_contrast(study, effect.coefficients)
            effects.append(replace(effect, shown=shown_text(effect.title, study.names)))
    return effects
