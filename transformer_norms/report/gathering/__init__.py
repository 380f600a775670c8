"""From folders to a study: by the records of sweeps or, without a record, by what differs.

A folder with the record of a sweep brings the runs that the sweep planned. A folder without one
brings all of its runs: whoever typed them planned them. Several folders are one study if they ask
one question: sweeps over the same axes, and typed runs with their values on these axes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from transformer_norms.comparison.contrasts import find_contrast, shown_text
from transformer_norms.comparison.registration import registration_lines, terms_of
from transformer_norms.comparison.sweep_record import Look, SweepRecord, Values, baseline_of, label
from transformer_norms.comparison.verdict import MARGIN
from transformer_norms.config.tree import diff, within
from transformer_norms.errors import ConfigError
from transformer_norms.names import unknown
from transformer_norms.progress import Tell, tell_nobody
from transformer_norms.report.fairness import check_comparable
from transformer_norms.report.gathering.grouping import (
    choose_baseline,
    count_once,
    find_variants,
    left_out_runs,
    planned_runs,
    typed_runs,
)
from transformer_norms.report.gathering.sources import Sources, home_of
from transformer_norms.report.horizons import BUDGETS
from transformer_norms.report.study import Study, StudyRun, Variant
from transformer_norms.storage.reading import real_path
from transformer_norms.text_tables import show

_NOISE = "noise"  # the name of a study that measures how losses scatter
# Losses scatter alike only where these are the same: nodes and keys of a config.
_SAME = (
    "data", "tokenizer", "model", "trainer.steps", "trainer.batch_size", "trainer.precision",
)  # fmt: skip


def read_study(
    folders: Sequence[Path],
    baseline: Values | None = None,
    margin: float | None = None,
    contrasts: Sequence[str] = (),
    tell: Tell = tell_nobody,
    at: str = "",
    names: Values | None = None,
) -> Study:
    """The study in `folders`: run folders, folders of runs, or sweep-*.json files.

    `baseline` and `margin` overrule what a sweep recorded; the baseline {} compares nothing.
    `contrasts` are added to those that a sweep asked for. Unless `names` is None, they and those of
    a sweep are shown in the place of words of labels. Raises ConfigError, one line, if a folder or
    file is not what it should be, or if the folders ask different questions.
    """
    if not folders:
        raise ConfigError("name at least one FOLDER, such as runs/main")
    if margin is not None and not 0 < margin < inf:
        raise ConfigError(f"--margin {margin}: a number of nats above 0 is wanted")
    if at and at not in BUDGETS:
        raise ConfigError(f"at={at}: {unknown('budget', at, BUDGETS)}")
    sources = Sources(tell)
    for folder in folders:
        try:
            sources.add(real_path(folder), str(folder))
        except OSError as error:
            raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None
    study = _study_of(sources, home_of(folders), baseline, margin, at, names)
    if baseline and not any(variant.baseline for variant in study.variants):
        there = "; ".join(variant.name for variant in study.variants[:8])
        raise ConfigError(f"--baseline {label(baseline)}: no variant is that; there are {there}")
    contrasts = [contrasts] if isinstance(contrasts, str) else contrasts
    study = _with_contrasts(study, sources, contrasts)
    records = [one for one in sources.records.values() if one.registered]
    every = [(one.name, one.registered) for one in records if one.registered]
    found = [one for i, one in enumerate(every) if one not in every[:i]]  # each part has the same
    variants, contrasts = [v.values for v in study.variants], [c.text for c in study.contrasts]
    reported = terms_of(variant=variants, contrast=contrasts, margin=[study.margin])
    reported += [f"run {run} {run.identity}" for one in records for run in one.runs]
    lines = registration_lines(found, reported)
    return replace(study, damaged=sources.damage_lines(), registered=lines)


def _study_of(
    sources: Sources, home: Path, typed: Values | None, margin: float | None, at: str,
    names: Values | None,
) -> Study:  # fmt: skip
    records = list(sources.records.values())
    for path, record in sources.records.items():
        if record.question.startswith("Smoke test of ") and not record.baseline:
            raise ConfigError(f"{path}: is of a smoke test, whose few steps are not results")
    _check_one_question(sources.records, margin)
    planned = [run for path in sources.records for run in planned_runs(sources, path)]
    axes = records[0].axes if records else []
    added = typed_runs(sources, planned, axes, list(typed or {}))
    runs = count_once([*planned, *added])
    counted = [run for run in runs if run.counts]
    axes = axes or list(dict.fromkeys(key for run in counted for key in run.variant))
    if records and (unknown := [key for key in typed or {} if key not in axes]):
        raise ConfigError(f"--baseline {unknown[0]}: the sweep varies {', '.join(axes)}")
    (variants, shown), unasked = find_variants(counted, records, names), ""
    if typed is None and not records:
        typed, unasked = choose_baseline(variants)
    baselines = [record.baseline for record in records] if typed is None else [typed]
    variants = [_with_baseline(variant, variants, filter(None, baselines)) for variant in variants]
    looks = [look for record in records for look in record.own_looks]
    # Sweeps record a look when results are complete. A report of an unfinished sweep is none: it
    # names nothing that more seeds could change.
    study = Study(
        home,
        axes,
        runs + left_out_runs(sources, axes, runs),
        variants,
        margin if margin is not None else records[0].margin if records else MARGIN,
        " ".join(dict.fromkeys(record.question for record in records if record.question)),
        _common_tune(records),
        looks=count_looks(looks, variants),
        order=list(dict.fromkeys(s for look in looks for seen in look.seen for s in seen.seeds)),
        open_ended=any(record.most is not None for record in records)
        or _seeds_follow(runs, looks, variants),
        recorded=not added,
        unasked=unasked,
        at=at,
        names=shown,
    )
    if not records:
        study.variants.sort(key=lambda variant: variant.compared)  # baselines first
    return _unless_refused(study) if unasked and typed else study


def _check_one_question(records: Mapping[Path, SweepRecord], typed: float | None) -> None:
    """Raises ConfigError where sweeps vary other keys, or have another margin."""
    questions: dict[Path, dict[str, Any]] = {
        path: {"axes": sorted(one.axes), "margin": one.margin if typed is None else typed}
        for path, one in records.items()
    }
    first = next(iter(questions), Path())
    for path, question in questions.items():
        for key, (here, there) in diff(questions[first], question, "none").items():
            raise ConfigError(
                f"{first} and {path} differ in {key} ({show(here)} and {show(there)}); a report is "
                "about one question: name folders or a sweep-NAME.json of one"
            )


def _with_baseline(
    variant: Variant, variants: Sequence[Variant], baselines: Iterable[Values]
) -> Variant:
    """The variant with the baseline that the first of `baselines` gives it."""
    values = [one.values for one in variants]
    for baseline in baselines:
        against = baseline_of(variant.values, baseline, values)
        if against is not None:
            return replace(variant, baseline=variants[values.index(against)].name)
    return variant


def _common_tune(records: Sequence[SweepRecord]) -> dict[str, list[Any]]:
    """The values of each tuned key that all sweeps tried which tuned it."""
    tune: dict[str, list[Any]] = {}
    for record in records:
        for key, values in record.tune.items():
            tune[key] = [value for value in tune.get(key, values) if value in values] or values
    return tune


def _unless_refused(study: Study) -> Study:
    """The study, without its baselines if its runs must not be compared: nobody asked for it."""
    try:
        check_comparable(study)
    except ConfigError as error:
        alone = [replace(variant, baseline=None) for variant in study.variants]
        return replace(study, variants=alone, unasked=f"Nothing is compared. {error}")
    return study


def _with_contrasts(study: Study, sources: Sources, typed: Sequence[str]) -> Study:
    """The study with the contrasts of its sweeps and the typed ones, each once. Typed values of a
    sweep may have added variants to which a sweep's contrast does not apply."""
    variants = {variant.name: variant.values for variant in study.variants}
    recorded = [text for record in sources.records.values() for text in record.contrasts]
    contrasts, left_out = {}, []
    for text in dict.fromkeys([*recorded, *typed]):
        try:
            found = find_contrast(text, variants)
            shown = shown_text(found.title, study.names)
            contrasts[text] = replace(found, declared=text in recorded, shown=shown)
        except ConfigError as error:
            if text in typed:
                raise ConfigError(f"--contrast {error}") from None
            left_out.append(f"contrast {error}")
    return replace(study, contrasts=[*contrasts.values()], left_out=left_out)


# --------------------------------------------------------------------------------- looks at results


def count_looks(looks: Sequence[Look], variants: Sequence[Variant]) -> int:
    """How often results were looked at: the number of different sets of seeds of one variant, of
    the variant that has most. A variant that is added later does not make a second look of the
    first one at others. Without looks it is one."""
    sets = ({frozenset(_seen_seeds(look, v)) for look in looks} - {frozenset()} for v in variants)
    return max(map(len, sets), default=1) or 1


def _seeds_follow(
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


# ------------------------------------------------------------------------------- the study of noise


def noise_in(folder: Path, settings: Mapping[str, Any]) -> Study | None:
    """The study `noise` in a folder of studies, if its runs have the data, size and horizon of
    these settings, which are those of a run (`SavedRun.settings`)."""
    if not any((folder / _NOISE).glob("*/summary.json")):
        return None
    try:
        noise = read_study([folder / _NOISE])
    except ConfigError:
        return None  # it has its own report, which says what is wrong with it
    same = [_shared_settings(run.settings) for run in noise.results[:1]]
    return noise if same == [_shared_settings(settings)] else None


def _shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if within(key, _SAME)}
