"""Tables as text, Markdown, LaTeX and CSV, in which anybody's text is inert.

What a table or a page shows may come from folders that somebody else made. Everywhere a newline or
tab becomes a space, and what does not print (controls, lone surrogates, reversed writing) `?`.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

COLUMNS = 80  # of a terminal
Rows = Sequence[Sequence[str]]  # the first row is the heading
Table = dict[str, list[str]]  # heading -> the cells of its column
# A cell that begins so is a formula to some spreadsheet; the last four are full-width.
_FORMULA = ("=", "+", "-", "@", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*|[]<>#~$"} | {"&": "&amp;"})
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "#$%&_{}"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "−": "$-$", "∞": r"$\infty$"}
)


def printable(text: object) -> str:
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in str(text))


def escape_markdown(text: object) -> str:
    return printable(text).translate(_MARKDOWN)


def escape_latex(text: object) -> str:
    return printable(text).translate(_LATEX)


def escape_label(text: object) -> str:
    """For plotly, which reads tags and entities in names, ticks and hover text."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def spreadsheet_cell(value: Any) -> Any:
    """Numbers stay as they are; text that begins as a formula stands behind a quote."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def shorten(value: object, longest: int = 48) -> str:
    """The value as text, cut if it has more than `longest` characters."""
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def rows_of(table: Table) -> Rows:
    """The headings, then the rows of cells; nothing for a table without columns."""
    return [list(table), *map(list, zip(*table.values(), strict=True))] if table else []


def _columns(rows: Rows) -> tuple[list[list[str]], list[int]]:
    """The cells of each row as they are printed, and the width of each column."""
    cells = [[printable(cell) for cell in row] for row in rows]
    return cells, [max(map(len, column)) for column in zip(*cells, strict=True)]


def text_table(rows: Rows) -> str:
    """For a terminal: the first column to the left, all others to the right; closer together if
    they would not fit."""
    cells, widths = _columns(rows)
    between = "  " if sum(widths) + 2 * (len(widths) - 1) <= COLUMNS else " "
    lines = [
        between.join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def narrow_table(rows: Rows) -> list[str]:
    """For a terminal: lines of at most 80 columns, for which the first column is cut."""
    cells, (first, *others) = _columns(rows)
    widths = [min(first, COLUMNS - sum(others) - 2 * len(others)), *others]
    padded = (
        [shorten(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)]
        for row in cells
    )
    return ["  ".join(row).rstrip() for row in padded]


def wrapped_table(rows: Rows) -> list[str]:
    """For a terminal: lines of at most 80 columns, an indent of two included. Where the columns do
    not fit, the widest are wrapped, and nothing is cut. Columns without content are left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    cells, widths = _columns(list(zip(*columns, strict=True)))
    while sum(widths) > COLUMNS - 2 * len(widths):
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in cells:
        parts = [_wrap_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*parts, fillvalue=""):
            padded = (part.ljust(width) for part, width in zip(line, widths, strict=True))
            lines.append(f"  {'  '.join(padded)}".rstrip())
    return lines


def _wrap_cell(cell: str, width: int) -> list[str]:
    """Lines of a cell: broken at blanks and after operators, and only then inside a word."""
    lines = [""]
    for word in re.findall(r"\s+|\S+", cell):
        pieces = [word] if len(word) <= width else re.split(r"(?<=[/*+.])", word)
        for piece in (part[n : n + width] for part in pieces for n in range(0, len(part), width)):
            if len((lines[-1] + piece).rstrip()) > width:
                lines.append("")
            lines[-1] += piece if lines[-1] else piece.lstrip()
    return [line.rstrip() for line in lines]


def markdown_table(rows: Rows) -> str:
    """All columns but the first to the right."""
    heading, *rest = [[escape_markdown(cell) for cell in row] for row in rows]
    rule = ["---", *("---:" for _ in heading[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *rest))


def markdown_list(texts: Iterable[object]) -> str:
    return "\n".join(f"- {escape_markdown(text)}" for text in texts)


def straight_markdown_table(rows: Rows) -> str:
    """Columns stand straight, so that the text reads well in a terminal, too."""
    if not rows:
        return ""
    cells = [[escape_markdown(cell) for cell in row] for row in rows]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    heading, *rest = [
        f"| {' | '.join(text.ljust(w) for text, w in zip(row, widths, strict=True))} |"
        for row in cells
    ]
    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([heading, rule, *rest])


def latex_table(rows: Rows, align: str) -> str:
    r"""A tabular with rules of \usepackage{booktabs}; `align` has a letter for each column."""
    heading, *rest = [f"{' & '.join(map(escape_latex, row))} \\\\" for row in rows or [[]]]
    return "\n".join(
        [rf"\begin{{tabular}}{{{align}}}", r"\toprule", heading, r"\midrule"]
        + [*rest, r"\bottomrule", r"\end{tabular}"]
    )


def csv_table(rows: Sequence[Sequence[Any]]) -> bytes:
    """CSV in full precision; nothing in it is a formula to a program that opens it."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([spreadsheet_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def templates(folder: Path) -> "Environment":
    """The HTML templates in `folder`. Whatever stands in them is text. A name that a template has
    and that nobody gave it is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )


def _finalize(value: Any) -> Any:
    from markupsafe import Markup

    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
