"""A drawing as text: [ ] is a norm, ( ) a layer, * a factor. The stream runs downward."""

from collections.abc import Sequence

from transformer_norms.explain.canvas import Canvas
from transformer_norms.explain.drawing import Box, Branch, Drawing, Layer, Norm, Row, Stage, Times

WIDTH = 78
STREAM = 14  # the column of the stream; the block's input runs down at START beside it
START = 0
GAP = 2


def sketch(drawing: Drawing) -> list[str]:
    """Its lines, none longer than WIDTH."""
    canvas = Canvas()
    dual = any(stage.second for stage in drawing.stages)
    short = _columns(drawing, short=False)[1] + 5 * dual > WIDTH or _meets_start(drawing)
    columns, furthest = _columns(drawing, short)
    rail = furthest + 4 if dual else 0
    line = 0
    canvas.put(line, STREAM, "x")
    if dual:
        canvas.put(line, rail, "r")
    for number, stage in enumerate(drawing.stages):
        from_start = any(later.start for later in drawing.stages[number:])
        begin = line + 1
        line = _stage(canvas, begin - (number > 0), stage, columns[number], rail, short)
        if from_start:
            _rail(canvas, begin, line, stage, first=number == 0)
    canvas.put(line + 1, STREAM, "x")
    if dual:
        canvas.put(line + 1, rail, "r")
    return canvas.text()


def _meets_start(drawing: Drawing) -> bool:
    """Whether a norm on the stream is so long that it reaches the line of the block's input."""
    labels = [_label(box, short=False) for stage in drawing.stages for box in stage.post]
    return any(len(label) // 2 >= STREAM - START for label in labels)


def _label(box: Box, short: bool) -> str:
    match box:
        case Norm(site=site, label=label):
            return f"[{site}]" if short else f"[{site} {label}]"
        case Layer(label=label):
            return f"({label})"
        case Times(label=label, symbol=symbol):
            return f"* {symbol if short else label}"


def _sides(box: Box | Row, short: bool) -> tuple[int, int]:
    """How far a box reaches to the left and to the right of its line."""
    if isinstance(box, Times):
        return 1, len(_label(box, short)) + 3
    wide = 3 * _slot(box, short) + 2 * GAP if isinstance(box, Row) else len(_label(box, short))
    return wide // 2, wide - wide // 2


def _slot(row: Row, short: bool) -> int:
    return max(len(_in_slot(box, short)) for _, chain in row.slots for box in chain)


def _in_slot(box: Box, short: bool) -> str:
    return _label(box, short or isinstance(box, Times))


def _left(stage: Stage, short: bool) -> int:
    """Where branches may begin: beyond what the skip says."""
    return STREAM + max([10, *(len(_label(times, short)) + 4 for times in stage.skip)])


def _columns(drawing: Drawing, short: bool) -> tuple[list[list[int]], int]:
    """The centre of each branch of each stage, and where the last of them ends."""
    found, ends = [], []
    for stage in drawing.stages:
        left, centres = _left(stage, short), []
        for branch in stage.branches:
            sides = [_sides(box, short) for box in branch]
            centres.append(left + max(side for side, _ in sides))
            left = centres[-1] + max(side for _, side in sides) + GAP
        found.append(centres)
        ends.append(left - centres[-1])
    if all(len(centres) == 1 for centres in found):
        found = [[max(centres[0] for centres in found)]] * len(found)
    return found, max(c[-1] + end for c, end in zip(found, ends, strict=True))


def _stage(
    canvas: Canvas, line: int, stage: Stage, columns: Sequence[int], rail: int, short: bool
) -> int:
    canvas.put(line, STREAM, "│")
    if rail:
        canvas.put(line, rail, "│")
    line = top = line + 1
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
        canvas.put(top + 2 + offset, STREAM + 2, _label(times, short))
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
    return line


def _split(canvas: Canvas, line: int, stage: Stage, columns: Sequence[int], short: bool) -> int:
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
            canvas.put(line + 1, column, f"│ {_label(box, short)}")
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
                canvas.centre(line + 1 + offset, centre, _in_slot(chain[offset], short))
            else:
                canvas.put(line + 1 + offset, centre, "│" if chain or offset else name)
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
