"""The parts of a study: each sweep, and the runs that no sweep planned. Several parts have one set
of variants, and a run that lies in several of them counts once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from transformer_norms.comparison.sweep_record import Look, PlannedRun, SweepRecord, Tuned, Values
from transformer_norms.report.gathering.grouping import group_by_variant
from transformer_norms.report.gathering.sources import Sources
from transformer_norms.report.study import Stage, StudyRun
from transformer_norms.run.folder import Attempts
from transformer_norms.run.reader import newest_attempts


@dataclass(frozen=True)
class Part:
    """The runs of a sweep, with what its record says of them; or the runs that were typed, whose
    variants are not known yet and whose `record` is None. `baseline` is None where nobody has said
    what the runs are compared with."""

    runs: list[StudyRun]
    record: SweepRecord | None = None
    baseline: Values | None = None
    tuned: list[Tuned] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    @property
    def variants(self) -> list[Values]:
        return [run.variant for run in self.runs if run.stage in ("result", "tune")]


def parts_of(sources: Sources) -> list[Part]:
    """The parts in the sources: one for each sweep, and the typed runs if there are any."""
    parts = [_sweep(sources, path.parent, record) for path, record in sources.records.items()]
    planned = {run.folder for part in parts for run in part.runs}
    typed = newest_attempts(sources.runs[folder] for folder in dict.fromkeys(sources.typed))
    runs = [
        StudyRun(run.folder, run, "result", {}, {}, run.seed, run.summary.identity)
        for run in typed
        if run.folder not in planned
    ]
    return [*parts, Part(runs)] if runs else parts


def _sweep(sources: Sources, study: Path, record: SweepRecord) -> Part:
    runs: dict[str, StudyRun] = {}
    folders = Attempts(study)
    for planned in record.runs:
        run = _planned_run(sources, study, folders, planned, record)
        # Two variants that come to one run both have it.
        key = json.dumps([str(run.folder), planned.stage, planned.variant])
        runs.setdefault(key, run)
    kept = _without_given_up(list(runs.values()), record)
    return Part(kept, record, record.baseline, record.tuned, record.own_looks)


def _planned_run(
    sources: Sources, study: Path, folders: Attempts, planned: PlannedRun, record: SweepRecord
) -> StudyRun:
    """A planned run, whether or not it has begun. A result at values that are no longer the best
    does not count: a wider grid has been tried since."""
    folder = planned.newest(study, folders)
    run = sources.read_run(folder)
    if run and run.summary.identity != planned.identity:
        sources.damaged[folder] = (
            f"{folder}: its identity is {run.summary.identity}, and the sweep planned "
            f"{planned.identity} there"
        )
        run = None
    stage: Stage = planned.stage
    best = [choice.best for choice in record.tuned if choice.variant == planned.variant]
    if stage == "result" and planned.tuned and best and planned.tuned not in best:
        stage = "superseded"
    return StudyRun(
        folder,
        run,
        stage,
        planned.variant,
        planned.tuned,
        planned.seed,
        planned.identity,
        damaged=folder in sources.damaged,
        unbegun=planned.folder in record.unbegun,
    )


def _without_given_up(runs: Sequence[StudyRun], record: SweepRecord) -> list[StudyRun]:
    """The runs of a sweep, in which those are given up that an earlier command planned, that have
    no result, and that the newest command does not ask for. What has a result counts: a report
    that left it out would be a choice among results."""
    asked = record.asked
    if asked is None:
        return list(runs)
    with_results = [run.variant for run in runs if run.stage == "result" and run.ended]

    def given_up(run: StudyRun) -> bool:
        if run.stage == "tune":
            return run.variant not in [*asked.variants, *with_results]
        wanted = run.variant in asked.variants and (not asked.seeds or run.seed in asked.seeds)
        return run.stage == "result" and not run.ended and not wanted

    return [replace(run, stage="given up") if given_up(run) else run for run in runs]


# ------------------------------------------------------------------------------- parts put together


def put_together(parts: Sequence[Part], asked: Sequence[str]) -> list[Part]:
    """The parts with common variants, each run once. If sweeps asked one question, their variants
    are those of the question. Else they are what differs between all results, the axes of the
    sweeps and the keys `asked` included."""
    axes = [part.record.axes if part.record else None for part in parts]
    if None in axes or any(one != axes[0] for one in axes):
        parts = _grouped_anew(parts, [*asked, *(key for one in axes for key in one or ())])
    return _each_once(parts)


def _grouped_anew(parts: Sequence[Part], keys: Sequence[str]) -> list[Part]:
    found = {
        run.folder: run.run
        for part in parts
        for run in part.runs
        if run.stage == "result" and run.run
    }
    groups = group_by_variant(list(found.values()), list(dict.fromkeys(keys)))
    values_of = {run.folder: values for values, runs in groups for run in runs}
    return [_with_values(part, values_of) for part in parts]


def _with_values(part: Part, values_of: Mapping[Path, Values]) -> Part:
    """The part with the values of its results. A run that has not begun, and a tuning run, have
    those of the results of their variant."""
    of_variant: dict[str, Values] = {}
    for run in part.runs:
        if run.stage == "result" and run.folder in values_of:
            of_variant.setdefault(json.dumps(run.variant), values_of[run.folder])

    def values(variant: Values) -> Values:
        return of_variant.get(json.dumps(variant), variant)

    runs = [
        replace(
            run,
            variant=values_of.get(run.folder, values(run.variant))
            if run.stage == "result"
            else values(run.variant),
        )
        for run in part.runs
    ]
    if part.record is None:
        runs.sort(key=lambda run: ([*values_of.values()].index(run.variant), run.seed))
    looks = [
        replace(look, seen=[replace(seen, variant=values(seen.variant)) for seen in look.seen])
        for look in part.looks
    ]
    tuned = [replace(one, variant=values(one.variant)) for one in part.tuned]
    return replace(part, runs=runs, tuned=tuned, looks=looks)


def _each_once(parts: Sequence[Part]) -> list[Part]:
    """The parts, in which a run of one identity, variant and stage counts once: the first that has
    ended, else the first."""
    first: dict[str, StudyRun] = {}
    for run in (run for part in parts for run in part.runs if run.stage in ("result", "tune")):
        kept = first.setdefault(_place(run), run)
        if run.ended and not kept.ended:
            first[_place(run)] = run
    seen: set[str] = set()
    once = []
    for part in parts:
        runs = []
        for run in part.runs:
            place = _place(run)
            if run.stage in ("result", "tune"):
                if run.folder != first[place].folder:
                    run = replace(run, stage="duplicate")
                elif place in seen:
                    continue  # planned by two sweeps of one folder
                else:
                    seen.add(place)
            runs.append(run)
        once.append(replace(part, runs=runs))
    return once


def _place(run: StudyRun) -> str:
    """What a run is in a study, in whatever folder it lies."""
    origin = run.run.summary.continued_from if run.run else None
    return json.dumps([run.stage, run.variant, run.identity, origin], sort_keys=True)
