"""Chooses what runs are compared with that no sweep planned, if nobody has typed it."""

import shlex
from collections.abc import Sequence

from transformer_norms.comparison.sweep_record import Values
from transformer_norms.config.compose import default_choices
from transformer_norms.config.overrides import as_typed
from transformer_norms.run.reader import SavedRun

Groups = Sequence[tuple[Values, Sequence[SavedRun]]]  # the values of a variant, and its runs


def choose_baseline(groups: Groups) -> tuple[Values, str]:
    """Returns the baseline of variants that differ in one key, and a sentence that says why it is
    the baseline. Variants that differ in several keys have none, and the sentence says what to
    type. The baseline has the most of the project's defaults, and of several the earliest run."""
    if len(groups) < 2:
        return {}, ""
    axes, defaults = (
        list(dict.fromkeys(k for values, _ in groups for k in values)),
        default_choices(),
    )

    def choose_key(group: tuple[Values, Sequence[SavedRun]]) -> tuple[int, float]:
        chosen = [k in defaults and group[1][0].typed(k) == defaults[k] for k in axes]
        return -sum(chosen), min(run.began for run in group[1])

    values, runs = min(groups, key=choose_key)
    first = min(runs, key=lambda run: run.began).folder.name
    is_default = -choose_key((values, runs))[0] == len(axes)
    reason = "the project's default" if is_default else f"the earliest run ({first})"
    typed = [as_typed(key, values[key]) for key in axes if key in values]
    if len(axes) == 1 and all(axes[0] in others for others, _ in groups):
        return values, f"The baseline is {typed[0]}, {reason}; --baseline KEY=VALUE takes another."
    return {}, (
        f"Nothing is compared: the runs differ in {', '.join(axes)}, and nobody has said what they "
        f"are compared with. To compare with {reason}, type --baseline "
        + " ".join(map(shlex.quote, typed))
    )
