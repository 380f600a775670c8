"""table.md: the question, the answer, and what it rests on. Reads well in a terminal, too."""

from collections.abc import Iterable

from transformer_norms.report import notes
from transformer_norms.report.escape import markdown
from transformer_norms.report.findings import Findings
from transformer_norms.report.table import Table, audit_table, table
from transformer_norms.report.tuning import audit_lines


def table_md(findings: Findings) -> str:
    """Sections without anything to say are left out."""
    study = findings.study
    tuning = audit_table(study)
    sections = [
        [f"# {markdown(study.question or 'Runs by variant')}"],
        _verdicts(findings),
        grid(table(findings)),
        [markdown(notes.how(findings))],
        *_section("Tuning", grid(tuning), _items(audit_lines(study))),
        *_section("Noise", _items(notes.noise(findings))),
        *_section("Warnings of the runs", _items(notes.warnings(study))),
        *_section("Missing and left out", _items(notes.left_out(study))),
        *_section("Where this comes from", _items(notes.origin(study))),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def grid(columns: Table) -> list[str]:
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
