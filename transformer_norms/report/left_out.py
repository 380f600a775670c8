"""Says what a report leaves out, and what the runs warned of: each thing once."""

from collections import Counter

from transformer_norms.comparison.sentences import listed, plural
from transformer_norms.report.study import Study

_LISTED = 8  # runs named in one line
_STATES = {"missing": "not begun"}  # where the word of a run's record says too little


def run_warnings(study: Study) -> list[str]:
    """Each warning once, with the number of runs that have it, and their variants if not all."""
    runs = {member.folder: (member.variant, member.run) for member in study.counted if member.run}
    names = {str(variant.values): variant.name for variant in study.variants}
    having: dict[str, list[str]] = {}
    for values, run in runs.values():
        for warning in dict.fromkeys(run.summary.warnings):
            having.setdefault(warning, []).append(names[str(values)])
    return [
        f"all {len(runs)} runs: {warning}"
        if len(variants) == len(runs) > 1
        else f"{plural(len(variants), 'run')} ({', '.join(dict.fromkeys(variants))}): {warning}"
        for warning, variants in having.items()
    ]


# Why runs do not count. Their number or their names follow.
_LEFT_OUT = {
    "unplanned": "left out, planned by no sweep",
    "duplicate": "counted once, in the folder named first",
    "given up": "left out without a result, not asked for by the newest command of the sweep",
    "beaten": "left out, at values that are no longer the best of the tuning",
    "older": "left out, since a newer attempt counts",
}


def _uncounted(study: Study) -> dict[str, list[str]]:
    """The names of the runs that do not count, by the reason."""
    names: dict[str, list[str]] = {reason: [] for reason in _LEFT_OUT}
    for run in study.runs:
        if not run.counts:
            superseded = "beaten" if run.tuned else "older"
            reason = superseded if run.stage == "superseded" else run.stage
            names[reason].append(run.folder.name)
    return {reason: of for reason, of in names.items() if of}


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
    for reason, names in _uncounted(study).items():
        lines.append(f"{_LEFT_OUT[reason]}: {plural(len(names), 'run')}")
    return lines + study.left_out + study.damaged


def left_out_notes(study: Study) -> list[str]:
    """Each planned run without a result, and the runs that do not count."""
    notes = [
        f"missing of {variant.name}: {run.folder.name} ({run.status}, {run.stage})"
        for variant in study.variants
        for run in (*variant.trials, *variant.results)
        if not run.ended
    ]
    left_out = _uncounted(study).items()
    notes += [f"{_LEFT_OUT[reason]}: {listed(names, _LISTED)}" for reason, names in left_out]
    return notes + study.left_out + study.damaged
