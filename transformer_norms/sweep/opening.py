"""What a sweep says before its first job."""

from collections.abc import Sequence
from pathlib import Path

from transformer_norms.run.sweep_record import path_of, read_record
from transformer_norms.sweep.planning import Job, Jobs


def introduced(jobs: Jobs, first: Sequence[Job], study: Path) -> list[str]:
    """The question, how many runs it takes, and what one ought to know before they are begun."""
    question = jobs.asked.question
    lines = [f"{jobs.asked.name}: {question.question}"] if question.question else []
    folders = {job.folder for job in first}
    there = len({job.folder for job in first if job.ended})
    lines.append(
        f"{counted(len(folders), 'run')} in {study}" + (f", {there} there already" if there else "")
    )
    if question.tune:
        lines[-1] += (
            f": {len(question.variants)} variants x {len(question.points)} points of the grid x "
            f"{counted(len(question.tune_seeds), 'seed')}; then each variant at its best, "
            f"{counted(len(question.seeds), 'other seed')}"
        )
    lines += jobs.asked.remarks
    lines += [f"{count} of them {remark}" for remark, count in jobs.remarks.items()]
    lines += [f"warning ({variant}): {warning}" for warning, variant in jobs.warnings.items()]
    if changed := _changed(jobs, first, study):
        lines.append(
            f"warning: {changed} was planned with other settings before; the report will not mix "
            "them, and study=NAME keeps them apart"
        )
    return lines


def _changed(jobs: Jobs, first: Sequence[Job], study: Path) -> str:
    """A job that this sweep planned before with settings that make another run of it; or ''."""
    path = path_of(study, jobs.asked.name)
    if not (jobs.asked.named and path.is_file()):
        return ""
    before: dict[str, set[str]] = {}
    for run in read_record(path).runs:
        before.setdefault(run.place, {run.identity}).add(run.identity)
    for job in first:
        if not before.get(job.run.place, set()) <= {job.run.identity}:
            return str(job)
    return ""


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
