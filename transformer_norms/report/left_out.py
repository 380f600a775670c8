"""Says what a report leaves out, and what the runs warned of: each thing once."""

from collections import Counter, defaultdict

from transformer_norms.comparison.sentences import plural
from transformer_norms.report.study import Study
from transformer_norms.report.texts import render_lines

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


def left_out_lines(study: Study, by_name: bool) -> list[str]:
    """A short sentence for each reason why runs are missing or do not count; or `by_name` each
    planned run without a result, and the runs that do not count."""
    uncounted = defaultdict(list)  # the names of the runs that do not count, by the reason
    for run in study.runs:
        if not run.counts:
            superseded = "beaten" if run.tuned else "older"
            reason = superseded if run.stage == "superseded" else run.stage
            uncounted[reason].append(run.folder.name)
    states = Counter({m.folder: m.status for m in study.counted if not m.ended}.values())
    lines = render_lines(
        "left_out.txt",
        study=study,
        uncounted=uncounted,
        missing=states.total(),
        states=[f"{count} {_STATES.get(name, name)}" for name, count in states.items()],
        by_name=by_name,
    )
    return lines + study.left_out + study.damaged
