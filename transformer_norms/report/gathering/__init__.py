"""From folders to a study: by the records of sweeps or, without a record, by what differs.

A folder with the record of a sweep brings the runs that the sweep planned. A folder without one
brings all of its runs: whoever typed them planned them. Several folders are one study. If they
asked one question, its variants are those of the question. Else variants are what differs between
all runs, and each is compared with the baseline of its own sweep.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer_norms.comparison.baseline import choose_baseline
from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.comparison.sweep_record import (
    SweepRecord,
    Values,
    baseline_of,
    label,
    names_of,
)
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell, tell_nobody
from transformer_norms.report.fairness import check_comparable, check_pair
from transformer_norms.report.gathering.look_counts import count_looks, seeds_follow
from transformer_norms.report.gathering.parts import Part, parts_of, put_together
from transformer_norms.report.gathering.sources import Sources, home_of
from transformer_norms.report.study import Study, StudyRun, Variant
from transformer_norms.run.failure import EFFECT
from transformer_norms.storage.reading import real_path


def read_study(
    folders: Sequence[Path],
    baseline: Values | None = None,
    effect: float | None = None,
    contrasts: Sequence[str] = (),
    tell: Tell = tell_nobody,
) -> Study:
    """The study in `folders`: run folders, folders of runs, or sweep-*.json files.

    `baseline` and `effect` overrule what a sweep recorded; the baseline {} compares nothing.
    `contrasts` stand beside those that a sweep asked for. Raises ConfigError, one line, if a folder
    or file is not what it should be.
    """
    if not folders:
        raise ConfigError("name at least one FOLDER, such as runs/main")
    sources = Sources(tell)
    for folder in folders:
        try:
            sources.add(real_path(folder), str(folder))
        except OSError as error:
            raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None
    study = _study_of(sources, home_of(folders), baseline, effect)
    if baseline and not any(variant.baseline for variant in study.variants):
        names = "; ".join(variant.name for variant in study.variants[:8])
        raise ConfigError(f"--baseline {label(baseline)}: no variant is that; there are {names}")
    study = _with_contrasts(study, sources, contrasts)
    return replace(study, damaged=sources.damage_lines())


def _study_of(sources: Sources, home: Path, typed: Values | None, effect: float | None) -> Study:
    records = list(sources.records.values())
    parts = put_together(parts_of(sources), list(typed or {}))
    runs = [run for part in parts for run in part.runs]
    counted = [run for run in runs if run.stage in ("result", "tune")]
    axes = _axes(parts, records, counted)
    if records and (unknown := [key for key in typed or {} if key not in axes]):
        raise ConfigError(f"--baseline {unknown[0]}: the sweep varies {', '.join(axes)}")
    unasked = ""
    if typed is None and not records:
        groups = [
            (v, [run.run for run in counted if run.variant == v and run.run])
            for v in _distinct(counted)
        ]
        typed, unasked = choose_baseline(groups)
    # Sweeps record a look when results are complete. A report of an unfinished sweep, as --watch
    # writes it, is none: it names nothing that more seeds could change.
    looks = [look for part in parts for look in part.looks]
    variants = _variants(parts, typed)
    study = Study(
        home,
        axes,
        runs + sources.left_out(axes, runs),
        variants,
        _common_effect(sources.records, effect),
        " ".join(dict.fromkeys(record.question for record in records if record.question)),
        _common_tune(records),
        looks=count_looks(looks, variants),
        order=list(dict.fromkeys(s for look in looks for seen in look.seen for s in seen.seeds)),
        open_ended=any(record.most is not None for record in records)
        or seeds_follow(parts, variants),
        recorded=all(part.record for part in parts),
        unasked=unasked,
    )
    if not records:
        study.variants.sort(key=lambda variant: variant.compared)  # baselines first
    if unasked and typed:
        return _unless_refused(study)
    return study if typed is not None else _without_unasked_pairs(study, parts)


def _axes(
    parts: Sequence[Part], records: Sequence[SweepRecord], counted: Sequence[StudyRun]
) -> list[str]:
    """The axes of the only question, else all keys of the variants."""
    keys = list(dict.fromkeys(key for run in counted for key in run.variant))
    axes = [record.axes for record in records]
    one_question = len(parts) == len(records) and all(one == axes[0] for one in axes)
    return axes[0] if one_question else keys


def _distinct(runs: Sequence[StudyRun]) -> list[Values]:
    values: list[Values] = []
    for run in runs:
        if run.variant not in values:
            values.append(run.variant)
    return values


def _variants(parts: Sequence[Part], typed: Values | None) -> list[Variant]:
    """The variants of all parts, in order, each with its name and its baseline."""
    counted = [run for part in parts for run in part.runs if run.stage in ("result", "tune")]
    distinct = _distinct(counted)
    names = names_of(distinct)
    variants = []
    for name, values in zip(names, distinct, strict=True):
        against = _baseline(values, parts, typed, distinct)
        members = [run for run in counted if run.variant == values]
        tuned = (one for part in parts for one in part.tuned if one.variant == values)
        variants.append(
            Variant(
                name,
                values,
                [run for run in members if run.stage == "result"],
                [run for run in members if run.stage == "tune"],
                None if against is None else names[distinct.index(against)],
                next(tuned, None),
            )
        )
    return variants


def _baseline(
    values: Values, parts: Sequence[Part], typed: Values | None, distinct: list[Values]
) -> Values | None:
    """The typed baseline of a variant, else that of its own sweep, else that of another sweep."""
    own = sorted(parts, key=lambda part: values not in part.variants)
    wanted = [part.baseline for part in own] if typed is None else [typed]
    found = (baseline_of(values, one, distinct) for one in wanted if one)
    return next((one for one in found if one is not None), None)


def _common_effect(records: dict[Path, SweepRecord], typed: float | None) -> float:
    """The smallest difference worth naming. Raises ConfigError if sweeps have different ones."""
    if typed is not None:
        return typed
    effects = {record.effect: path for path, record in records.items()}
    if len(effects) > 1:
        (first, path), (second, second_path), *_ = effects.items()
        raise ConfigError(
            f"{path.name} and {second_path.name} differ in effect ({first:g} and {second:g}); type "
            "one of them, --effect NATS, or name one of the two files"
        )
    return next(iter(effects), EFFECT)


def _common_tune(records: Sequence[SweepRecord]) -> dict[str, list[Any]]:
    """The values of each tuned key that all sweeps tried which tuned it; if there are none in
    common, all that were tried."""
    tune: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for record in records for key in record.tune):
        tried = [record.tune[key] for record in records if key in record.tune]
        common = [value for value in tried[0] if all(value in values for values in tried)]
        tune[key] = common or list(dict.fromkeys(value for values in tried for value in values))
    return tune


# ----------------------------------------------------------------------- what nobody has asked for


def _unless_refused(study: Study) -> Study:
    """The study, without its baselines if its runs must not be compared: nobody asked for it."""
    try:
        check_comparable(study)
    except ConfigError as error:
        alone = [replace(variant, baseline=None) for variant in study.variants]
        return replace(study, variants=alone, unasked=f"Nothing is compared. {error}")
    return study


def _without_unasked_pairs(study: Study, parts: Sequence[Part]) -> Study:
    """The study without the comparisons of a variant of one part with the baseline of another whose
    runs must not be compared: no sweep asked for them. The report says why they are missing."""
    variants, notes = [], []
    for variant in study.variants:
        baseline = study.baseline_of(variant)
        asked = any(
            {*map(str, [variant.values, baseline.values])} <= {*map(str, part.variants)}
            for part in parts
        )
        try:
            if variant.compared and not asked:
                check_pair(variant, baseline)
        except ConfigError as error:
            notes.append(f"{variant.name} is compared with nothing: {error}")
            variant = replace(variant, baseline=None)
        variants.append(variant)
    return replace(study, variants=variants, left_out=notes)


# --------------------------------------------------------------------------------------- contrasts


def _with_contrasts(study: Study, sources: Sources, typed: Sequence[str]) -> Study:
    """The study with the contrasts of its sweeps and the typed ones, each once. Typed values of a
    sweep may have added variants to which a sweep's contrast does not apply."""
    variants = {variant.name: variant.values for variant in study.variants}
    contrasts, left_out = {}, list(study.left_out)
    for text in dict.fromkeys(
        text for sweep in sources.records.values() for text in sweep.contrasts
    ):
        try:
            contrasts[text] = find_contrast(text, variants)
        except ConfigError as error:
            left_out.append(f"contrast {error}")
    for text in typed:
        try:
            contrasts[text] = find_contrast(text, variants)
        except ConfigError as error:
            raise ConfigError(f"--contrast {error}") from None
    return replace(study, contrasts=[*contrasts.values()], left_out=left_out)
