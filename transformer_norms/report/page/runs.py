"""Every run of a study, with all that its numbers go back to."""

from collections.abc import Sequence

from transformer_norms.report.study import Study, StudyRun
from transformer_norms.report.table import number

_FIRST = "run stage seed".split()
_REST = "status step validation test config commit data batches threads device torch".split()


def runs_table(study: Study) -> tuple[Sequence[str], list[list[str]]]:
    """Headings, and a row for each run that was planned or found. Hashes are cut to 12 digits."""
    headings = [*_FIRST, *study.tune, *_REST]
    return headings, [_row(study, member) for member in study.runs]


def _row(study: Study, member: StudyRun) -> list[str]:
    tuned = [str(member.tuned.get(key, "")) for key in study.tune]
    start = [member.folder.name, member.stage, str(member.seed), *tuned]
    if member.run is None:
        return [*start, member.status, *[""] * (len(_REST) - 1)]
    summary = member.run.summary
    commit = (summary.commit or "unknown")[:12] + (", changed" if summary.dirty else "")
    return [
        *start,
        f"diverged: {summary.diverged}" if summary.diverged else member.status,
        str(summary.step),
        number(summary.val_loss),
        number(summary.test_loss),
        summary.identity[:12],
        commit,
        summary.data.fingerprint[:12],
        (summary.batch_chain or "")[:12],
        "" if summary.threads is None else str(summary.threads),
        summary.device or "",
        summary.versions.get("torch", ""),
    ]
