"""Paints a layout: with the characters of a terminal, downward, or as SVG, upward."""

import re
import textwrap
from html import escape

from transformer_norms.explain.anatomy import Anatomy
from transformer_norms.explain.layout import Layout, Mark, Point, Wire, blocks_text, kinds_of_block

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
# The character that joins these directions.
JOINTS = dict(zip(range(16), " │││─╯╮┤─╰╭├─┴┬┼", strict=True))
BRACKETS = {"norm": ("[", "]"), "layer": ("(", ")")}

# The pixels of a terminal's column and line, of a box and of the signs on lines.
COLUMN, LINE = 8.0, 22.0
BOX, SUM, TIMES, CORNER, HEAD = 28.0, 11.0, 8.0, 9.0, 7.0
MONO, EQUATION = 7.0, 17.0  # the width of an equation's letter, the height of its line
MARGIN, APART = 24.0, 46.0
STYLE = """
text { font-family: Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2937 }
.title { font-size: 17px; font-weight: bold }
.blocks { font-size: 14px; font-weight: bold }
.factor { font-size: 12px; fill: #4b5563 }
.equation { font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 11.5px }
.in-norm { fill: #ffffff; font-weight: bold }
.place { font-weight: normal }
rect.norm { fill: #2563eb }
rect.layer { fill: #e5e7eb; stroke: #9ca3af }
circle { fill: #ffffff; stroke: #1f2937; stroke-width: 1.5 }
path { fill: none; stroke: #4b5563; stroke-width: 1.5 }
path.stream { stroke: #1f2937; stroke-width: 2.5 }
path.head { fill: #1f2937; stroke: none }
"""


def wrap_line(line: str, width: int, indent: str = "", further: str = "") -> list[str]:
    """Lines of at most `width` columns, broken at blanks. An equation may be typed without blanks:
    a long word is also broken after operators, brackets and commas."""
    wrapper = textwrap.TextWrapper(width, indent, further, break_on_hyphens=False)
    wrapper.wordsep_simple_re = re.compile(r"(\s+)|(?<=[+*/(,])(?=[^\s*]\S{30})")
    return wrapper.wrap(line)


# ------------------------------------------------------------------------------------ a terminal


def terminal_lines(layout: Layout) -> list[str]:
    """Returns the lines of a drawing: [ ] is a norm, ( ) a layer, * a factor."""
    rows = [[" "] * (layout.width + 1) for _ in range(layout.height)]
    for (column, line), joint in _joints(layout).items():
        rows[line][column] = JOINTS[joint]
    labels = {mark: _label(mark) for mark in layout.marks}
    ends = {(mark.column, mark.line): span for mark, span in labels.items() if mark.kind != "gain"}
    for wire in layout.wires:
        (before, _), end = wire.points[-2:]
        if wire.arrow and before != end[0]:
            left, label = ends[end]
            column, head = (left + len(label), "◄") if before > end[0] else (left - 1, "►")
            rows[end[1]][column] = head
    for mark, (left, label) in labels.items():
        rows[mark.line][left : left + len(label)] = label
    return ["".join(row).rstrip() for row in rows]


def _label(mark: Mark) -> tuple[int, str]:
    """The words of a mark with their brackets, and the column where they begin."""
    first, last = BRACKETS.get(mark.kind, ("", ""))
    label = "⊕" if mark.kind == "sum" else f"{first}{mark.label}{last}"
    if mark.kind == "gain":
        label = f" {label} "
    return mark.column + {"factor": 2, "gain": 0}.get(mark.kind, -(len(label) // 2)), label


def _joints(layout: Layout) -> dict[Point, int]:
    """The directions in which lines leave each position."""
    joints: dict[Point, int] = {}

    def join(start: Point, end: Point, forward: int, backward: int) -> None:
        joints[start] = joints.get(start, 0) | forward
        joints[end] = joints.get(end, 0) | backward

    for wire in layout.wires:
        for (x, y), (to_x, to_y) in zip(wire.points, wire.points[1:], strict=False):
            for column in range(min(x, to_x), max(x, to_x)):
                join((column, y), (column + 1, y), RIGHT, LEFT)
            for line in range(min(y, to_y), max(y, to_y)):
                join((x, line), (x, line + 1), DOWN, UP)
    return joints


# ------------------------------------------------------------------------------------------ SVG


def block_svg(anatomy: Anatomy, alone: bool = False) -> str:
    """The drawing of each kind of block of a config, side by side: an element for a page that has
    the style, or a file that stands `alone`, on white."""
    parts: list[str] = []
    kinds = kinds_of_block(anatomy)
    panels = [_Panel(anatomy, layout, blocks) for layout, blocks in kinds.items()]
    choices = anatomy.config.choices
    title = f"{choices.placement}, {choices.norm}"
    height = 2 * MARGIN + 10 + max(panel.height for panel in panels)
    left = MARGIN
    for panel in panels:
        parts += panel.parts(left, height - MARGIN)
        left += panel.width + APART
    width = max(left - APART + MARGIN, len(title) * 10 + 2 * MARGIN)
    parts.append(_words(escape(title), MARGIN, MARGIN, "title", "start"))
    if alone:
        paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
        parts = [f"<style>{STYLE}</style>", paper, *parts]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">'
    )
    return "\n".join([opening, *parts, "</svg>"])


class _Panel:
    """One kind of block: the names of the blocks, the drawing, and below it the equations."""

    def __init__(self, anatomy: Anatomy, layout: Layout, blocks: list[int]) -> None:
        self.layout, self.blocks = layout, blocks
        self.width = max((layout.width + 2) * COLUMN, 290.0)
        self.equations: list[str] = []
        formulas = {**anatomy.equations(blocks[0]), **anatomy.connection()}
        for part, equation in formulas.items():
            text = f"{part}: {equation}"
            self.equations += wrap_line(text, int(self.width / MONO), further="   ")
        self.height = (layout.height + 1) * LINE + 12 + len(self.equations) * EQUATION + 46

    def parts(self, left: float, bottom: float) -> list[str]:
        parts = []
        for line in reversed(self.equations):
            parts.append(_words(escape(line), left, bottom, "equation", "start"))
            bottom -= EQUATION
        bottom -= 34
        top = bottom - self.layout.height * LINE - 12
        parts.append(_words(blocks_text(self.blocks), left, top, "blocks", "start"))
        return [*parts, *_layout_parts(self.layout, left, bottom)]


def _layout_parts(layout: Layout, left: float, bottom: float) -> list[str]:
    """The elements of a layout. Line 0 is at `bottom`, and the stream runs upward."""

    def at(column: float, line: float) -> tuple[float, float]:
        return left + (column + 0.5) * COLUMN, bottom - line * LINE

    ends = {  # how far from the centre of a mark a line ends
        (mark.column, mark.line): SUM if mark.kind == "sum" else (mark.room + 1) * COLUMN / 2
        for mark in layout.marks
        if mark.kind in ("sum", "layer")
    }
    parts = []
    for wire in layout.wires:
        points = [at(*point) for point in wire.points]
        if wire.kind == "stream" and wire.arrow:
            points[-1] = points[-1][0], points[-1][1] - LINE / 2
        if wire.arrow and (far := ends.get(wire.points[-1])):
            (before, _), (x, y) = points[-2:]
            points[-1] = x + (far if before > x else -far), y
        parts += _wire(wire, points)
    for mark in layout.marks:
        parts += _mark(mark, *at(mark.column, mark.line))
    return parts


def _words(text: str, x: float, y: float, kind: str, anchor: str = "middle") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
        f'dominant-baseline="central">{text}</text>'
    )


def _wire(wire: Wire, points: list[tuple[float, float]]) -> list[str]:
    """A line with round corners, and its arrow head."""
    tip, parts = points[-1], []
    if wire.arrow:
        back = _towards(tip, points[-2], HEAD)
        points = [*points[:-1], back]
        dx, dy = (tip[1] - back[1]) * 4 / HEAD, (tip[0] - back[0]) * 4 / HEAD
        corners = [tip, (back[0] + dx, back[1] + dy), (back[0] - dx, back[1] - dy)]
        parts.append(f'<path class="head" d="M {" L ".join(_xy(*c) for c in corners)} Z"/>')
    commands = [f"M {_xy(*points[0])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        enter, leave = _towards(corner, before, CORNER), _towards(corner, after, CORNER)
        commands.append(f"L {_xy(*enter)} Q {_xy(*corner)} {_xy(*leave)}")
    commands.append(f"L {_xy(*points[-1])}")
    return [f'<path class="{wire.kind}" d="{" ".join(commands)}"/>', *parts]


def _mark(mark: Mark, x: float, y: float) -> list[str]:
    label = escape(mark.label)
    if mark.kind == "sum":
        arm = SUM * 0.6
        return [_circle(x, y, SUM), _line(x, y, arm, 0), _line(x, y, 0, arm)]
    if mark.kind in ("factor", "gain"):
        arm, label = TIMES * 0.42, label.removeprefix("* ")
        dx, dy = (TIMES + 6, 0) if mark.kind == "factor" else (-TIMES, -16)
        cross = [_line(x, y, arm, arm), _line(x, y, arm, -arm)]
        return [_circle(x, y, TIMES), *cross, _words(label, x + dx, y + dy, "factor", "start")]
    if mark.kind == "value":
        return [_words(label, x + 6, y, "equation", "start")]
    if mark.kind == "name":
        return [_words(label, x, y + (14 if mark.line == 0 else -10), "equation")]
    if mark.kind == "norm":
        site, _, name = label.partition(" ")
        label = f'<tspan class="place">{site}</tspan> {name}'
    wide = (mark.room + 1) * COLUMN
    return [
        f'<rect class="{mark.kind}" x="{x - wide / 2:.1f}" y="{y - BOX / 2:.1f}" '
        f'width="{wide:.1f}" height="{BOX:.1f}" rx="6"/>',
        _words(label, x, y, f"in-{mark.kind}"),
    ]


def _circle(x: float, y: float, radius: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def _line(x: float, y: float, dx: float, dy: float) -> str:
    """A line through (x, y), as far as (dx, dy) to either side."""
    return f'<path d="M {_xy(x - dx, y - dy)} L {_xy(x + dx, y + dy)}"/>'


def _xy(x: float, y: float) -> str:
    return f"{x:.1f} {y:.1f}"


def _towards(
    corner: tuple[float, float], point: tuple[float, float], far: float
) -> tuple[float, float]:
    """The point `far` pixels from a corner on the way to the next point, or half way there."""
    dx, dy = point[0] - corner[0], point[1] - corner[1]
    length = abs(dx) + abs(dy)
    share = min(far, length / 2) / length if length else 0
    return corner[0] + dx * share, corner[1] + dy * share
