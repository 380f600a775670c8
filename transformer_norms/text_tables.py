"""Tables as text, Markdown, LaTeX and CSV, in which anybody's text is inert.

The words of a table or page may come from folders that somebody else made. Everywhere a newline or
tab becomes a space, and what does not print (controls, lone surrogates, reversed writing) `?`.
"""

import csv
import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import StringIO
from itertools import zip_longest
from math import isfinite
from typing import Any

COLUMNS = 80  # of a terminal
Rows = Sequence[Sequence[str]]  # the first row is the heading
Table = dict[str, list[str]]  # heading -> the cells of its column
# A cell that begins so is a formula to some spreadsheet; the last four are full-width.
_FORMULA = ("=", "+", "-", "@", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*|[]<>#~$"} | {"&": "&amp;"})
_LATEX = {c: f"\\{c}" for c in "#$%&_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
_LATEX |= {"“": "``", "”": "''", "‘": "`", "’": "'", "–": "--", "—": "---", "…": r"\ldots{}"}
_LATEX |= {c: f"${command}$" for c, command in {
    "±": r"\pm", "−": "-", "∞": r"\infty", "×": r"\times", "÷": r"\div", "·": r"\cdot",
    "≤": r"\le", "≥": r"\ge", "≈": r"\approx", "≠": r"\ne", "→": r"\to", "←": r"\gets",
    "√": r"\surd", "°": r"^\circ", "²": "^2", "³": "^3", "µ": r"\mu", "ℓ": r"\ell",
}.items()}  # fmt: skip
_LATEX |= {c: f"$\\{unicodedata.name(c).rpartition(' ')[2].lower().replace('lamd', 'lambd')}$"
           for c in "αβγδεζηθικλμνξπρστυφχψω"}  # fmt: skip
# The accents for which every font of LaTeX has a command, by their combining characters.
_ACCENTS = dict(zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327",
                    "`'^~=u." + '"' + "rHvc", strict=True))  # fmt: skip


def printable(text: object) -> str:
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in str(text))


def show(value: Any, form: str = "", infinite: str = "failed") -> str:
    """Returns a value as every text and table shows it, a number in the format `form`. Nothing is
    shown for None and NaN, and `infinite` for infinity: such a loss is that of a failed run. The
    parts of an equation are shown as `attention: x + f(x), mlp: ...`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{part}: {show(text)}" for part, text in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(show, value))}]"
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return format(value, form) if not form or isfinite(value) else infinite


def wrap_text(text: object, indent: str = "", further: str | None = None) -> list[str]:
    """Returns a text in lines of a terminal's width, with control characters replaced. The first
    line begins with `indent`, all others with `further`, which is the same unless given."""
    further = indent if further is None else further
    return textwrap.wrap(
        printable(text), COLUMNS, initial_indent=indent, subsequent_indent=further,
        break_on_hyphens=False,
    )  # fmt: skip


def paragraph(text: str) -> str:
    """The text, wrapped at the terminal's width, as one string."""
    return "\n".join(wrap_text(text))


def escape_markdown(text: object) -> str:
    return printable(text).translate(_MARKDOWN)


def escape_latex(text: object) -> str:
    """The text for LaTeX as it comes, without packages. A character that has no command there is
    named by its number, so that two names stay two."""
    return "".join(map(_latex_character, printable(text)))


def _latex_character(c: str) -> str:
    if c in _LATEX or c.isascii():
        return _LATEX.get(c, c)
    apart = unicodedata.normalize("NFD", c)
    letter, accent = apart[0], _ACCENTS.get(apart[1:])
    if accent and letter.isascii() and letter.isalpha():
        base = {"i": r"\i", "j": r"\j"}.get(letter, letter)  # without their dots
        return rf"\{accent}{{{base}}}"
    return rf"\texttt{{U+{ord(c):04X}}}"


def spreadsheet_cell(value: Any) -> Any:
    """Numbers stay as they are; text that begins as a formula gets a quote before it."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def file_name(text: object) -> str:
    r"""The text as a name that every system takes for a file, and \includegraphics without its
    ending: letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", str(text)).strip("-")


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


def fitted_widths(widths: Sequence[int], most: int, fewest: Sequence[int] = ()) -> list[int]:
    """The widths, the widest made smaller until their sum is `most`, but none below `fewest`."""
    fitted, ends = [*widths], fewest or [0] * len(widths)
    while sum(fitted) > most and (wide := [n for n, w in enumerate(fitted) if w > ends[n]]):
        fitted[max(wide, key=fitted.__getitem__)] -= 1
    return fitted


def _padded(
    cells: Rows, widths: Sequence[int], right: Collection[int] = (), between: str = "  "
) -> list[str]:
    """Lines of cells as wide as their columns, those of the columns `right` to the right."""
    return [
        between.join(
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def text_table(rows: Rows) -> str:
    """For a terminal: the first column to the left, all others to the right; closer together if
    they would not fit."""
    cells, widths = _columns(rows)
    between = "  " if sum(widths) + 2 * (len(widths) - 1) <= COLUMNS else " "
    return "\n".join(_padded(cells, widths, range(1, len(widths)), between))


def narrow_table(rows: Rows, right: Collection[int] = ()) -> list[str]:
    """For a terminal: lines of at most 80 columns, for which the first column is cut."""
    cells, (first, *others) = _columns(rows)
    width = min(first, COLUMNS - sum(others) - 2 * len(others))
    return _padded([[shorten(row[0], width), *row[1:]] for row in cells], [width, *others], right)


def wrapped_table(rows: Rows) -> list[str]:
    """For a terminal: lines of at most 80 columns, an indent of two included. Where the columns do
    not fit, the widest are wrapped, and nothing is cut. Columns without content are left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    cells, widths = _columns(list(zip(*columns, strict=True)))
    widths = fitted_widths(widths, COLUMNS - 2 * len(widths))
    lines: list[str] = []
    for row in cells:
        parts = [_wrap_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines += _padded(list(zip_longest(*parts, fillvalue="")), widths)
    return [f"  {line}".rstrip() for line in lines]


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


def markdown_table(rows: Rows, straight: bool = False) -> str:
    """All columns but the first to the right. Columns of a `straight` table are padded, so that the
    text reads well in a terminal, too."""
    if not rows:
        return ""
    cells = [[escape_markdown(cell) for cell in row] for row in rows]
    widths = [max(3, *map(len, column)) if straight else 0 for column in zip(*cells, strict=True)]
    heading, *rest = [
        f"| {' | '.join(text.ljust(w) for text, w in zip(row, widths, strict=True))} |"
        for row in cells
    ]
    rule = ["---", *("---:" for _ in widths[1:])]
    dashes = "-|-".join("-" * width for width in widths)
    return "\n".join([heading, f"|-{dashes}-|" if straight else f"| {' | '.join(rule)} |", *rest])


def markdown_list(texts: Iterable[object]) -> str:
    return "\n".join(f"- {escape_markdown(text)}" for text in texts)


def latex_tabular(rows: Sequence[Sequence[str]], align: str) -> str:
    r"""A tabular with rules of \usepackage{booktabs}. The cells are LaTeX, the first row is the
    heading, and `align` has a letter for each column."""
    lines = [f"{' & '.join(row)} \\\\" for row in rows]
    # After \\ of the line before, these would be its arguments.
    heading, *rest = [f"{{}}{line}" if line.startswith(("[", "*")) else line for line in lines]
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


def listed(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`: the first of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
