"""Writes a report: all files are made before the first is written, and none written unchanged."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer_norms.data.ngrams import ngram_name
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live, Tell, tell_nobody, track
from transformer_norms.report import table as tables
from transformer_norms.report.answer import contrast_sentence, sentence
from transformer_norms.report.charts.panels import panel_files, panels
from transformer_norms.report.curves import draw_curves
from transformer_norms.report.fairness import contrast_differences
from transformer_norms.report.figures import drawn_with
from transformer_norms.report.findings import Findings, findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.gathering.noise_study import noise_beside
from transformer_norms.report.left_out import left_out_notes, left_out_summary, run_warnings
from transformer_norms.report.page import render_page
from transformer_norms.report.paper.figure_sheet import TEXT, Sheet
from transformer_norms.report.paper.latex import paper_files
from transformer_norms.report.rates import draw_rates
from transformer_norms.report.regime import TUNED_ON, all_failures
from transformer_norms.report.study import RowsOf, Study, StudyRun, read_rows
from transformer_norms.report.tuning_audit import audit_lines, audit_table
from transformer_norms.run.failure import best_ngram
from transformer_norms.run.reader import SavedRun
from transformer_norms.storage.files import remove_leftovers, storage, write_bytes
from transformer_norms.text_tables import (
    csv_table,
    escape_markdown,
    markdown_list,
    markdown_table,
    rows_of,
    show,
)

_MEASURED = (
    "val_loss test_loss initial_loss best_val_loss step tokens parameters flops "
    "tokens_per_second seconds peak_memory identity commit dirty"
).split()


def write_report(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    baseline: dict[str, Any] | None = None,
    effect: float | None = None,
    contrasts: Sequence[str] = (),
    refresh: int | None = None,
) -> tuple[Path, Findings]:
    """Writes report.html, results.csv, table.md, tables for LaTeX with their sources, and curves
    into `out`, else into the first of `folders`. Returns the path of report.html, and the findings.

    The page of an unfinished study is loaded anew by its browser every `refresh` seconds. Raises
    ConfigError, one line and nothing written, if runs must not be compared or a folder is not what
    it should be.
    """
    if isinstance(folders, (str, Path)):
        raise ConfigError(
            f"{str(folders)!r}: a list of folders is wanted, such as [{str(folders)!r}]"
        )
    with _collecting_rarely(), Live() as live:
        places = [Path(folder) for folder in folders]
        study = read_study(places, baseline, effect, contrasts, live)
        runs = list({member.folder: member.run for member in study.runs if member.run}.values())
        rows, damaged = read_rows(track(live, "reading curves {:.0f}/{:.0f}", runs))
        study = replace(study, damaged=[*study.damaged, *damaged])
        results = findings(study, noise_beside(study))
        files = _report_files(results, rows, refresh if study.unfinished else None, live)
        folder = study.home if out is None else Path(out)
        write_files(folder, files)
        return folder / "report.html", results


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Python searches its objects for garbage after every few hundred new ones. A report reads
    millions that all stay, so the searches find nothing; they took a seventh of its time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _report_files(
    findings: Findings, rows: RowsOf, refresh: int | None, tell: Tell
) -> dict[str, bytes]:
    tell("drawing", 0, 0)
    return {
        "report.html": render_page(findings, rows, refresh),
        "results.csv": _results_csv(findings),
        **{name: text.encode() for name, text in paper_files(findings).items()},
        "table.md": _table_md(findings).encode(),
        **draw_curves(findings, rows),
        **draw_rates(findings.study),
    }


def write_figures(
    findings: Findings, folder: str | Path, sheet: Sheet, tell: Tell = tell_nobody
) -> list[str]:
    """Writes each panel of the report into `folder`, in each format. Returns the paths of all
    files. A file that would not change is not touched."""
    rows, _ = read_rows(findings.study.results)
    files: dict[str, bytes] = {}
    with drawn_with(TEXT, sheet.settings()):
        for panel in track(tell, "drawing figures {:.0f}/{:.0f}", [*panels(findings, rows)]):
            files |= panel_files(panel, sheet)
    return write_files(Path(folder), files, "--figures")


def write_files(folder: Path, files: Mapping[str, bytes], flag: str = "--out") -> list[str]:
    """Writes the files that have changed into `folder`, which may be missing. Returns all paths.
    `flag` is how the folder was typed."""
    with storage(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            raise ConfigError(f"{flag} {folder}: is no folder: {error.strerror}") from None
        remove_leftovers(folder)
        for name, data in files.items():
            path = folder / name
            if path.is_symlink() or not path.is_file() or path.read_bytes() != data:
                write_bytes(path, data)
    return [str(folder / name) for name in files]


def _results_csv(findings: Findings) -> bytes:
    """results.csv: a row for each run, planned by a sweep or not, in full precision."""
    study = findings.study
    failures = all_failures(study, findings.loss)
    rows = [
        _results_row(study, member) | _outcome(member, findings.loss, failures)
        for member in study.runs
    ]
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["study"]
    return csv_table([columns, *([row.get(column) for column in columns] for row in rows)])


def _results_row(study: Study, member: StudyRun) -> dict[str, Any]:
    variant = next((v for v in study.variants if v.values == member.variant), None)
    edge = variant.tuned.edge if variant and variant.tuned else []
    values = {key: member.variant.get(key) for key in study.axes}
    return {
        "study": member.folder.parent.name,
        "run": member.folder.name,
        "stage": member.stage,
        "variant": variant.name if variant else "",
        **{k: show(v) if isinstance(v, Mapping) else v for k, v in values.items()},
        **{key: member.tuned.get(key) for key in study.tune},
        **({"edge": " ".join(edge)} if study.tune else {}),
        "seed": member.seed,
        "status": member.status,
        **(_measurements(member.run) if member.run else {}),
    }


def _outcome(member: StudyRun, loss: str, failures: Mapping[Path, str]) -> dict[str, Any]:
    """Whether a run that counts trained, and the best n-gram that it has passed."""
    if member.run is None or not member.ended or member.stage not in ("tune", "result"):
        return {"outcome": None, "failure": None, "passed": None}
    order = best_ngram(member.run.summary, TUNED_ON if member.stage == "tune" else loss)
    return {
        "outcome": "failed" if member.folder in failures else "trained",
        "failure": failures.get(member.folder),
        "passed": None if order is None else ngram_name(order) if order else "none",
    }


def _measurements(run: SavedRun) -> dict[str, Any]:
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


def _table_md(findings: Findings) -> str:
    """table.md: the question, the answer, and what the answer rests on. Empty sections are left
    out. It reads well in a terminal, too."""
    study = findings.study
    columns, contrasts = tables.table(findings), tables.contrast_table(findings)
    notes = tables.column_notes(findings, {**columns, **contrasts})
    sections = {
        "": [
            f"# {escape_markdown(study.question or 'Runs by variant')}",
            markdown_list(left_out_summary(study)),
            _verdicts(findings),
            markdown_table(rows_of(columns), straight=True),
            markdown_list([*notes, *tables.regime_notes(findings)]),
        ],
        "## Contrasts": [
            _contrasts(findings),
            markdown_table(rows_of(contrasts), straight=True),
            tables.CONTRAST_NOTE if study.contrasts else "",
        ],
        "## Tuning": [
            markdown_table(rows_of(audit_table(study)), straight=True),
            markdown_list(audit_lines(study, findings.loss)),
        ],
        "## Starts": [markdown_list(tables.start_notes(findings))],
        "## Noise": [markdown_list(tables.noise_notes(findings))],
        "## Warnings of the runs": [
            markdown_list([*tables.unusual_runs(findings), *run_warnings(study)])
        ],
        "## Missing and left out": [markdown_list(left_out_notes(study))],
        "## Where this comes from": [markdown_list(tables.origin_notes(study))],
    }
    parts = [[title, *texts] for title, texts in sections.items() if any(texts)]
    return "\n\n".join(text for part in parts for text in part if text) + "\n"


def _contrasts(findings: Findings) -> str:
    """A sentence for each contrast, and below it what else differs between its variants."""
    lines = []
    for contrast in findings.study.contrasts:
        lines.append(f"- {escape_markdown(contrast_sentence(findings, contrast))}")
        for beside in contrast_differences(findings.study, contrast):
            lines.append(f"  - it differs in more: {escape_markdown(beside)}")
    return "\n".join(lines)


def _verdicts(findings: Findings) -> str:
    """A sentence for each variant, and below it its other differences from the baseline."""
    lines = []
    for variant in findings.study.variants:
        lines.append(f"- {escape_markdown(sentence(findings, variant))}")
        if differences := findings.differences.get(variant.name):
            beside = f"({variant.baseline} in brackets): {'; '.join(differences)}"
            lines.append(f"  - it differs in more {escape_markdown(beside)}")
    if findings.study.unasked:
        lines.append(f"- {escape_markdown(findings.study.unasked)}")
    elif not any(variant.baseline for variant in findings.study.variants):
        lines.append("- nothing is compared; --baseline KEY=VALUE, such as placement=pre, does it")
    return "\n".join(lines)
