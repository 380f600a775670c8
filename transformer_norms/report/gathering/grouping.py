"""The runs of a study by variant: those that sweeps planned, and those that were typed, grouped by
what differs between them beyond their seeds. A run that lies in several folders counts once."""

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformer_norms.comparison.sweep_record import (
    FAILED_AT_START,
    PlannedRun,
    SweepRecord,
    Values,
    check_names,
    grouped,
    names_of,
    words_of,
)
from transformer_norms.config.chosen_files import default_choices
from transformer_norms.config.overrides import as_typed
from transformer_norms.names import AXES_OF_A_RUN
from transformer_norms.report.gathering.sources import Sources
from transformer_norms.report.study import StudyRun, Variant
from transformer_norms.run.folder import Attempts
from transformer_norms.run.reader import SavedRun, newest_attempts

_CHOICES = [axis for axis in AXES_OF_A_RUN if axis != "tracking"]
_CHOICES += ["embed", "final_norm", "qk_norm", "v_norm"]


def find_variants(
    runs: Sequence[StudyRun], records: Sequence[SweepRecord], typed: Values | None
) -> tuple[list[Variant], Values]:
    """The variants of the runs that count, in their order, each with what its sweep tuned, and the
    names that are shown in the place of words: the sweeps' and the typed ones, none without any."""
    groups = grouped(runs, lambda run: run.variant)
    values = [group[0].variant for group in groups]
    words = {words_of(*pair)[0] for one in values for pair in one.items()}
    recorded = [pair for record in records for pair in record.names.items() if pair[0] in words]
    shown = {} if typed is None else {**dict(recorded), **typed}
    check_names("--names", shown, values)
    names = zip(names_of(values, shown), names_of(values), groups, strict=True)
    tuned = [one for record in records for one in record.tuned]
    return [
        Variant(
            name,
            group[0].variant,
            [run for run in group if run.stage == "result"],
            [run for run in group if run.stage == "tune"],
            tuned=next((one for one in tuned if one.variant == group[0].variant), None),
            words=words,
        )
        for name, words, group in names
    ], shown


# ------------------------------------------------------------------------- runs that sweeps planned


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
    absent = FAILED_AT_START if planned.folder in record.unbegun else "missing"
    absent = "damaged" if folder in sources.damaged else absent
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
        absent,
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


# ----------------------------------------------------------------------------- runs that were typed


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
        groups = _group_by_variant(runs, asked)
    of_plan = {run.identity: run.variant for run in planned if run.stage == "result"}
    order = [values for values, _ in groups]
    members = [
        StudyRun(one.folder, one, "result", of_plan.get(one.summary.identity, values), {}, one.seed,
                 one.summary.identity)
        for values, alike in groups
        for one in alike
    ]  # fmt: skip
    place = lambda run: order.index(run.variant) if run.variant in order else -1  # noqa: E731
    return sorted(members, key=lambda run: (place(run), run.seed))


def choose_baseline(variants: Sequence[Variant]) -> tuple[Values, str]:
    """Returns the baseline of variants that were typed and differ in one key, and a sentence that
    says why it is the baseline. Variants that differ in several keys have none, and the sentence
    says what to type. The baseline has the most of the project's defaults, and of several the
    earliest run."""
    if len(variants) < 2:
        return {}, ""
    axes = list(dict.fromkeys(key for variant in variants for key in variant.values))
    defaults = default_choices()
    groups = [(v.values, [run.run for run in v.results if run.run]) for v in variants]

    def defaults_in(runs: Sequence[SavedRun]) -> int:
        return sum(key in defaults and runs[0].typed(key) == defaults[key] for key in axes)

    values, runs = min(
        groups, key=lambda group: (-defaults_in(group[1]), min(run.began for run in group[1]))
    )
    first = min(runs, key=lambda run: run.began).folder.name
    is_default = defaults_in(runs) == len(axes)
    reason = "the project's default" if is_default else f"the earliest run ({first})"
    typed = [as_typed(key, values[key]) for key in axes if key in values]
    if len(axes) == 1 and all(axes[0] in others for others, _ in groups):
        return values, f"The baseline is {typed[0]}, {reason}; --baseline KEY=VALUE takes another."
    return {}, (
        f"Nothing is compared: the runs differ in {', '.join(axes)}, and nobody has said what they "
        f"are compared with. To compare with {reason}, type --baseline "
        + " ".join(map(shlex.quote, typed))
    )


def _group_by_variant(
    runs: Sequence[SavedRun], asked: Sequence[str]
) -> list[tuple[Values, list[SavedRun]]]:
    """Each variant's values and its runs, which differ in nothing but their seed. The values are
    those of the choices that differ between variants, of the keys that differ between variants
    whose choices are the same, and of the keys `asked` about."""
    alike = grouped(runs, lambda run: run.settings)
    firsts = [members[0] for members in alike]
    axes = [key for key in _CHOICES if len({str(run.typed(key)) for run in firsts}) > 1]
    axes += [key for key in asked if key not in axes]
    axes += [key for key in _distinguishing_keys(firsts, axes) if key not in axes]
    groups = [(values_on(members[0], axes), members) for members in alike]
    for values, members in groups:
        if sum(values == others for others, _ in groups) > 1:
            values["identity"] = members[0].summary.identity[:8]
    return groups


def values_on(run: SavedRun, keys: Sequence[str]) -> Values:
    """The values of the keys that the run has: not every norm has an eps."""
    return {key: run.value(key) for key in keys if run.has(key)}


def _distinguishing_keys(runs: Sequence[SavedRun], axes: Sequence[str]) -> list[str]:
    """The dotted keys that differ among runs whose `axes` are the same."""
    return [
        key
        for members in grouped(runs, lambda run: values_on(run, axes))
        for key in sorted({key for run in members for key in run.settings})
        if len({_setting(run, key) for run in members}) > 1
    ]


def _setting(run: SavedRun, key: str) -> str:
    """The typed word of a key that may be `auto`: its derived value follows from other choices."""
    value: Any = run.settings.get(key)
    with suppress(KeyError, TypeError, AttributeError):  # a norm that follows from another choice
        value = run.typed(key)
    return json.dumps(value)


# --------------------------------------------------------------------------- runs that do not count


def count_once(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """The runs, each folder once for each variant. Of the runs that are the same run, in any
    folders, the first that has ended counts, else the first. Those that are planned in a folder and
    lie in another one are left out."""
    copies = grouped((run for run in runs if run.counts), _run_key)
    counting = {_run_key(same[0]): min(same, key=lambda run: not run.ended) for same in copies}
    marked = [
        run._replace(stage="duplicate")
        if run.counts and counting[_run_key(run)].folder != run.folder
        else run
        for run in runs
    ]
    there = (run for run in marked if run.run or run.stage != "duplicate")
    every = grouped(there, lambda run: [str(run.folder), run.stage, run.variant])
    return [first for first, *_ in every]


def _run_key(run: StudyRun) -> str:
    """The properties that make two runs the same run of a study, in any folder."""
    origin = run.run.summary.continued_from if run.run else None
    return json.dumps([run.stage, run.variant, run.identity, origin], sort_keys=True)


def left_out_runs(
    sources: Sources, axes: Sequence[str], members: Sequence[StudyRun]
) -> list[StudyRun]:
    """The runs that are not members, with their values on the axes."""
    newest = newest_attempts(sources.runs.values())
    counted = {member.folder for member in members}
    return [
        StudyRun(folder, run, "unplanned" if run in newest else "superseded",
                 values_on(run, axes), {}, run.seed)
        for folder, run in sources.runs.items()
        if folder not in counted
    ]  # fmt: skip
