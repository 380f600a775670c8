"""From folders to a study: by the records of sweeps or, without a record, by what differs."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformer_norms.comparison.baseline import choose_baseline
from transformer_norms.comparison.contrasts import find_contrast
from transformer_norms.errors import ConfigError
from transformer_norms.names import AXES_OF_A_RUN
from transformer_norms.progress import Tell, tell_nobody
from transformer_norms.report.fairness import check_comparable
from transformer_norms.report.study import Stage, Study, StudyRun, Variant
from transformer_norms.run.reader import SavedRun, newest_attempts
from transformer_norms.run.sweep_record import (
    PlannedRun,
    SweepRecord,
    Tuned,
    Values,
    baseline_of,
    count_looks,
    label,
    names_of,
    read_record,
)

_CHOICES = [axis for axis in AXES_OF_A_RUN if axis != "tracking"]
_CHOICES += ["embed", "final_norm", "qk_norm"]


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
    sources = _Sources(folders[0] if folders[0].is_dir() else folders[0].parent, tell)
    for folder in folders:
        try:
            sources.add(folder.resolve(), str(folder))
        except OSError as error:
            raise ConfigError(f"{folder}: {error.strerror}") from None
    if sources.records:
        study = _planned_study(sources, baseline, effect)
    else:
        study = _unplanned_study(sources, baseline)
    if baseline and not any(variant.baseline for variant in study.variants):
        names = "; ".join(variant.name for variant in study.variants[:8])
        raise ConfigError(f"--baseline {label(baseline)}: no variant is that; there are {names}")
    study = study if effect is None else replace(study, effect=effect)
    return _with_contrasts(study, sources, contrasts)


@dataclass
class _Sources:
    """The runs and the sweeps in the named folders; `home` is the first folder."""

    home: Path
    tell: Tell
    records: dict[Path, SweepRecord] = field(default_factory=dict)
    runs: dict[Path, SavedRun] = field(default_factory=dict)
    expected: int = 0  # runs, as far as is known

    def add(self, path: Path, typed: str) -> None:
        """Reads what a folder or file holds. `typed` is its name on the command line."""
        if _is_record(path) and not path.is_dir():
            records, places = [path], []
        elif (path / "summary.json").exists():
            records, places = [], [path]
        elif path.is_dir():
            records = sorted(filter(_is_record, path.iterdir()))
            places = sorted(inside for inside in path.iterdir() if inside.is_dir())
        else:
            raise ConfigError(f"{typed}: is no run folder, no folder of runs, no sweep-NAME.json")
        for file in records:
            self.records[file] = read_record(file)
        self.expected += len(places) or sum(len(self.records[file].runs) for file in records)
        runs = [self.read_run(place) for place in places]
        if not any(runs) and not records:
            studies = [place.name for place in places if any(place.glob("*/summary.json"))]
            hint = f"; it holds studies, name one: {typed}/{studies[0]}" if studies else ""
            raise ConfigError(f"{typed}: there is no run in it{hint}")

    def read_run(self, folder: Path) -> SavedRun | None:
        """The run in `folder`, read once; None if no run has begun there."""
        if folder not in self.runs:
            if folder.is_symlink():
                raise ConfigError(f"{folder}: is a link; name the folder that it leads to")
            if not (folder / "summary.json").exists():
                return None
            self.runs[folder] = SavedRun(folder)
            self.tell("reading runs {:.0f}/{:.0f}", len(self.runs), self.expected)
        return self.runs[folder]

    def left_out(self, axes: Sequence[str], counted: Sequence[SavedRun | None]) -> list[StudyRun]:
        """The runs that do not count, with their values on the axes."""
        newest = newest_attempts(self.runs.values())
        return [
            StudyRun(
                run.folder,
                run,
                "unplanned" if run in newest else "superseded",
                _values(run, axes),
                {},
                run.seed,
            )
            for run in self.runs.values()
            if run not in counted
        ]


def _is_record(path: Path) -> bool:
    return path.name.startswith("sweep-") and path.suffix == ".json"


# ----------------------------------------------------------------------- the records of sweeps


def _planned_study(sources: _Sources, baseline: Values | None, effect: float | None) -> Study:
    """The study of the runs that the sweeps' records name."""
    records = list(sources.records.values())
    record = records[0]
    _check_one_question(sources.records, baseline, effect)
    if unknown := [key for key in baseline or {} if key not in record.axes]:
        raise ConfigError(f"--baseline {unknown[0]}: the sweep varies {', '.join(record.axes)}")
    members: dict[str, StudyRun] = {}
    for path, sweep in sources.records.items():
        for planned in sweep.runs:
            member = _planned_run(sources, path.parent, planned, sweep)
            # Two variants that come to one run both have it.
            key = json.dumps([str(member.folder), member.stage, member.variant])
            members.setdefault(key, member)
    runs = list(members.values())
    tuned = [choice for sweep in records for choice in sweep.tuned]
    # Sweeps record a look when results are complete. A report of an unfinished sweep, as --watch
    # writes it, is none: it names nothing that more seeds could change.
    looks = [look for sweep in records for look in sweep.looks]
    return Study(
        sources.home,
        record.axes,
        runs + sources.left_out(record.axes, [member.run for member in runs]),
        _variants(runs, record.baseline if baseline is None else baseline, tuned),
        record.effect,
        " ".join(dict.fromkeys(sweep.question for sweep in records)),
        record.tune,
        looks=count_looks(looks),
        order=list(dict.fromkeys(s for look in looks for seen in look.seen for s in seen.seeds)),
        open_ended=any(map(_follows_looks, records)),
    )


def _follows_looks(record: SweepRecord) -> bool:
    """Whether the number of seeds follows from looks: seeds are added until it is decided, or a
    variant has more planned seeds than an earlier look saw."""
    planned: dict[str, set[int]] = {}
    for run in record.runs:
        if run.stage == "result":
            planned.setdefault(label(run.variant), set()).add(run.seed)
    seen = [one for look in record.looks for one in look.seen]
    early = any(set(one.seeds) < planned.get(label(one.variant), set()) for one in seen)
    return record.most is not None or early


def _with_contrasts(study: Study, sources: _Sources, typed: Sequence[str]) -> Study:
    """The study with the contrasts of its sweeps and the typed ones, each once. Typed values of a
    sweep may have added variants to which a sweep's contrast does not apply."""
    variants = {variant.name: variant.values for variant in study.variants}
    contrasts, left_out = {}, []
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


def _check_one_question(
    records: Mapping[Path, SweepRecord], baseline: Values | None, effect: float | None
) -> None:
    """Raises ConfigError if there are sweeps that asked different things."""
    typed = {"baseline": baseline, "effect": effect}
    (first_path, first), *later = records.items()
    for path, record in later:
        for name in ("axes", "baseline", "tune", "effect"):
            before, now = getattr(first, name), getattr(record, name)
            if before != now and typed.get(name) is None:
                raise ConfigError(
                    f"{path.parent}: {first_path.name} and {path.name} differ in {name} "
                    f"({before} and {now}); name one of the two files"
                )


def _planned_run(
    sources: _Sources, study: Path, planned: PlannedRun, record: SweepRecord
) -> StudyRun:
    """A planned run, whether or not it has begun. A result at values that are no longer the best
    does not count: a wider grid has been tried since."""
    folder = planned.newest(study)
    run = sources.read_run(folder)
    if run and run.summary.identity != planned.identity:
        raise ConfigError(
            f"{folder}: its identity is {run.summary.identity}, and the sweep planned "
            f"{planned.identity} there"
        )
    stage: Stage = planned.stage
    best = [choice.best for choice in record.tuned if choice.variant == planned.variant]
    if stage == "result" and planned.tuned and best and planned.tuned not in best:
        stage = "superseded"
    return StudyRun(folder, run, stage, planned.variant, planned.tuned, planned.seed)


def _variants(
    runs: Sequence[StudyRun], baseline: Values, tuned: Sequence[Tuned] = ()
) -> list[Variant]:
    """The variants of the runs, in order, each with its name and its baseline."""
    distinct: list[Values] = []
    for run in runs:
        if run.variant not in distinct:
            distinct.append(run.variant)
    names = names_of(distinct)
    variants = []
    for name, values in zip(names, distinct, strict=True):
        against = baseline_of(values, baseline, distinct) if baseline else None
        members = [run for run in runs if run.variant == values]
        variants.append(
            Variant(
                name,
                values,
                [run for run in members if run.stage == "result"],
                [run for run in members if run.stage == "tune"],
                None if against is None else names[distinct.index(against)],
                next((choice for choice in tuned if choice.variant == values), None),
            )
        )
    return variants


# ------------------------------------------------------------------------------ without a record


def _unplanned_study(sources: _Sources, baseline: Values | None) -> Study:
    """Whoever typed the runs planned them: a run that has not ended is missing."""
    counted = newest_attempts(sources.runs.values())
    groups = group_by_variant(counted, list(baseline or {}))
    unasked = ""
    if baseline is None:
        baseline, unasked = choose_baseline(groups)
    members = [
        StudyRun(run.folder, run, "result", values, {}, run.seed)
        for values, runs in groups
        for run in sorted(runs, key=lambda run: run.seed)
    ]
    axes = list(dict.fromkeys(key for values, _ in groups for key in values))
    variants = _variants(members, baseline)
    variants.sort(key=lambda variant: variant.compared)  # baselines first
    runs = members + sources.left_out(axes, counted)
    study = Study(sources.home, axes, runs, variants, unasked=unasked)
    return _unless_refused(study) if unasked and baseline else study


def _unless_refused(study: Study) -> Study:
    """The study, without its baselines if its runs must not be compared: nobody asked for it."""
    try:
        check_comparable(study)
    except ConfigError as error:
        alone = [replace(variant, baseline=None) for variant in study.variants]
        return replace(study, variants=alone, unasked=f"Nothing is compared. {error}")
    return study


def group_by_variant(
    runs: Sequence[SavedRun], asked: Sequence[str]
) -> list[tuple[Values, list[SavedRun]]]:
    """Each variant's values and its runs, which differ in nothing but their seed. The values are
    those of the choices that differ between variants, of the keys that tell apart the variants
    whose choices are the same, and of the keys `asked` about."""
    alike: dict[str, list[SavedRun]] = {}
    for run in runs:
        alike.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    firsts = [members[0] for members in alike.values()]
    axes = [key for key in _CHOICES if len({str(run.typed(key)) for run in firsts}) > 1]
    axes += [key for key in asked if key not in axes]
    axes += [key for key in _distinguishing_keys(firsts, axes) if key not in axes]
    groups = [(_values(members[0], axes), members) for members in alike.values()]
    for values, members in groups:
        if sum(values == others for others, _ in groups) > 1:
            values["identity"] = members[0].summary.identity[:8]
    return groups


def _values(run: SavedRun, keys: Sequence[str]) -> Values:
    """The values of the keys that the run has: not every norm has an eps."""
    return {key: run.value(key) for key in keys if run.has(key)}


def _distinguishing_keys(runs: Sequence[SavedRun], axes: Sequence[str]) -> list[str]:
    """The dotted keys that differ among runs whose `axes` are the same."""
    same: dict[str, list[SavedRun]] = {}
    for run in runs:
        same.setdefault(json.dumps(_values(run, axes)), []).append(run)
    return [
        key
        for members in same.values()
        for key in sorted({key for run in members for key in run.settings})
        if len({_setting(run, key) for run in members}) > 1
    ]


def _setting(run: SavedRun, key: str) -> str:
    """The typed word of a key that may be `auto`: its derived value follows from other choices."""
    value: Any = run.settings.get(key)
    with suppress(KeyError, TypeError, AttributeError):  # a norm that follows from another choice
        value = run.typed(key)
    return json.dumps(value)


# ------------------------------------------------------------------------ the noise beside a study

_NOISE = "noise"  # the name of a study that measures how losses scatter
# Losses scatter alike only where these are the same: nodes and keys of a config.
_SAME = (
    "data", "tokenizer", "model", "trainer.steps", "trainer.batch_size", "trainer.precision",
)  # fmt: skip


def noise_beside(study: Study) -> Study | None:
    """The study `noise` in the folder that holds the study, if its runs have the same data, size
    and horizon; None if there is no such study, or if it cannot be read."""
    home = study.home.resolve()
    if home.name == _NOISE or not study.results:
        return None
    return noise_in(home.parent, study.results[0].settings)


def noise_in(folder: Path, settings: Mapping[str, Any]) -> Study | None:
    """The study `noise` in a folder of studies, if its runs have the data, size and horizon of
    these settings, which are those of a run (`SavedRun.settings`)."""
    if not _has_runs(folder / _NOISE):
        return None
    try:
        noise = read_study([folder / _NOISE])
    except ConfigError:
        return None  # it has its own report, which says what is wrong with it
    same = [_shared_settings(run.settings) for run in noise.results[:1]]
    return noise if same == [_shared_settings(settings)] else None


def _has_runs(folder: Path) -> bool:
    return any(folder.glob("*/summary.json"))


def _shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in settings.items()
        if any(key == same or key.startswith(f"{same}.") for same in _SAME)
    }
