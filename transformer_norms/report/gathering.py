"""Folders to a study: by what sweeps recorded, or, without a record, by what differs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell, untold
from transformer_norms.report.folders import Found, find
from transformer_norms.report.grouping import variants_of
from transformer_norms.report.study import Stage, Study, StudyRun, Variant
from transformer_norms.run.reader import SavedRun
from transformer_norms.run.sweep_record import (
    PlannedRun,
    SweepRecord,
    Tuned,
    Values,
    baseline_of,
    label,
)


def read_study(
    folders: Sequence[Path],
    baseline: Values | None = None,
    effect: float | None = None,
    tell: Tell = untold,
) -> Study:
    """The study in `folders`: run folders, folders of runs, or sweep-*.json files.

    `baseline` and `effect` go before what a sweep recorded; {} compares nothing. ConfigError, one
    line, where something is not what it should be.
    """
    found = find(folders, tell)
    study = _recorded(found, baseline, effect) if found.records else _unrecorded(found, baseline)
    if baseline and not any(variant.baseline for variant in study.variants):
        there = "; ".join(variant.name for variant in study.variants[:8])
        raise ConfigError(f"--baseline {label(baseline)}: no variant is that; there are {there}")
    return study if effect is None else replace(study, effect=effect)


def _unrecorded(found: Found, baseline: Values | None) -> Study:
    """Whoever typed the runs planned them: one that has not ended is missing."""
    counted = [run for run in found.runs.values() if run.folder not in found.older]
    parts = variants_of(counted, list(baseline or {}))
    members = [
        StudyRun(run.folder, run, "result", values, {}, run.seed)
        for values, runs in parts
        for run in sorted(runs, key=lambda run: run.seed)
    ]
    axes = list(dict.fromkeys(key for values, _ in parts for key in values))
    variants = _variants([values for values, _ in parts], members, baseline or {}, [])
    variants.sort(key=lambda variant: variant.compared)  # baselines first
    return Study(found.home, axes, members + _others(found, axes, counted), variants)


def _recorded(found: Found, baseline: Values | None, effect: float | None) -> Study:
    """ConfigError where there are sweeps that asked different things."""
    first, *more = found.records.items()
    for path, record in more:
        for name in ("axes", "baseline", "tune", "effect"):
            overruled = {"baseline": baseline, "effect": effect}.get(name) is not None
            there, here = getattr(first[1], name), getattr(record, name)
            if there != here and not overruled:
                raise ConfigError(
                    f"{path.parent}: {first[0].name} and {path.name} differ in {name} "
                    f"({there} and {here}); name one of the two files"
                )
    record = first[1]
    if unknown := [key for key in baseline or {} if key not in record.axes]:
        raise ConfigError(f"--baseline {unknown[0]}: the sweep varies {', '.join(record.axes)}")
    members: dict[str, StudyRun] = {}
    for path, one in found.records.items():
        for planned in one.runs:
            member = replace(_planned(found, path.parent, planned), stage=_stage(planned, one))
            # Two variants that come to one run both have it.
            key = json.dumps([str(member.folder), member.stage, member.variant])
            members.setdefault(key, member)
    runs = list(members.values())
    values = [run.variant for run in runs]
    tuned = [choice for one in found.records.values() for choice in one.tuned]
    counted = [member.run for member in runs if member.run]
    return Study(
        found.home,
        record.axes,
        runs + _others(found, record.axes, counted),
        _variants(values, runs, record.baseline if baseline is None else baseline, tuned),
        record.effect,
        " ".join(dict.fromkeys(one.question for one in found.records.values())),
        record.tune,
    )


def _planned(found: Found, study: Path, planned: PlannedRun) -> StudyRun:
    folder = planned.newest(study)
    run = found.run(folder)
    if run and run.summary.identity != planned.identity:
        raise ConfigError(
            f"{folder}: its identity is {run.summary.identity}, and the sweep planned "
            f"{planned.identity} there"
        )
    return StudyRun(folder, run, planned.stage, planned.variant, planned.tuned, planned.seed)


def _stage(planned: PlannedRun, record: SweepRecord) -> Stage:
    """A result at values that are no longer the best does not count: a wider grid has been tried
    since."""
    chosen = [choice.best for choice in record.tuned if choice.variant == planned.variant]
    late = planned.stage == "result" and planned.tuned and chosen and planned.tuned not in chosen
    return "superseded" if late else planned.stage


def _others(found: Found, axes: Sequence[str], counted: Sequence[SavedRun]) -> list[StudyRun]:
    """The runs that were found and do not count, with what they say of the axes."""
    folders = {run.folder for run in counted}
    return [
        StudyRun(
            folder,
            run,
            "superseded" if folder in found.older else "unplanned",
            {key: run.value(key) for key in axes if run.has(key)},
            {},
            run.seed,
        )
        for folder, run in found.runs.items()
        if folder not in folders
    ]


def _variants(
    every: Iterable[Values], runs: Sequence[StudyRun], baseline: Values, tuned: Sequence[Tuned]
) -> list[Variant]:
    """Each different one of `every`, by its name, with what it is compared with."""
    distinct: list[Values] = []
    for values in every:
        if values not in distinct:
            distinct.append(values)
    names = _names(distinct)
    return [
        Variant(
            name,
            values,
            [run for run in runs if run.variant == values and run.stage == "result"],
            [run for run in runs if run.variant == values and run.stage == "tune"],
            _name(baseline_of(values, baseline, distinct) if baseline else None, names),
            next((choice for choice in tuned if choice.variant == values), None),
        )
        for name, values in names
    ]


def _names(variants: Sequence[Values]) -> list[tuple[str, Values]]:
    """Labels, with whole keys where the short ones would be two variants' name."""
    short = [label(values) for values in variants]
    return [
        (
            name if short.count(name) == 1 else " ".join(f"{k}={v}" for k, v in values.items()),
            values,
        )
        for name, values in zip(short, variants, strict=True)
    ]


def _name(wanted: Values | None, names: Sequence[tuple[str, Values]]) -> str | None:
    return next((name for name, values in names if values == wanted), None)
