"""results.csv: every run, and all that its numbers can be traced to."""

import csv
from io import StringIO
from typing import Any

from transformer_norms.report.escape import cell
from transformer_norms.report.reading import Run
from transformer_norms.report.study import Study, StudyRun

_MEASURED = (
    "val_loss test_loss initial_loss best_val_loss step tokens parameters flops "
    "tokens_per_second seconds peak_memory identity commit dirty"
).split()


def results_csv(study: Study) -> str:
    """A row for each run that was planned or found, in full precision."""
    rows = [_row(study, member) for member in study.runs]
    columns = list(dict.fromkeys(key for row in rows for key in row)) if rows else ["study"]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(column) for column in columns])
    writer.writerows([cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _row(study: Study, member: StudyRun) -> dict[str, Any]:
    variants = (v.name for v in study.variants if v.values == member.variant)
    tuned = {key: member.tuned.get(key) for key in study.tune}
    return {
        "study": member.folder.parent.name,
        "run": member.folder.name,
        "stage": member.stage,
        "variant": next(variants, ""),
        **{key: member.variant.get(key) for key in study.axes},
        **tuned,
        "seed": member.seed,
        "status": member.status,
        **_measured(member.run),
    }


def _measured(run: Run | None) -> dict[str, Any]:
    if run is None:
        return {}
    summary = run.summary
    return {
        **{name: getattr(summary, name) for name in _MEASURED},
        "data_fingerprint": summary.data.fingerprint,
        "batch_chain": summary.batch_chain,
        "val_tokens": run.value("data.val_tokens"),
        "context": run.value("model.context"),
        "steps": run.value("trainer.steps"),
        "batch_size": run.value("trainer.batch_size"),
        "precision": run.value("trainer.precision"),
        "threads": summary.threads,
        "device": summary.device,
        "torch": summary.versions.get("torch"),
        "python": summary.versions.get("python"),
    }
