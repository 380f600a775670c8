"""Runs as a table: a row for each run, and a column for each key of summary.json and config.yaml.

pandas is imported by the functions that need it: its import takes longer than to start a command.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from transformer_norms.config.tree import flat, marked, within
from transformer_norms.kinds import Mark
from transformer_norms.names import AXES_OF_A_RUN
from transformer_norms.run.reader import SavedRun
from transformer_norms.run.summary import Summary

if TYPE_CHECKING:
    from pandas import DataFrame

CHOSEN = "chosen."  # before the key of a value as it was chosen, `auto` included
_NESTED = ("choices", "data", "versions", "source", "process", "warnings", "start")
_SUMMARY = [one.name for one in fields(Summary) if one.name not in _NESTED]
_NOT_IN_IDENTITY = tuple(key for key in marked(Mark.ASIDE) if "*" not in key)


def make_table(rows: Sequence[Mapping[str, Any]]) -> "DataFrame":
    """Returns rows as a table of Python's own values, None where a row has no such key."""
    from pandas import DataFrame

    keys = dict.fromkeys(key for row in rows for key in row)
    return DataFrame({key: [row.get(key) for row in rows] for key in keys}, dtype=object)


def run_table(runs: Sequence[SavedRun]) -> "DataFrame":
    """Returns a row for each run: its name, study, folder and time of writing, the numbers of its
    summary, its choices by axis, and its config under dotted keys, resolved and as chosen."""
    return make_table([_row(run) for run in runs])


def _row(run: SavedRun) -> dict[str, Any]:
    config, chosen, axes = dict(run.config), dict(run.config["chosen"]), run.config["choices"]
    del config["choices"], config["chosen"], chosen["choices"]
    return {
        **{f"{CHOSEN}{key}": value for key, value in flat(chosen).items()},
        **{f"{CHOSEN}{axis}": run.typed(axis) for axis in axes},
        **flat(config),
        **{axis: run.value(axis) for axis in axes},
        **{key: getattr(run.summary, key) for key in _SUMMARY},
        "name": run.folder.name,
        "study": run.folder.parent.name,
        "folder": str(run.folder),
        "written": run.written,
    }


def differing_keys(table: "DataFrame") -> list[str]:
    """Returns the keys whose chosen values differ: axes first, seeds last.

    A value that a choice brings is left out: `norm.eps` counts where two runs with one norm have
    another eps. Keys that change no result are left out too, such as trainer.log_every.
    """
    columns = {key.removeprefix(CHOSEN): table[key] for key in table if key.startswith(CHOSEN)}
    texts = {key: column.map(json.dumps) for key, column in columns.items()}
    chosen = {key: column for key, column in texts.items() if column.nunique() > 1}
    axes = [axis for axis in AXES_OF_A_RUN if axis in chosen and axis != "tracking"]
    differing = list(axes)
    for key, column in chosen.items():
        if key in AXES_OF_A_RUN or within(key, _NOT_IN_IDENTITY):
            continue
        node = key.partition(".")[0]
        axis = {"architecture": "preset", "trainer": "recipe"}.get(node, node)
        there = column[column != "null"]
        by = [chosen[one][there.index] for one in {axis, "recipe"} & {*axes}]
        if (there.groupby(by or [0] * len(there)).nunique() > 1).any():
            differing.append(key)
    return sorted(differing, key=lambda key: key in ("seed", "data.seed"))
