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
    sweep, folders = sources.records[record], Attempts(record.parent)
    runs = [
        _planned_run(sources, one.newest(record.parent, folders), one, sweep) for one in sweep.runs
    ]
    with_results = [run.variant for run in runs if run.stage == "result" and run.ended]
    return [
        run._replace(stage="given up") if _given_up(run, sweep, with_results) else run
        for run in runs
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
    of_plan = {run.identity: run.variant for run in planned if run.stage == "result"}
    members = []
    for values, alike in groups:
        for run in alike:
            identity = run.summary.identity
            variant = of_plan.get(identity, values)
            members.append(StudyRun(run.folder, run, "result", variant, {}, run.seed, identity))
    order = [values for values, _ in groups]
    place = lambda run: order.index(run.variant) if run.variant in order else -1  # noqa: E731
    return sorted(members, key=lambda run: (place(run), run.seed))


def count_once(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """The runs, each folder once for each variant. Of the runs that are the same run, in whatever
    folders, the first that has ended counts, else the first."""
    counting: dict[str, Path] = {}
    for run in sorted((run for run in runs if run.counts), key=lambda run: not run.ended):
        counting.setdefault(_run_key(run), run.folder)
    once: dict[str, StudyRun] = {}
    for run in runs:
        if run.counts and counting[_run_key(run)] != run.folder:
            run = run._replace(stage="duplicate")
        key = json.dumps([str(run.folder), run.stage, run.variant], sort_keys=True)
        once.setdefault(key, run)
    return list(once.values())


def _run_key(run: StudyRun) -> str:
    """The properties that make two runs the same run of a study, in whatever folder they lie."""
    origin = run.run.summary.continued_from if run.run else None
    return json.dumps([run.stage, run.variant, run.identity, origin], sort_keys=True)
