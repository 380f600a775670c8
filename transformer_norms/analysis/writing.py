"""What the analyses share: tables for a terminal and for Markdown, and where files go."""

import csv
import os
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.files import storage, write_bytes
from transformer_norms.report.escape import cell, markdown, printable

COLUMNS = 80  # of a terminal
Rows = Sequence[Sequence[str]]  # the first is the heading


def grid(rows: Rows) -> str:
    """For a terminal: the first column to the left, all others to the right; closer together where
    they would not fit."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    between = "  " if sum(widths) + 2 * (len(widths) - 1) <= COLUMNS else " "
    lines = (
        between.join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def markdown_grid(rows: Rows) -> str:
    heading, *rest = [[markdown(cell) for cell in row] for row in rows]
    rule = ["---", *("---:" for _ in heading[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *rest))


def spreadsheet(rows: Sequence[Sequence[Any]]) -> bytes:
    """CSV; nothing in it is a formula to a program that opens it."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def check_folder(folder: Path) -> None:
    """ConfigError where `folder` can be none, before anything is measured."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{folder}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise ConfigError(f"{folder}: {there} cannot be written to")


def written(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """Their paths."""
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_bytes(folder / name, data)
    return [str(folder / name) for name in files]
