"""An explanation as text of at most 80 columns; what is longer is wrapped, and nothing is cut."""

import re
import textwrap
from collections.abc import Sequence

from transformer_norms.explain.drawing import drawings
from transformer_norms.explain.explanation import Explanation
from transformer_norms.explain.facts import Group, Section, grouped
from transformer_norms.explain.reading import Reader
from transformer_norms.explain.sketch import sketch

COLUMNS = 80
GAP = 2


def text(explanation: Explanation) -> str:
    choices = explanation.config["choices"]
    chosen = (f"{axis}={choices[axis]}" for axis in ("placement", "norm", "model"))
    lines = [" ".join(chosen), *heading("Drawing")]
    for drawing in drawings(Reader(explanation.config), explanation.blocks):
        lines += [f"  {drawing.title}", "", *(f"  {line}".rstrip() for line in sketch(drawing)), ""]
    lines.append("  [ ] a norm, ( ) a layer, * a factor; the names are those of the sites")
    first, *rest = explanation.sections
    sections = [part for section in rest if section.facts for part in _section(section)]
    return "\n".join([lines[0], *_section(first), *lines[1:], *sections]) + "\n"


def heading(title: str) -> list[str]:
    return ["", title, "-" * len(title)]


def _section(section: Section) -> list[str]:
    groups = grouped(section.facts)
    lines = heading(section.title)
    if any(section.heads):
        lines += table(section.heads, [_row(group) for group in groups])
    else:
        for group in groups:
            lines += _item(group)
    for remark in section.remarks:
        lines += wrapped(remark, "  ")
    return lines


def _row(group: Group) -> list[str]:
    return [group.where, group.name, *(f"{c:,}" if isinstance(c, int) else c for c in group.summed)]


def _item(group: Group) -> list[str]:
    """`blocks 0-3 attention:  x + f(norm(x))`"""
    name = f"{group.where} {group.name}".strip()
    content = ", ".join(str(cell) for cell in group.cells)
    if not name:
        return wrapped(content, "  ")
    return wrapped(f"{name}:  {content}", "  ", "      ")


def wrapped(line: str, indent: str, further: str | None = None) -> list[str]:
    return textwrap.wrap(
        line,
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=indent if further is None else further,
        break_on_hyphens=False,
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need be; where all do not fit, the widest are wrapped."""
    cells = [list(heads), *[list(row) for row in rows]]
    kept = [n for n in range(len(heads)) if any(row[n] for row in cells[1:])]
    cells = [[row[n] for n in kept] for row in cells]
    widths = [max(len(row[n]) for row in cells) for n in range(len(kept))]
    room = COLUMNS - 2 - GAP * (len(widths) - 1)
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in cells:
        parts = [_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
        for n in range(max(len(part) for part in parts)):
            padded = (
                (part[n] if n < len(part) else "").ljust(width)
                for part, width in zip(parts, widths, strict=True)
            )
            lines.append(("  " + (" " * GAP).join(padded)).rstrip())
    return lines


def _cell(cell: str, width: int) -> list[str]:
    """Lines of a cell: broken at blanks and after operators, and only then inside a word."""
    lines = [""]
    for word in re.findall(r"\s+|\S+", cell):
        pieces = [word] if len(word) <= width else re.split(r"(?<=[/*+.])", word)
        for piece in (part[n : n + width] for part in pieces for n in range(0, len(part), width)):
            if len((lines[-1] + piece).rstrip()) > width:
                lines.append("")
            lines[-1] += piece if lines[-1] else piece.lstrip()
    return [line.rstrip() for line in lines]
