"""The files of a report: all made before the first is written, and none written unchanged."""

import csv
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.files import storage, write_bytes
from transformer_norms.progress import Tell, each, untold
from transformer_norms.report import notes
from transformer_norms.report.escape import cell, latex, markdown, printable
from transformer_norms.report.figure import curves
from transformer_norms.report.findings import Findings
from transformer_norms.report.page import page
from transformer_norms.report.rates import rates
from transformer_norms.report.study import Study, StudyRun
from transformer_norms.report.table import Table, audit_table, table
from transformer_norms.report.tuning import audit_lines
from transformer_norms.run.reader import SavedRun

_MEASURED = (
    "val_loss test_loss initial_loss best_val_loss step tokens parameters flops "
    "tokens_per_second seconds peak_memory identity commit dirty"
).split()
_LEFT_OUT = ("median", "correlation")  # what a paper's table can do without
_WORDS = ("variant", "verdict")


def write(
    findings: Findings,
    out: Path | None = None,
    refresh: int | None = None,
    tell: Tell = untold,
) -> Path:
    """The path of report.html, in `out` or the first folder of the study."""
    folder = out or findings.study.home
    runs = {member.folder: member.run for member in findings.study.runs if member.run}
    told = each(tell, "reading curves {:.0f}/{:.0f}", list(runs.values()))
    rows = {run.folder: run.metrics() for run in told}
    tell("drawing", 0, 0)
    files = {
        "report.html": page(findings, rows, refresh if findings.study.unfinished else None),
        "results.csv": _results_csv(findings.study).encode(),
        "table.tex": _table_tex(findings).encode(),
        "table.md": _table_md(findings).encode(),
        **curves(findings, rows),
        **rates(findings.study),
    }
    with storage(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            raise ConfigError(f"--out {folder}: is no folder: {error.strerror}") from None
        for name, data in files.items():
            path = folder / name
            if path.is_symlink() or not path.is_file() or path.read_bytes() != data:
                write_bytes(path, data)
    return folder / "report.html"


def _results_csv(study: Study) -> str:
    """results.csv: a row for each run that was planned or found, in full precision."""
    rows = [_results_row(study, member) for member in study.runs]
    columns = list(dict.fromkeys(key for row in rows for key in row)) if rows else ["study"]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(column) for column in columns])
    writer.writerows([cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _results_row(study: Study, member: StudyRun) -> dict[str, Any]:
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


def _measured(run: SavedRun | None) -> dict[str, Any]:
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


def _table_tex(findings: Findings) -> str:
    r"""table.tex: needs \usepackage{booktabs}; how its numbers came about stands in a comment."""
    columns = {name: cells for name, cells in table(findings).items() if name not in _LEFT_OUT}
    align = "".join("l" if name in _WORDS else "r" for name in columns)
    lines = [
        f"% {printable(findings.study.question or 'Runs by variant')}",
        f"% {printable(notes.how(findings))}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _tex_row(columns),
        r"\midrule",
        *map(_tex_row, zip(*columns.values(), strict=True)),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _tex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(latex, cells)) + r" \\"


def _table_md(findings: Findings) -> str:
    """table.md: the question, the answer, and what it rests on. Reads well in a terminal, too.
    Sections without anything to say are left out."""
    study = findings.study
    tuning = audit_table(study)
    sections = [
        [f"# {markdown(study.question or 'Runs by variant')}"],
        _verdicts(findings),
        _grid(table(findings)),
        [markdown(notes.how(findings))],
        *_section("Tuning", _grid(tuning), _items(audit_lines(study))),
        *_section("Noise", _items(notes.noise(findings))),
        *_section(
            "Warnings of the runs", _items([*notes.unusual(findings), *notes.warnings(study)])
        ),
        *_section("Missing and left out", _items(notes.left_out(study))),
        *_section("Where this comes from", _items(notes.origin(study))),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _grid(columns: Table) -> list[str]:
    """A table whose columns stand straight."""
    cells = [[markdown(text) for text in (name, *column)] for name, column in columns.items()]
    widths = [max(3, *map(len, column)) for column in cells]
    rows = [
        f"| {' | '.join(text.ljust(w) for text, w in zip(row, widths, strict=True))} |"
        for row in zip(*cells, strict=True)
    ]
    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return [*rows[:1], *([rule] if rows else []), *rows[1:]]


def _section(title: str, *parts: list[str]) -> list[list[str]]:
    return [[f"## {title}"], *parts] if any(parts) else []


def _items(texts: Iterable[str]) -> list[str]:
    return [f"- {markdown(text)}" for text in texts]


def _verdicts(findings: Findings) -> list[str]:
    """A sentence a variant, and below it what else differs from the baseline than was asked."""
    lines = []
    for variant in findings.study.variants:
        lines += _items([findings.sentence(variant)])
        if others := findings.differences.get(variant.name):
            beside = f"({variant.baseline} in brackets): {'; '.join(others)}"
            lines.append(f"  - it differs in more {markdown(beside)}")
    if not any(variant.baseline for variant in findings.study.variants):
        lines.append("- nothing is compared; --baseline KEY=VALUE, such as placement=pre, does it")
    return lines
