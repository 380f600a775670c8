"""A config's kinds of block as one figure, side by side; the stream runs upward."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_norms.explain.anatomy import BlockAnatomy
from transformer_norms.explain.drawing import Box, Drawing, Norm, Row, Stage, Times, drawings
from transformer_norms.explain.equations import block_equations
from transformer_norms.explain.explanation import Explanation
from transformer_norms.explain.measures import BETWEEN, HEIGHT, SIDE, high, slot, span, tall, wide
from transformer_norms.explain.reading import Reader
from transformer_norms.explain.svg import Page

MONO, EQUATION = 7.0, 17.0  # width of a letter, height of a line
SUM = 11.0
MARGIN, APART = 24.0, 46.0


def figure(explanation: Explanation) -> str:
    """The text of an SVG file."""
    page, width, height = drawn(explanation.config, explanation.blocks)
    return page.svg(width, height)


def drawn(config: Mapping[str, Any], blocks: list[BlockAnatomy]) -> tuple[Page, float, float]:
    """What is drawn of a config whose blocks are those; its width and height."""
    reader, choices = Reader(config), config["choices"]
    page, left = Page(), MARGIN
    panels = []
    for drawing in drawings(reader, blocks):
        equations = block_equations(blocks[drawing.blocks[0]])
        panels.append(Panel(drawing, equations))
    below = max(len(panel.equations) for panel in panels) * EQUATION
    height = 0.0
    for panel in panels:
        height = max(height, panel.draw(page, left, MARGIN + below + 26))
        left += panel.width + APART
    width = left - APART + MARGIN
    title = f"{choices['placement']}, {choices['norm']}"
    width = max(width, len(title) * 10 + 2 * MARGIN)
    page.words(title, MARGIN, height + 34, "title", "start")
    return page, width, height + 34 + MARGIN


class Panel:
    """One kind of block: its drawing, above it its blocks, below it what it computes."""

    def __init__(self, drawing: Drawing, equations: Mapping[str, str]) -> None:
        self.drawing, stages = drawing, drawing.stages
        self.rail = 26.0 if any(stage.start for stage in stages) else 0.0
        posts = [wide(box) / 2 + 34 for stage in stages for box in stage.post]
        self.stream = self.rail + max([44.0, *posts]) - (0 if self.rail else 20)
        self.columns = [self._centres(stage) for stage in stages]
        if all(len(centres) == 1 for centres in self.columns):
            middle = max(centres[0] for centres in self.columns)
            self.columns = [[middle] for _ in stages]
        ends = [
            centre + span(branch) / 2
            for stage, centres in zip(stages, self.columns, strict=True)
            for branch, centre in zip(stage.branches, centres, strict=True)
        ]
        dual = any(stage.second for stage in stages)
        self.second = max(ends) + 26 if dual else 0.0
        self.width = max([*ends, self.second + 20, 290.0])
        self.equations = self._equations(equations)

    def _equations(self, equations: Mapping[str, str]) -> list[str]:
        lines = []
        for part, equation in equations.items():
            text = f"{part}: {equation}"
            lines += textwrap.wrap(text, int(self.width / MONO), subsequent_indent="   ")
        return lines

    def _centres(self, stage: Stage) -> list[float]:
        labels = [len(times.label) * 6.5 + SIDE + 20 for times in stage.skip]
        left, centres = self.stream + max([44.0, *labels]), []
        for branch in stage.branches:
            centres.append(left + span(branch) / 2)
            left += span(branch) + 16
        return centres

    def draw(self, page: Page, left: float, bottom: float) -> float:
        """How high it comes."""
        x, y = left + self.stream, bottom + 12
        heights = [y]
        for stage in self.drawing.stages:
            heights.append(heights[-1] + self._height(stage))
        top = heights[-1] + 26
        page.line([(x, y), (x, top)], "stream", arrow=True)
        page.words("x", x, bottom, "equation")
        if self.second:
            page.line([(left + self.second, y), (left + self.second, top)], "stream", arrow=True)
            page.words("r", left + self.second, bottom, "equation")
        for stage, centres, low in zip(self.drawing.stages, self.columns, heights, strict=False):
            joined = self._stage(page, stage, x, [left + centre for centre in centres], low, left)
            if stage.start:
                rail = left + 8
                points = [(x, heights[0] + 12), (rail, heights[0] + 12), (rail, joined)]
                page.line([*points, (x - SUM, joined)], arrow=True)
        page.words(self.drawing.title, left, top + 20, "blocks", "start")
        for number, line in enumerate(self.equations):
            page.words(line, left, bottom - 26 - number * EQUATION, "equation", "start")
        return top + 20

    def _height(self, stage: Stage) -> float:
        chains = max(tall(branch) for branch in stage.branches)
        shared = tall(stage.shared) + 18 if stage.shared else 0
        return 22 + 26 + shared + chains + 2 * SUM + tall(stage.post) + 4

    def _stage(
        self, page: Page, stage: Stage, x: float, columns: Sequence[float], low: float, left: float
    ) -> float:
        """Where its sum stands."""
        split, start = low + 22, low + 48
        middle = (columns[0] + columns[-1]) / 2
        if stage.shared:
            page.line([(x, split), (middle, split), (middle, start)])
            split = _chain(page, stage.shared, middle, start) + 2
            page.line([(middle, split - 2 - BETWEEN), (middle, split)])
            start = split + 16
        joined = start + max(tall(branch) for branch in stage.branches) + SUM
        for branch, column in zip(stage.branches, columns, strict=True):
            begin = middle if stage.shared else x
            page.line([(begin, split), (column, split), (column, start)])
            end = _chain(page, branch, column, start)
            if stage.second:
                page.line([(column, end - BETWEEN), (column, joined)])
                page.line([(column, joined), (x + SUM, joined)], arrow=True)
                page.line([(column, joined), (left + self.second - SUM, joined)], arrow=True)
            else:
                points = [(column, end - BETWEEN), (column, joined), (x + SUM, joined)]
                page.line(points, arrow=True)
        for number, times in enumerate(stage.skip):
            _factor(page, times, x, (low + 22 + joined) / 2 + 24 * number)
        page.circle(x, joined, SUM, "+")
        if stage.second:
            page.circle(left + self.second, joined, SUM, "+")
        _chain(page, stage.post, x, joined + SUM + BETWEEN - 4, line=False)
        return joined


def _chain(page: Page, branch: Sequence[Box | Row], x: float, y: float, line: bool = True) -> float:
    """Boxes one above another from y on; how high they come, the gap after the last included."""
    if line and branch:
        page.line([(x, y - 1), (x, y + tall(branch) - BETWEEN)])
    for box in branch:
        height = high(box)
        if isinstance(box, Row):
            _row(page, box, x, y, height)
        elif isinstance(box, Times):
            _factor(page, box, x, y + height / 2)
        else:
            kind = "norm" if isinstance(box, Norm) else "layer"
            page.box(kind, x, y + height / 2, wide(box), height, box.label)
            if isinstance(box, Norm):
                page.words(box.site, x + wide(box) / 2 + 5, y + height / 2, "site", "start")
        y += height + BETWEEN
    return y


def _factor(page: Page, times: Times, x: float, y: float) -> None:
    page.circle(x, y, SIDE, "x")
    page.words(times.label, x + SIDE + 6, y, "factor", "start")


def _row(page: Page, row: Row, x: float, y: float, height: float) -> None:
    step, ends = slot(row) + 8, (y - 2, y + height)
    for place, (name, chain) in zip((-step, 0.0, step), row.slots, strict=True):
        column = x + place
        points = [(x, ends[0]), (column, ends[0]), (column, ends[1]), (x, ends[1])]
        page.line(points if place else [(x, ends[0]), (x, ends[1])])
        at = y + 17
        if not any(isinstance(box, Norm) for box in chain):
            page.words(name, column + 6, at + 4, "site", "start")
        for box in chain:
            if isinstance(box, Times):
                page.circle(column, at + SIDE, SIDE, "x")
                page.words(box.symbol, column + SIDE + 4, at + SIDE, "factor", "start")
            elif isinstance(box, Norm):
                words = f"{box.site} {box.label}"
                page.box("norm", column, at + HEIGHT / 2, slot(row), HEIGHT, words)
            at += high(box) + 6
