"""Ends a sweep: writes the report, prints one line of JSON, returns the exit code."""

import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Say, say
from transformer_norms.report.writing import write_report
from transformer_norms.run.folder import path_text
from transformer_norms.run.summary import ENDED, FILE, read_summary
from transformer_norms.signals import AGAIN, Preempted, Stopping
from transformer_norms.sweep.board import JobRow

_LISTED = 8  # runs named in one line


def end_sweep(
    record: Path, rows: Sequence[JobRow], code: int, say: Say, why_no_report: str = ""
) -> int:
    """Writes the report, prints the sweep's JSON line on stdout, and returns the exit code. `rows`
    are the runs that the command asked for, and `code` is 0, or what the sweep has already ended
    with. A sweep that was stopped gets no report, nor does one that is not to be judged."""
    if code == AGAIN or why_no_report:
        report = None
        again = "no report yet; the same command goes on with it"
        say(again if code == AGAIN else why_no_report)
    else:
        try:
            with Stopping(say, "the report stops"):
                report, report_code = _write_report(record, say, rows)
        except Preempted:
            report, report_code = None, AGAIN
        code = code or report_code
    for line in _cause_lines(rows):
        say(line)
    counts = Counter(row.status for row in rows)
    _print_answer(record.parent.name, counts, report)
    lacks_runs = counts["failed"] or counts["missing"]
    return 1 if lacks_runs and code != AGAIN else code


def end_search(study: Path) -> int:
    """Reports the runs of a study that another sweeper of Hydra has made, such as Optuna's. Prints
    one line of JSON on stdout and returns the exit code."""
    report, code = _write_report(study, say)
    counts = Counter[str]()
    for file in study.glob("*/summary.json"):
        try:
            summary = read_summary(file.parent)
            counts[summary.status if summary else "missing"] += 1
        except ConfigError:  # which the report says
            counts["failed"] += 1
    _print_answer(study.name, counts, report)
    return code


def _print_answer(study: str, counts: Counter[str], report: str | None) -> None:
    ends = {status: counts[status] for status in (*ENDED, "failed", "missing")}
    print(
        json.dumps({"study": study, "runs": counts.total(), **ends, "report": report}), flush=True
    )


def _cause_lines(rows: Sequence[JobRow]) -> list[str]:
    """Returns a line for each cause: the runs that failed of it, what happened, and where the
    traceback of the first one is."""
    failed = [row for row in rows if row.status == "failed"]
    lines = []
    for having in grouped(failed, lambda row: row.error):
        jobs, cause = [row.job for row in having], having[0].error
        names = ", ".join(map(str, jobs[:_LISTED]))
        if len(jobs) > 1:
            more = f" and {len(jobs) - _LISTED} more" if len(jobs) > _LISTED else ""
            names = f"{len(jobs)} runs ({names}{more})"
        failures = jobs if " traceback " not in cause else []
        kept = next((job.folder for job in failures if "Traceback" in job.error), None)
        where = f"; its traceback is in {path_text(kept / FILE)}" if kept else ""
        lines.append(f"failed: {names}: {cause}{where}")
    return lines


def _write_report(study: Path, say: Say, rows: Sequence[JobRow] = ()) -> tuple[str | None, int]:
    """Reports the record of a sweep, whose command asked for `rows`, or a folder of runs. Returns
    the report's path, relative to the current folder, and an exit code."""
    try:
        from transformer_norms.report.table import summary_lines

        path, findings = write_report([study])
        names = {run.folder.name for run in findings.study.counted}
        earlier = len(names - {row.job.folder.name for row in rows}) if rows else 0
        more = f", of {len(names)} runs, {earlier} of them of earlier commands" if earlier else ""
        for line in [*summary_lines(findings), f"more in {os.path.relpath(path)}{more}"]:
            say(line)
        lacks_runs = any(run.status == "damaged" for run in findings.study.runs)
    except ConfigError as error:
        say(f"no report: {error}")
        return None, ConfigError.exit_code
    except Exception:  # the runs are there, and the report can be made again
        print(traceback.format_exc(), file=sys.stderr)
        return None, 1
    return os.path.relpath(path), int(lacks_runs)
