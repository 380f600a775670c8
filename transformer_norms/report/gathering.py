"""From folders to a study: by the records of sweeps or, without a record, by what differs."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.names import AXES_OF_A_RUN
from transformer_norms.progress import Tell, tell_nobody
from transformer_norms.report.study import Stage, Study, StudyRun, Variant
from transformer_norms.run.reader import SavedRun, newest_attempts
from transformer_norms.run.sweep_record import (
    PlannedRun,
    SweepRecord,
    Tuned,
    Values,
    baseline_of,
    label,
    read_record,
)

_CHOICES = [axis for axis in AXES_OF_A_RUN if axis != "tracking"]
_CHOICES += ["embed", "final_norm", "qk_norm"]
_HASH = "identity"


def read_study(
    folders: Sequence[Path],
    baseline: Values | None = None,
    effect: float | None = None,
    tell: Tell = tell_nobody,
) -> Study:
    """The study in `folders`: run folders, folders of runs, or sweep-*.json files.

    `baseline` and `effect` overrule what a sweep recorded; the baseline {} compares nothing. Raises
    ConfigError, one line, if a folder or file is not what it should be.
    """
    if not folders:
        raise ConfigError("name at least one FOLDER, such as runs/main")
    there = _Folders(folders[0] if folders[0].is_dir() else folders[0].parent, tell=tell)
    for folder in folders:
        try:
            there.add(folder.resolve(), str(folder))
        except OSError as error:
            raise ConfigError(f"{folder}: {error.strerror}") from None
    study = _recorded(there, baseline, effect) if there.records else _unrecorded(there, baseline)
    if baseline and not any(variant.baseline for variant in study.variants):
        names = "; ".join(variant.name for variant in study.variants[:8])
        raise ConfigError(f"--baseline {label(baseline)}: no variant is that; there are {names}")
    return study if effect is None else replace(study, effect=effect)


# --------------------------------------------------------------------------------------- folders


@dataclass
class _Folders:
    """The runs and the sweeps in the named folders; `home` is the first folder."""

    home: Path
    records: dict[Path, SweepRecord] = field(default_factory=dict)
    runs: dict[Path, SavedRun] = field(default_factory=dict)
    tell: Tell = tell_nobody
    expected: int = 0  # runs, as far as is known

    def add(self, folder: Path, typed: str) -> None:
        if not folder.is_dir():
            if not _is_record(folder):
                raise ConfigError(
                    f"{typed}: is no run folder, no folder of runs, no sweep-NAME.json"
                )
            self.records[folder] = read_record(folder)
            self.expected += len(self.records[folder].runs)
            return
        inside = [folder]
        if not (folder / "summary.json").exists():
            inside = sorted(path for path in folder.iterdir() if path.is_dir())
            for path in sorted(filter(_is_record, folder.iterdir())):
                self.records[path] = read_record(path)
        self.expected += len(inside)
        runs = [self.run(path) for path in inside]
        if not any(runs) and not any(path.parent == folder for path in self.records):
            studies = [path.name for path in inside if any(path.glob("*/summary.json"))]
            hint = f"; it holds studies, name one: {typed}/{studies[0]}" if studies else ""
            raise ConfigError(f"{typed}: there is no run in it{hint}")

    def run(self, folder: Path) -> SavedRun | None:
        """The run in `folder`, read once; None if no run has begun there."""
        if folder not in self.runs:
            if folder.is_symlink():
                raise ConfigError(f"{folder}: is a link; name the folder that it leads to")
            if not (folder / "summary.json").exists():
                return None
            self.runs[folder] = SavedRun(folder)
            self.tell("reading runs {:.0f}/{:.0f}", len(self.runs), self.expected)
        return self.runs[folder]

    def left_out(self, axes: Sequence[str], counted: Sequence[SavedRun]) -> list[StudyRun]:
        """The runs that do not count, with their values on the axes."""
        newest = newest_attempts(self.runs.values())
        return [
            StudyRun(
                run.folder,
                run,
                "unplanned" if run in newest else "superseded",
                {key: run.value(key) for key in axes if run.has(key)},
                {},
                run.seed,
            )
            for run in self.runs.values()
            if run not in counted
        ]


def _is_record(path: Path) -> bool:
    return path.name.startswith("sweep-") and path.suffix == ".json"


# ------------------------------------------------------------------------- the record of a sweep


def _recorded(there: _Folders, baseline: Values | None, effect: float | None) -> Study:
    """Raises ConfigError if there are sweeps that asked different things."""
    first, *more = there.records.items()
    for path, record in more:
        for name in ("axes", "baseline", "tune", "effect"):
            overruled = {"baseline": baseline, "effect": effect}.get(name) is not None
            before, now = getattr(first[1], name), getattr(record, name)
            if before != now and not overruled:
                raise ConfigError(
                    f"{path.parent}: {first[0].name} and {path.name} differ in {name} "
                    f"({before} and {now}); name one of the two files"
                )
    record = first[1]
    if unknown := [key for key in baseline or {} if key not in record.axes]:
        raise ConfigError(f"--baseline {unknown[0]}: the sweep varies {', '.join(record.axes)}")
    members: dict[str, StudyRun] = {}
    for path, one in there.records.items():
        for planned in one.runs:
            member = _planned_run(there, path.parent, planned, _stage(planned, one))
            # Two variants that come to one run both have it.
            key = json.dumps([str(member.folder), member.stage, member.variant])
            members.setdefault(key, member)
    runs = list(members.values())
    values = [run.variant for run in runs]
    tuned = [choice for one in there.records.values() for choice in one.tuned]
    counted = [member.run for member in runs if member.run]
    return Study(
        there.home,
        record.axes,
        runs + there.left_out(record.axes, counted),
        _variants(values, runs, record.baseline if baseline is None else baseline, tuned),
        record.effect,
        " ".join(dict.fromkeys(one.question for one in there.records.values())),
        record.tune,
    )


def _planned_run(there: _Folders, study: Path, planned: PlannedRun, stage: Stage) -> StudyRun:
    folder = planned.newest(study)
    run = there.run(folder)
    if run and run.summary.identity != planned.identity:
        raise ConfigError(
            f"{folder}: its identity is {run.summary.identity}, and the sweep planned "
            f"{planned.identity} there"
        )
    return StudyRun(folder, run, stage, planned.variant, planned.tuned, planned.seed)


def _stage(planned: PlannedRun, record: SweepRecord) -> Stage:
    """A result at values that are no longer the best does not count: a wider grid has been tried
    since."""
    chosen = [choice.best for choice in record.tuned if choice.variant == planned.variant]
    late = planned.stage == "result" and planned.tuned and chosen and planned.tuned not in chosen
    return "superseded" if late else planned.stage


def _variants(
    every: Iterable[Values], runs: Sequence[StudyRun], baseline: Values, tuned: Sequence[Tuned]
) -> list[Variant]:
    """Each different one of `every`, by its name, with its baseline."""
    distinct: list[Values] = []
    for values in every:
        if values not in distinct:
            distinct.append(values)
    short = [label(values) for values in distinct]
    names = [
        # Whole keys where the short ones would be two variants' name.
        name if short.count(name) == 1 else " ".join(f"{k}={v}" for k, v in values.items())
        for name, values in zip(short, distinct, strict=True)
    ]
    variants = []
    for name, values in zip(names, distinct, strict=True):
        against = baseline_of(values, baseline, distinct) if baseline else None
        variants.append(
            Variant(
                name,
                values,
                [run for run in runs if run.variant == values and run.stage == "result"],
                [run for run in runs if run.variant == values and run.stage == "tune"],
                None if against is None else names[distinct.index(against)],
                next((choice for choice in tuned if choice.variant == values), None),
            )
        )
    return variants


# ------------------------------------------------------------------------------ without a record


def _unrecorded(there: _Folders, baseline: Values | None) -> Study:
    """Whoever typed the runs planned them: a run that has not ended is missing."""
    counted = newest_attempts(there.runs.values())
    groups = group_by_variant(counted, list(baseline or {}))
    members = [
        StudyRun(run.folder, run, "result", values, {}, run.seed)
        for values, runs in groups
        for run in sorted(runs, key=lambda run: run.seed)
    ]
    axes = list(dict.fromkeys(key for values, _ in groups for key in values))
    variants = _variants([values for values, _ in groups], members, baseline or {}, [])
    variants.sort(key=lambda variant: variant.compared)  # baselines first
    return Study(there.home, axes, members + there.left_out(axes, counted), variants)


def group_by_variant(
    runs: Sequence[SavedRun], asked: Sequence[str]
) -> list[tuple[Values, list[SavedRun]]]:
    """Each variant's values and its runs: those that differ in nothing but their seed. The values
    are those of the choices that differ between variants, of the keys that tell apart what no
    choice does, and of the keys `asked` about."""
    alike: dict[str, list[SavedRun]] = {}
    for run in runs:
        alike.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    firsts = [members[0] for members in alike.values()]
    axes = [key for key in _CHOICES if len({_typed(run, key) for run in firsts}) > 1]
    axes += [key for key in asked if key not in axes]
    axes += [key for key in _distinguishing_keys(firsts, axes) if key not in axes]
    groups = [(_values(members[0], axes), members) for members in alike.values()]
    for values, members in groups:
        if sum(values == others for others, _ in groups) > 1:
            values[_HASH] = members[0].summary.identity[:8]
    return groups


def _values(run: SavedRun, keys: Sequence[str]) -> Values:
    """The values of the keys that the run has: not every norm has an eps."""
    return {key: run.value(key) for key in keys if run.has(key)}


def _typed(run: SavedRun, key: str) -> str:
    """The choice as typed: `auto` for a choice that follows from another."""
    return str(run.typed(key))


def _distinguishing_keys(runs: Sequence[SavedRun], axes: Sequence[str]) -> list[str]:
    """The dotted keys that differ among runs whose `axes` are the same."""
    same: dict[str, list[SavedRun]] = {}
    for run in runs:
        same.setdefault(json.dumps(_values(run, axes)), []).append(run)
    keys: dict[str, None] = {}
    for members in same.values():
        for key in sorted({key for run in members for key in run.settings}):
            if len({_setting(run, key) for run in members}) > 1:
                keys[key] = None
    return list(keys)


def _setting(run: SavedRun, key: str) -> str:
    """The typed word of a key that may be `auto`: its derived value tells nothing of its own."""
    value: Any = run.settings.get(key)
    with suppress(KeyError, TypeError, AttributeError):  # a norm that follows from another choice
        value = run.typed(key)
    return json.dumps(value)
