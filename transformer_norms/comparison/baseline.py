"""Chooses what runs are compared with that no sweep planned, if nobody has typed it."""

import shlex
from collections.abc import Sequence

from transformer_norms.comparison.sweep_record import Values
from transformer_norms.config.compose import default_choices
from transformer_norms.config.overrides import as_typed
from transformer_norms.run.reader import SavedRun
from transformer_norms.text_tables import show

Groups = Sequence[tuple[Values, Sequence[SavedRun]]]  # the values of a variant, and its runs


def choose_baseline(groups: Groups) -> tuple[Values, str]:
    """Returns the baseline of variants that differ in one key, and a sentence that says why it is
    the baseline. Variants that differ in several keys have none, and the sentence says what to
    type. The baseline is the variant of the project's defaults, else that of the earliest run."""
    if len(groups) < 2:
        return {}, ""
    axes = list(dict.fromkeys(key for values, _ in groups for key in values))
    values, reason = _first_choice(groups, axes)
    baseline = {key: values[key] for key in axes if key in values}
    named = ", ".join(f"{key}={show(value)}" for key, value in baseline.items())
    if len(axes) == 1 and all(axes[0] in values for values, _ in groups):
        return baseline, f"The baseline is {named}, {reason}; --baseline KEY=VALUE takes another."
    typed = " ".join(shlex.quote(as_typed(key, value)) for key, value in baseline.items())
    return {}, (
        f"Nothing is compared: the runs differ in {', '.join(axes)}, and nobody has said what they "
        f"are compared with. To compare with {reason}, type --baseline {typed}"
    )


def _first_choice(groups: Groups, axes: Sequence[str]) -> tuple[Values, str]:
    """Returns the values of the variant that has the most defaults, and words for it."""
    defaults = default_choices()

    def chosen_by_default(run: SavedRun) -> int:
        return sum(key in defaults and run.typed(key) == defaults[key] for key in axes)

    most = max(chosen_by_default(runs[0]) for _, runs in groups)
    nearest = [(values, runs) for values, runs in groups if chosen_by_default(runs[0]) == most]
    values, runs = min(nearest, key=lambda group: min(run.began for run in group[1]))
    if most == len(axes) or (most and len(nearest) == 1):
        return values, "the project's default"
    return values, f"the earliest run ({min(runs, key=lambda run: run.began).folder.name})"
