"""Says what a report leaves out, and what the runs warned of: each thing once."""

from collections import Counter

from transformer_norms.comparison.sentences import plural
from transformer_norms.report.study import Stage, Study, StudyRun

_LISTED = 8  # runs named in one line
_STATES = {"missing": "not begun"}  # where the word of a run's record says too little


def run_warnings(study: Study) -> list[str]:
    """Each warning once, with the number of runs that have it, and their variants if not all."""
    runs = {m.folder: m for m in study.counted if m.run}.values()
    having: dict[str, list[StudyRun]] = {}
    for member in runs:
        for warning in dict.fromkeys(member.run.summary.warnings if member.run else ()):
            having.setdefault(warning, []).append(member)
    names = {str(variant.values): variant.name for variant in study.variants}
    notes = []
    for warning, members in having.items():
        variants = dict.fromkeys(names[str(member.variant)] for member in members)
        if len(members) == len(runs) > 1:
            notes.append(f"all {len(runs)} runs: {warning}")
        else:
            notes.append(f"{plural(len(members), 'run')} ({', '.join(variants)}): {warning}")
    return notes


_LEFT_OUT: dict[Stage, tuple[str, str]] = {
    "unplanned": ("that no sweep planned", "planned by no sweep, and left out"),
    "duplicate": (
        "that lie in two folders",
        "the same run counts once, in the folder named first",
    ),
    "given up": (
        "without a result that the newest command of the sweep does not ask for",
        "planned by an earlier command, and not asked for by the newest",
    ),
}


def left_out_summary(study: Study) -> list[str]:
    """A short sentence for each reason why runs are missing or do not count: it stands before
    everything that they are missing from."""
    states = Counter({m.folder: m.status for m in study.counted if not m.ended}.values())
    lines = []
    if states:
        listed = ", ".join(f"{count} {_STATES.get(name, name)}" for name, count in states.items())
        runs = plural(study.count()["runs"], "run")
        lines.append(f"not finished: {states.total()} of {runs} have no result ({listed})")
    elif study.unfinished:
        lines.append("not finished: results are not planned yet")
    stages = Counter(run.stage for run in study.runs)
    lines += [
        f"{'counted once' if stage == 'duplicate' else 'left out'}: "
        f"{plural(stages[stage], 'run')} {words}"
        for stage, (words, _) in _LEFT_OUT.items()
        if stages[stage]
    ]
    superseded = [run for run in study.runs if run.stage == "superseded"]
    older, beaten = [r for r in superseded if not r.tuned], [r for r in superseded if r.tuned]
    if older:
        lines.append(f"left out: {plural(len(older), 'older attempt')}")
    if beaten:
        lines.append(
            f"left out: {plural(len(beaten), 'result')} at values that are no longer the best"
        )
    return lines + study.left_out + study.damaged


def left_out_notes(study: Study) -> list[str]:
    """Each planned run without a result, and the runs that do not count."""
    notes = [
        f"missing of {variant.name}: {run.folder.name} ({run.status}, {run.stage})"
        for variant in study.variants
        for run in (*variant.trials, *variant.results)
        if not run.ended
    ]
    superseded = [run for run in study.runs if run.stage == "superseded"]
    for reason, runs in {
        **{words: [r for r in study.runs if r.stage == s] for s, (_, words) in _LEFT_OUT.items()},
        "at what is no longer the best of the tuning, and left out": [
            run for run in superseded if run.tuned
        ],
        "a newer attempt counts instead of": [run for run in superseded if not run.tuned],
    }.items():
        names = ", ".join(run.folder.name for run in runs[:_LISTED])
        more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
        notes += [f"{reason}: {names}{more}"] if runs else []
    return notes + study.left_out + study.damaged
