"""Paints a layout: with the characters of a terminal, downward, or as SVG, upward."""

import re
import textwrap
from html import escape
from pathlib import Path

from transformer_norms.explain.anatomy import Anatomy
from transformer_norms.explain.layout import (
    LINE,
    TURN,
    Box,
    Layout,
    Row,
    blocks_text,
    kinds_of_block,
)
from transformer_norms.text_tables import COLUMNS, printable

FORMS = {"norm": "[{}]", "layer": "({})", "sum": "⊕", "line": "│", "turn": "╮"}
LEAVES, JOINS = {LINE: "├", TURN: "╰"}, {TURN: "╭"}  # the stream's sign at an edge
# The pixels of a terminal's column, of a row and of a sign on a line; the width of an equation's
# letter and the height of its line.
COLUMN, ROW, SIGN, MONO, EQUATION, MARGIN = 8, 40, 10, 7, 17, 24


def wrap(
    line: str, indent: str = "", further: str | None = None, width: int = COLUMNS
) -> list[str]:
    """Lines of at most `width` columns, broken at blanks. An equation may be typed without blanks:
    a long word is also broken after operators, brackets and commas. The first line begins with
    `indent`, all others with `further`, which is the same unless given."""
    further = indent if further is None else further
    wrapper = textwrap.TextWrapper(width, indent, further, break_on_hyphens=False)
    wrapper.wordsep_simple_re = re.compile(r"(\s+)|(?<=[+*/(,])(?=[^\s*]\S{30})")
    return wrapper.wrap(printable(line))


# ------------------------------------------------------------------------------------ a terminal


def terminal_lines(layout: Layout) -> list[str]:
    """Returns the lines of a drawing: [ ] is a norm, ( ) a layer, * a factor."""
    return [_terminal_line(layout, row).rstrip() for row in layout.rows]


def _terminal_line(layout: Layout, row: Row) -> str:
    line = [" "] * (layout.width + 1)

    def put(text: str, begin: int) -> None:
        line[begin : begin + len(text)] = text

    stream, last = layout.stream, layout.branches[-1]
    if row.edge:
        put("─" * (last - stream - 1), stream + 1)
        inner, outer = ("┬", "╮") if row.edge == "leave" else ("┴", "┴" if layout.second else "╯")
        for column in layout.branches:
            put(outer if column == last else inner, column)
    for column, branch in zip(layout.branches, row.branches, strict=False):
        part = branch or LINE
        put(_text(part), column - part.left)
    if row.share:
        put(_text(row.share), layout.shared(row.share) - row.share.left)
    if box := row.stream:
        begin, end = stream - box.left, stream + box.right
        put({"leave": LEAVES, "join": JOINS}.get(row.edge, {}).get(box, _text(box)), begin)
        if row.edge == "join" and box != TURN:
            put("◄", end)
            put(f"──►{layout.second}" if layout.second else "", last + 1)
        if row.term:
            term = f"{row.term} ─{'─' if box == TURN else '►'}"
            put(term, begin - len(term))
    return "".join(line)


def _text(box: Box) -> str:
    return FORMS.get(box.kind, "{}").format(box.label)


# ------------------------------------------------------------------------------------------ SVG


def block_svg(anatomy: Anatomy, alone: bool = False) -> str:
    """The drawing of each kind of block of a config, side by side: an element for a page that has
    the style, or a file that is shown `alone`, on white."""
    choices = anatomy.config.choices
    title = f"{choices.placement}, {choices.norm}"
    parts = [_words(title, MARGIN, MARGIN, "title", "start")]
    if alone:
        paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
        style = (Path(__file__).parent / "drawing.css").read_text(encoding="utf-8")
        parts = [f"<style>\n{style}</style>", paper, *parts]
    left, height = MARGIN, 0
    for layout, blocks in kinds_of_block(anatomy).items():
        width, y = max((layout.width + 2) * COLUMN, 290), MARGIN + 34
        parts.append(_words(blocks_text(blocks), left, y, "blocks", "start"))
        y += len(layout.rows) * ROW
        parts += _layout_parts(layout, left + COLUMN, y)
        y += 34
        for part, equation in {**anatomy.equations(blocks[0]), **anatomy.connection()}.items():
            for line in wrap(f"{part}: {equation}", further="   ", width=width // MONO):
                parts.append(_words(line, left, y, "equation", "start"))
                y += EQUATION
        left, height = left + width + MARGIN, max(height, y + MARGIN)
    width = max(left, len(title) * 10 + 2 * MARGIN)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">'
    )
    return "\n".join([opening, *parts, "</svg>"])


def _layout_parts(layout: Layout, left: int, bottom: int) -> list[str]:
    """The elements of a layout. The first row is at `bottom`, and the stream runs upward."""
    lines, boxes = [], []
    x, columns = (left + layout.stream * COLUMN, [left + c * COLUMN for c in layout.branches])
    leave = bottom
    for n, (row, above) in enumerate(zip(layout.rows, (*layout.rows[1:], Row(None)), strict=True)):
        y, near = bottom - n * ROW, _half(row.stream or LINE)
        if row.stream and above.stream:
            lines.append(f'<path class="stream" d="M {x} {y} v {-ROW}"/>')
        if row.edge == "leave":
            leave = y
        if row.edge == "join":
            lines += [f'<path d="M {x} {leave} H {c} V {y} H {x}"/>' for c in columns]
            boxes += [_head(x + near, y, -1)] if row.stream != TURN else []
        if row.edge == "join" and layout.second:
            end = columns[-1] + 5 * COLUMN
            lines.append(f'<path d="M {x} {y} H {end}"/>')
            boxes += [_head(end, y, 1), _words(layout.second, end + 4, y, "equation", "start")]
        if row.term:
            lines.append(f'<path d="M {x} {y} h {-near - 3 * COLUMN}"/>')
            boxes.append(_words(row.term, x - near - 3.5 * COLUMN, y, "factor", "end"))
            boxes += [_head(x - near, y, 1)] if row.stream != TURN else []
        if row.share:
            boxes += _box(row.share, left + layout.shared(row.share) * COLUMN, y)
        for column, box in zip([x, *columns], (row.stream, *row.branches), strict=False):
            boxes += _box(box, column, y) if box else []
    return [*lines, *boxes]


def _half(box: Box) -> float:
    """Half the width of a box in pixels, where lines to it end."""
    return (box.size + 1) * COLUMN / 2 if box.kind in ("norm", "layer") else SIGN


def _head(x: float, y: float, way: int) -> str:
    """The head of an arrow to the right, or to the left."""
    return f'<path class="head" d="M {x} {y} l {-7 * way} -4 v 8 Z"/>'


def _box(box: Box, x: float, y: float) -> list[str]:
    match box.kind:
        case "norm" | "layer":
            half = _half(box)
            shape = f'x="{x - half}" y="{y - 14}" width="{2 * half}" height="28" rx="6"'
            return [
                f'<rect class="{box.kind}" {shape}/>',
                _words(box.label, x, y, f"in-{box.kind}"),
            ]
        case "sum" | "factor":
            circle = f'<circle cx="{x}" cy="{y}" r="{SIGN}"/>'
            sign, words = ("+", "") if box.kind == "sum" else ("×", box.label.removeprefix("* "))
            return [circle, _words(sign, x, y, ""), _words(words, x + 14, y, "factor", "start")]
        case "name":
            return [_words(box.label, x + 12, y, "equation", "start")]
    return []


def _words(text: str, x: float, y: float, kind: str, anchor: str = "middle") -> str:
    return (
        f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}" '
        f'dominant-baseline="central">{escape(text)}</text>'
    )
