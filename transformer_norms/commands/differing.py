"""The keys in which runs differ, as they were chosen."""

import json
from collections.abc import Sequence
from typing import Any

from transformer_norms.config.tree import flat, marked
from transformer_norms.kinds import Mark
from transformer_norms.names import AXES_OF_A_RUN
from transformer_norms.run.reader import SavedRun

_ASIDE = tuple(key for key in marked(Mark.ASIDE) if "*" not in key)


def differing_keys(runs: Sequence[SavedRun]) -> list[str]:
    """Returns the keys whose chosen values differ: axes first, seeds last.

    What a choice brings with it is left out: `norm.eps` counts where two runs with one norm have
    another eps. So do keys that change no result, such as trainer.log_every.
    """
    chosen = [_chosen(run) for run in runs]
    choices = [values["choices"] for values in chosen]
    axes = [axis for axis in AXES_OF_A_RUN if axis != "tracking"]
    differing = [axis for axis in axes if len({names.get(axis) for names in choices}) > 1]
    seen: dict[str, dict[str, set[str]]] = {}
    for values, names in zip(map(_settings, chosen), choices, strict=True):
        for key, value in values.items():
            option = _option_behind(key.partition(".")[0], names)
            seen.setdefault(key, {}).setdefault(option, set()).add(json.dumps(value))
    differing += [key for key, by in seen.items() if any(len(held) > 1 for held in by.values())]
    return sorted(differing, key=lambda key: key in ("seed", "data.seed"))


def chosen_value_of(run: SavedRun, key: str) -> Any:
    """Returns the value that was chosen for a key, `auto` included, or None without such a key."""
    try:
        return run.typed(key)
    except (KeyError, AttributeError):
        return None


def _chosen(run: SavedRun) -> dict[str, Any]:
    values: dict[str, Any] = run.config["chosen"]
    return values


def _settings(chosen: dict[str, Any]) -> dict[str, Any]:
    """The dotted keys of a config that can change a result."""
    return {
        key: value
        for key, value in flat(chosen).items()
        if not any(key == aside or key.startswith(f"{aside}.") for aside in _ASIDE)
    }


def _option_behind(node: str, names: dict[str, str]) -> str:
    """The options whose files set the keys of a node."""
    axes = {"architecture": "preset", "trainer": "recipe", "seed": "seed"}
    return json.dumps([names.get(axes.get(node, node)), names.get("recipe")])
