"""How a sweep ends: the report, a line of JSON, an exit code."""

import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from transformer_norms.errors import ConfigError
from transformer_norms.report import write_report
from transformer_norms.run.folder import ENDED, summary_of
from transformer_norms.sweep.planning import Job

# Exit codes: what the same command goes on with, and what is wrong with a command.
AGAIN, REFUSED = 75, 2


def answered(
    record: Path,
    jobs: Sequence[Job],
    failed: Mapping[Path, str],
    known: int,
    say: Callable[[str], None],
) -> int:
    """Prints the sweep's JSON line on stdout; its exit code, `known` where there is one already.
    What was stopped has no report yet."""
    if known == AGAIN:
        report, code = None, AGAIN
        say("stopped; the same command goes on with it")
    else:
        report, code = _report(record, say)
    for error in dict.fromkeys(failed.values()):  # a traceback may be far above by now
        names = [str(job) for job in jobs if failed.get(job.folder) == error]
        say(f"failed: {', '.join(names)}: {error}")
    counts = Counter(_status(job, failed) for job in jobs)
    answer = {
        "study": record.parent.name,
        "runs": counts.total(),
        **{status: counts[status] for status in (*ENDED, "failed", "missing")},
        "report": report,
    }
    print(json.dumps(answer), flush=True)
    if known == AGAIN:
        return AGAIN
    return 1 if counts["failed"] or counts["missing"] else known or code


def _status(job: Job, failed: Mapping[Path, str]) -> str:
    status = summary_of(job.folder).get("status", "missing")
    if status in ENDED:
        return str(status)
    return "failed" if status == "failed" or job.folder in failed else "missing"


def _report(record: Path, say: Callable[[str], None]) -> tuple[str | None, int]:
    try:
        from transformer_norms.report.table import summary_lines

        path, found = write_report([record])
        for line in [*summary_lines(found), f"more in {os.path.relpath(path)}"]:
            say(line)
    except ConfigError as error:
        say(f"no report: {error}")
        return None, REFUSED
    except Exception:  # the runs are there, and the report can be asked for again
        print(traceback.format_exc(), file=sys.stderr)
        return None, 1
    return os.path.relpath(path), 0
