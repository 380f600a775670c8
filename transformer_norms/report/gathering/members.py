"""The runs of a study: those that sweeps planned, and those that were typed. A run that lies in
several folders counts once."""

import json
from collections.abc import Sequence
from pathlib import Path

from transformer_norms.comparison.sweep_record import PlannedRun, SweepRecord
from transformer_norms.report.gathering.grouping import group_by_variant, values_on
from transformer_norms.report.gathering.sources import Sources
from transformer_norms.report.study import StudyRun
from transformer_norms.run.folder import Attempts
from transformer_norms.run.reader import newest_attempts


def planned_runs(sources: Sources, record: Path) -> list[StudyRun]:
    """The runs that the sweep of a record planned, whether or not they have begun."""
    sweep, study = sources.records[record], record.parent
    folders = Attempts(study)
    runs: dict[str, StudyRun] = {}
    for planned in sweep.runs:
        run = _planned_run(sources, planned.newest(study, folders), planned, sweep)
        # Two variants may be resolved to one run; then both have it.
        key = json.dumps([str(run.folder), planned.stage, planned.variant])
        runs.setdefault(key, run)
    with_results = [run.variant for run in runs.values() if run.stage == "result" and run.ended]
    return [
        run._replace(stage="given up") if _given_up(run, sweep, with_results) else run
        for run in runs.values()
    ]


def _planned_run(
    sources: Sources, folder: Path, planned: PlannedRun, record: SweepRecord
) -> StudyRun:
    """A planned run. A result at values that are no longer the best does not count: a wider grid
    has been tried since."""
    run = sources.read_run(folder)
    if run and run.summary.identity != planned.identity:
        sources.damaged[folder] = (
            f"{folder}: its identity is {run.summary.identity}, and the sweep planned "
            f"{planned.identity} there"
        )
        run = None
    best = [choice.best for choice in record.tuned if choice.variant == planned.variant]
    beaten = planned.stage == "result" and planned.tuned and best and planned.tuned not in best
    return StudyRun(
        folder,
        run,
        "superseded" if beaten else planned.stage,
        planned.variant,
        planned.tuned,
        planned.seed,
        planned.identity,
        damaged=folder in sources.damaged,
        unbegun=planned.folder in record.unbegun,
    )


def _given_up(run: StudyRun, record: SweepRecord, with_results: Sequence[object]) -> bool:
    """Returns whether an earlier command planned the run, it has no result, and the newest command
    does not ask for it. A run with a result counts: a report without it would be a choice among
    results."""
    asked = record.asked
    if asked is None or not run.counts:
        return False
    if run.stage == "tune":
        return run.variant not in [*asked.variants, *with_results]
    wanted = run.variant in asked.variants and (not asked.seeds or run.seed in asked.seeds)
    return not run.ended and not wanted


def typed_runs(
    sources: Sources, planned: Sequence[StudyRun], axes: Sequence[str], asked: Sequence[str]
) -> list[StudyRun]:
    """The runs that no sweep planned, by variant. Their values are those on the `axes` of a
    question. Without one, their variants are what differs between them, the keys `asked` included.
    """
    there = {run.folder for run in planned}
    newest = newest_attempts(sources.runs[folder] for folder in dict.fromkeys(sources.typed))
    runs = [run for run in newest if run.folder not in there]
    groups = [(values_on(run, axes), [run]) for run in runs]
    if not axes:
        groups = group_by_variant(runs, asked)
    places = {json.dumps(values): place for place, (values, _) in reversed([*enumerate(groups)])}
    of_plan = {run.identity: run.variant for run in planned if run.stage == "result"}
    members = [
        StudyRun(run.folder, run, "result", of_plan.get(identity, values), {}, run.seed, identity)
        for values, alike in groups
        for run in alike
        if (identity := run.summary.identity)
    ]
    return sorted(members, key=lambda run: (places.get(json.dumps(run.variant), -1), run.seed))


def count_once(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """The runs, in which a run of one identity, variant and stage counts once: the first that has
    ended, else the first. One that two sweeps of one folder planned is listed once."""
    first: dict[str, StudyRun] = {}
    for run in (run for run in runs if run.counts):
        kept = first.setdefault(_run_key(run), run)
        if run.ended and not kept.ended:
            first[_run_key(run)] = run
    once: dict[str, StudyRun] = {}
    for place, run in enumerate(runs):
        key = _run_key(run) if run.counts else str(place)
        if run.counts and run.folder != first[key].folder:
            key, run = str(place), run._replace(stage="duplicate")
        once.setdefault(key, run)
    return list(once.values())


def _run_key(run: StudyRun) -> str:
    """The properties that make two runs the same run of a study, in whatever folder they lie."""
    origin = run.run.summary.continued_from if run.run else None
    return json.dumps([run.stage, run.variant, run.identity, origin], sort_keys=True)
