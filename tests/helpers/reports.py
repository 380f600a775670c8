"""Reads what a report says of run folders that were made up."""

from pathlib import Path

from run_folders import rows, text

from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study

__all__ = ["by_name", "findings_of", "line_of", "rows", "study_of", "text"]


def study_of(*folders, **options):
    return read_study([*map(Path, folders)], **options)


def findings_of(*folders, **options):
    return findings(study_of(*folders, **options))


def line_of(table, start):
    """The words of the first table row that begins with `start`."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {start} "))
    return [word.strip() for word in line.strip("|").split("|")]


def by_name(table, variant):
    return dict(zip(line_of(table, "variant"), line_of(table, variant), strict=True))
