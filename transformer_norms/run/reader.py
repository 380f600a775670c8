"""Reads a run folder as values. Nothing in it is executed, imported, or followed elsewhere.

All readers of runs use this file. A damaged file raises ConfigError, one line with its name.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_norms.config.finding import find_study
from transformer_norms.config.saved import read_saved
from transformer_norms.config.tree import chosen_value, marked, within
from transformer_norms.config.tree import flat as flatten
from transformer_norms.errors import ConfigError, describe_error
from transformer_norms.kinds import Mark, value_at
from transformer_norms.names import AXES_OF_A_RUN
from transformer_norms.run import identity
from transformer_norms.run.folder import attempt_number
from transformer_norms.run.metrics import read_metrics
from transformer_norms.run.summary import Summary, read_summary
from transformer_norms.storage.reading import is_there
from transformer_norms.text_tables import show

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]
CHOSEN = "chosen."  # before the key of a value as it was chosen, `auto` included
_NESTED = ("choices", "data", "versions", "source", "process", "warnings", "start",
           "val_blocks", "test_blocks")  # fmt: skip
_SUMMARY = [one.name for one in fields(Summary) if one.name not in _NESTED]
_NOT_IN_IDENTITY = tuple(key for key in marked(Mark.NOT_IN_IDENTITY) if "*" not in key)
_MOST_FOLDERS = 100_000
# The keys of a config that are read by name, in addition to its identity.
_READ = (
    "choices seed model.context data.split data.val_tokens tokenizer.type trainer.steps "
    "trainer.batch_size trainer.precision"
).split()


class SavedRun:
    """The run in a folder. Raises ConfigError if the folder holds no run, or is a link to one."""

    def __init__(self, folder: Path) -> None:
        if folder.is_symlink():
            raise ConfigError(f"{folder}: is a link; name what it leads to")
        summary = read_summary(folder)
        if summary is None:
            raise ConfigError(f"{folder}: is not a run folder; summary.json is missing")
        self.folder, self.summary = folder, summary
        self.config = _read_config(folder / "config.yaml")

    def __repr__(self) -> str:
        loss = show(self.summary.val_loss, ".4f")
        return f"SavedRun({self.folder}: {self.summary.status}{loss and f', val_loss {loss}'})"

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def ended(self) -> bool:
        return self.summary.ended

    @property
    def began(self) -> float:
        """Returns when the run began, in seconds since 1970: when its config.yaml was written."""
        return (self.folder / "config.yaml").stat().st_mtime

    @property
    def written(self) -> float:
        """Returns when the run's summary was last written, in seconds since 1970."""
        return (self.folder / "summary.json").stat().st_mtime

    @property
    def finished(self) -> bool:
        return self.summary.status == "finished"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Each dotted key that can change the result, without the seeds."""
        try:
            return identity.settings_without_seeds(self.config, self.summary.data.identity)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(f"{self.folder}/config.yaml: is not a config: {error}") from None

    @property
    def flops_per_token(self) -> float | None:
        tokens, flops = self.summary.tokens, self.summary.flops
        return flops / tokens if tokens and flops is not None else None

    def final_loss(self, name: str) -> float:
        """Returns the loss `name` in nats per token. The loss of a diverged run is its initial one,
        or infinity if it has none."""
        if self.summary.status == "diverged":
            return inf if self.summary.initial_loss is None else self.summary.initial_loss
        loss: float | None = getattr(self.summary, name)
        if loss is None:
            raise ConfigError(f"{self.folder}/summary.json: {name}: a finished run has one")
        return loss

    def typed(self, key: str) -> Any:
        """Returns the value chosen for a key or an axis: `auto` where other choices decide."""
        return chosen_value(self.config["chosen"], key)

    def choice(self, axis: str) -> str | None:
        """Returns the name chosen on an axis, `auto` resolved; None if the key is not an axis."""
        name = self.config["choices"].get(axis)
        return None if name is None else str(name)

    def value(self, key: str) -> Any:
        """Returns the choice on an axis, resolved if it is auto, or the value of a dotted key."""
        if (choice := self.choice(key)) is not None:
            word = self.typed(key)
            return choice if word == "auto" else word
        try:
            return value_at(self.config, key)
        except (KeyError, TypeError):
            raise ConfigError(f"{key}: there is no such key in {self.folder}") from None

    def has(self, key: str) -> bool:
        with suppress(ConfigError):
            self.value(key)
            return True
        return False

    def metrics(self) -> list[Row]:
        """Returns the rows of metrics.jsonl, which may be absent."""
        file = self.folder / "metrics.jsonl"
        return read_metrics(file) if is_there(file) else []


class Runs(list[Row]):
    """The rows of `runs`. `saved` has the runs themselves, and `place` is where they lie."""

    def __init__(self, place: Path, saved: Sequence[SavedRun]) -> None:
        self.place, self.saved = place, saved
        for run in saved:
            row = {"folder": run.folder, "config": run.config, "summary": run.summary.values()}
            self.append({**row, "metrics": run.metrics()})

    def frame(self) -> "DataFrame":
        """Returns a table with a row for each run: study, name, the keys in which the runs differ,
        status and final losses in nats per token, and then all keys of config and summary. A
        choice has the name of its axis, `norm`, and another key is dotted, `model.depth`."""
        table = run_table(self.saved)
        first = ["study", "name", *differing_keys(table), "status", "val_loss", "test_loss"]
        order = dict.fromkeys([*(key for key in first if key in table), *table])
        return table[[key for key in order if not key.startswith(CHOSEN)]].infer_objects()

    def __repr__(self) -> str:
        counts = Counter(run.summary.status for run in self.saved)
        return f"Runs({self.place}: {', '.join(f'{n} {word}' for word, n in counts.items())})"


def runs(folder: str | Path) -> Runs:
    """Returns every run below a folder, or in the study of that name, as {folder, config, summary,
    metrics}, in a list with a `frame()`. Of runs with one identity in one study only the newest
    attempt is listed. Raises ConfigError if there is no such folder, or if a run is damaged.
    """
    place = find_study(folder)
    place = place if place.is_dir() else place.parent
    return Runs(place, newest_attempts(SavedRun(one) for one in run_folders(place)))


def make_table(rows: Sequence[Mapping[str, Any]]) -> "DataFrame":
    """Returns rows as a table of Python's own values, None where a row has no such key."""
    from pandas import DataFrame

    keys = dict.fromkeys(key for row in rows for key in row)
    return DataFrame({key: [row.get(key) for row in rows] for key in keys}, dtype=object)


def run_row(run: SavedRun) -> Row:
    """Returns a run as a row: its config under dotted keys, resolved and as it was chosen, its
    choices by axis, the numbers of its summary, where it lies and when it was written."""
    config = {key: run.config[key] for key in run.config if key not in ("choices", "chosen")}
    chosen = {key: value for key, value in run.config["chosen"].items() if key != "choices"}
    chosen = flatten(chosen) | {axis: run.typed(axis) for axis in run.config["choices"]}
    return {
        **{f"{CHOSEN}{key}": value for key, value in chosen.items()},
        **flatten(config),
        **{axis: run.value(axis) for axis in AXES_OF_A_RUN if axis in run.config["choices"]},
        **{key: getattr(run.summary, key) for key in _SUMMARY},
        "data.fingerprint": run.summary.data.fingerprint,
        "python": run.summary.versions.get("python"),
        "torch": run.summary.versions.get("torch"),
        "name": run.folder.name,
        "study": run.folder.parent.name,
        "folder": str(run.folder),
        "written": run.written,
    }


def run_table(runs: Sequence[SavedRun]) -> "DataFrame":
    return make_table([run_row(run) for run in runs])


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
        by = [table[one][there.index] for one in {axis, "recipe"} & {*AXES_OF_A_RUN} & {*table}]
        if (there.groupby(by or [0] * len(there), dropna=False).nunique() > 1).any():
            differing.append(key)
    return sorted(differing, key=lambda key: key in ("seed", "data.seed"))


def run_folders(folder: Path) -> list[Path]:
    """Returns the run folders below a folder, and the folder itself if it is one, by name.

    One that may not be read is among them: it may be a run. A link to a run is among them, and is
    refused where it is read: what it leads to may count twice. No link is followed, and a folder
    that is much larger than a study raises ConfigError.
    """
    found = []

    def note(error: OSError) -> None:
        if isinstance(error, PermissionError):
            found.append(Path(error.filename))

    for seen, (place, inside, files) in enumerate(os.walk(folder, onerror=note)):
        if seen == _MOST_FOLDERS:
            raise ConfigError(f"{folder}: holds more than {_MOST_FOLDERS} folders; name a study")
        if "summary.json" in files or "summary.json" in inside:
            found.append(Path(place))
            inside.clear()  # a run holds no runs
        paths = [Path(place, name) for name in inside]
        found += [path for path in paths if path.is_symlink() and is_there(path / "summary.json")]
    return sorted(found)


def newest_attempts(runs: Iterable[SavedRun]) -> list[SavedRun]:
    """Returns the newest attempt (NAME-HASH-2, -3, ...) of each identity in each study."""
    newest: dict[object, SavedRun] = {}
    for run in sorted(runs, key=lambda run: (attempt_number(run.folder), run.folder)):
        newest[run.folder.parent, run.summary.identity, run.summary.continued_from] = run
    return list(newest.values())


def _read_config(path: Path) -> dict[str, Any]:
    """Returns the values of a config.yaml: those that are resolved, and under `chosen` those that
    were chosen."""
    saved = read_saved(path)
    chosen = {"choices": saved.axes, **saved.chosen}
    config = {**saved.resolved, "chosen": chosen}
    try:
        for key in _READ:
            value_at(config, key)
        json.dumps(config)
        names = config["choices"].values()
        if not all(isinstance(name, str) for name in names) or type(config["seed"]) is not int:
            raise TypeError("choices are names, and the seed is a whole number")
        chosen_value(chosen, "data.seed")
    except Exception as error:  # its values may be anything
        raise ConfigError(f"{path}: is not a run's config: {describe_error(error)}") from None
    return config
