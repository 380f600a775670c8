"""A drawing as text: [ ] is a norm, ( ) a layer, * a factor. The stream runs downward."""

from collections.abc import Sequence

from transformer_norms.explain.drawing import Box, Branch, Drawing, Layer, Norm, Row, Stage, Times

WIDTH = 78
STREAM = 12  # the column of the stream; the block's input runs down at START beside it
START = 1
GAP = 2


class Canvas:
    """Characters by line and column."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = []

    def put(self, line: int, column: int, text: str) -> None:
        while len(self.lines) <= line:
            self.lines.append([])
        row = self.lines[line]
        row += " " * (column + len(text) - len(row))
        row[column : column + len(text)] = text

    def centre(self, line: int, column: int, text: str) -> None:
        self.put(line, max(0, column - len(text) // 2), text)

    def text(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.lines]


def sketch(drawing: Drawing) -> list[str]:
    """Its lines, none longer than WIDTH."""
    canvas = Canvas()
    short = _width(drawing, short=False) > WIDTH
    columns = _columns(drawing, short)
    second = max(columns[-1]) if columns[-1] else 0
    dual = any(stage.second for stage in drawing.stages)
    rail = min(WIDTH - 1, second) if dual else 0
    line = 0
    canvas.put(line, STREAM, "x")
    if dual:
        canvas.put(line, rail, "r")
    for number, stage in enumerate(drawing.stages):
        from_start = any(later.start for later in drawing.stages[number:])
        begin = line + 1
        line = _stage(canvas, line + 1, stage, columns[number], rail, short)
        if from_start:
            _rail(canvas, begin, line, stage, first=number == 0)
    canvas.put(line, STREAM, "x")
    if dual:
        canvas.put(line, rail, "r")
    return canvas.text()


def _label(box: Box, short: bool) -> str:
    match box:
        case Norm(site=site, label=label):
            return f"[{site}]" if short else f"[{site} {label}]"
        case Layer(label=label):
            return f"({label})"
        case Times(label=label):
            return f"* {label}"


def _chain(box: Box | Row, short: bool) -> int:
    """How wide a box is, or a row of them."""
    if isinstance(box, Row):
        return 3 * _slot(box, short) + 2 * GAP
    return len(_label(box, short))


def _slot(row: Row, short: bool) -> int:
    return max(len(_label(box, short)) for _, chain in row.slots for box in chain)


def _branch_width(branch: Branch, short: bool) -> int:
    return max(_chain(box, short) for box in branch)


def _width(drawing: Drawing, short: bool) -> int:
    widths = [
        sum(_branch_width(branch, short) + GAP for branch in stage.branches)
        for stage in drawing.stages
    ]
    dual = any(stage.second for stage in drawing.stages)
    return STREAM + 10 + max(widths) + 6 * dual


def _columns(drawing: Drawing, short: bool) -> list[list[int]]:
    """The centre of each branch of each stage, and last, where a second stream runs."""
    found, furthest = [], 0
    for stage in drawing.stages:
        left, centres = STREAM + 10, []
        for branch in stage.branches:
            width = _branch_width(branch, short)
            centres.append(left + width // 2)
            left += width + GAP
        furthest = max(furthest, left)
        found.append(centres)
    if all(len(centres) == 1 for centres in found):
        middle = max(centres[0] for centres in found)
        found = [[middle] for _ in found]
    return [*found, [furthest + 4]]


def _stage(
    canvas: Canvas, line: int, stage: Stage, columns: Sequence[int], rail: int, short: bool
) -> int:
    canvas.put(line, STREAM, "│")
    if rail:
        canvas.put(line, rail, "│")
    line += 1
    top = line
    line = _split(canvas, line, stage, columns, short)
    ends = [_boxes(canvas, line, stage.branches[n], c, short) for n, c in enumerate(columns)]
    bottom = max(ends)
    for column, end in zip(columns, ends, strict=True):
        for between in range(end, bottom):
            canvas.put(between, column, "│")
    for between in range(top + 1, bottom):
        canvas.put(between, STREAM, "│")
    if rail:
        for between in range(top, bottom):
            canvas.put(between, rail, "│")
    for offset, times in enumerate(stage.skip):
        canvas.put(top + 2 + offset, STREAM + 2, _label(times, short)[: columns[0]])
    _join(canvas, bottom, columns, rail)
    line = bottom + 1
    for box in stage.post:
        canvas.put(line, STREAM, "│")
        canvas.centre(line + 1, STREAM, _label(box, short))
        if rail:
            for between in (line, line + 1):
                canvas.put(between, rail, "│")
        line += 2
    canvas.put(line, STREAM, "│")
    if rail:
        canvas.put(line, rail, "│")
    return line + 1


def _split(
    canvas: Canvas, line: int, stage: Stage, columns: Sequence[int], short: bool
) -> int:
    """The stream parts; what the branches share stands before they do."""
    if not stage.shared:
        _across(canvas, line, STREAM, columns, "├", "┬", "╮")
        return line + 1
    middle = (columns[0] + columns[-1]) // 2
    _across(canvas, line, STREAM, [middle], "├", "┬", "╮")
    line = _boxes(canvas, line + 1, stage.shared, middle, short)
    canvas.put(line, columns[0], "╭" + "─" * (columns[-1] - columns[0] - 1) + "╮")
    canvas.put(line, middle, "┴")
    return line + 1


def _across(
    canvas: Canvas, line: int, left: int, columns: Sequence[int], first: str, inner: str, last: str
) -> None:
    canvas.put(line, left, first + "─" * (columns[-1] - left - 1) + last)
    for column in columns[:-1]:
        canvas.put(line, column, inner)


def _boxes(canvas: Canvas, line: int, branch: Branch, column: int, short: bool) -> int:
    for box in branch:
        canvas.put(line, column, "│")
        if isinstance(box, Row):
            line = _row(canvas, line + 1, box, column, short)
        elif isinstance(box, Times):
            canvas.put(line + 1, column, "│ " + _label(box, short))
            line += 2
        else:
            canvas.centre(line + 1, column, _label(box, short))
            line += 2
    canvas.put(line, column, "│")
    return line + 1


def _row(canvas: Canvas, line: int, row: Row, column: int, short: bool) -> int:
    """q, k and v part, each meets its own, and they come together."""
    step = _slot(row, short) + GAP
    centres = [column - step, column, column + step]
    canvas.put(line, centres[0], "╭" + "─" * (2 * step - 1) + "╮")
    canvas.put(line, column, "┼")
    height = max(len(chain) for _, chain in row.slots)
    for centre, (name, chain) in zip(centres, row.slots, strict=True):
        for offset in range(height):
            if offset < len(chain):
                canvas.centre(line + 1 + offset, centre, _label(chain[offset], short))
            else:
                canvas.put(line + 1 + offset, centre, "│" if chain else name if not offset else "│")
    line += height + 1
    canvas.put(line, centres[0], "╰" + "─" * (2 * step - 1) + "╯")
    canvas.put(line, column, "┼")
    return line + 1


def _join(canvas: Canvas, line: int, columns: Sequence[int], rail: int) -> None:
    end = rail if rail else columns[-1]
    canvas.put(line, STREAM, "⊕" + "─" * (end - STREAM - 1) + ("⊕" if rail else "╯"))
    canvas.put(line, STREAM + 1, "◄")
    for column in columns if rail else columns[:-1]:
        canvas.put(line, column, "┴")
    if rail:
        canvas.put(line, rail - 1, "►")


def _rail(canvas: Canvas, begin: int, end: int, stage: Stage, first: bool) -> None:
    """The block's input on its own line, from the first split to the sum that it joins."""
    joined = max(n for n in range(begin, end) if "⊕" in canvas.lines[n])
    top = begin if first else begin - 1
    bottom = joined if stage.start else end
    for line in range(top, bottom):
        canvas.put(line, START, "│")
    if first:
        canvas.put(top, START, "╭" + "─" * (STREAM - START - 1) + "┤")
    if stage.start:
        canvas.put(joined, START, "╰" + "─" * (STREAM - START - 2) + "►")
