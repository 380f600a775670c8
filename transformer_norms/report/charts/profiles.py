"""Draws what probes measured inside the models: by block at one step, and over training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

from transformer_norms.comparison.statistics import finite
from transformer_norms.report import figures
from transformer_norms.report.study import Rows, Study, Variant
from transformer_norms.text_tables import printable
from transformer_norms.training.measures import MEASURES, Measure, place_of

_STEPS = 25  # at most
_BLOCKS = 256  # of a model, at most
_PARTS = 64  # of a study, at most
_TICKS = 8  # names of blocks below the axis, at most


@dataclass
class Profile:
    """Holds the means of one part: variant -> block -> step -> the mean over seeds. `names` are
    those of all variants, in the order of their styles."""

    measure: str
    part: str
    steps: Sequence[int]
    names: Sequence[str]
    means: dict[str, dict[str, dict[int, float]]]

    @property
    def about(self) -> Measure:
        return MEASURES.get(self.measure, Measure(printable(self.measure), ""))

    @property
    def title(self) -> str:
        return f"{self.about.title} {printable(self.part)}".strip()

    @property
    def blocks(self) -> list[str]:
        return sorted({block for own in self.means.values() for block in own}, key=_rank)

    def draw_blocks(self, axes: Any) -> None:
        """Draws a line over the blocks for each variant, at the step in the middle: at the end of a
        schedule little moves."""
        step, blocks = self.steps[(len(self.steps) - 1) // 2], self.blocks
        lines = []
        for name, own in self.means.items():
            place = self.names.index(name)
            colour, dashes = figures.line_style(place)
            y = [own.get(block, {}).get(step, nan) for block in blocks]
            line = axes.plot(y, color=colour, linestyle=dashes, linewidth=1.2, marker="o",
                             markersize=2.5, markeredgewidth=0)  # fmt: skip
            known = [(x, value) for x, value in enumerate(y) if self._has_place(value)]
            words = [f"{name}, {_block_words(blocks[x])}: {value:.4g}" for x, value in known]
            figures.tag(line, place, name, words)
            lines.append(figures.DrawnLine(place, name, known[-1] if known else None))
        every = -(-len(blocks) // _TICKS)
        ticks = [printable(block) for block in blocks[::every]]
        axes.set_xticks(range(0, len(blocks), every), ticks, parse_math=False)
        self._finish(axes, lines, f"block, at step {step}")

    def draw_training(self, axes: Any) -> None:
        """Draws a line over the steps for each block of each variant: the deeper, the darker."""
        blocks, lines = self.blocks, []
        for name, own in self.means.items():
            place, end = self.names.index(name), None
            colour, _ = figures.line_style(place)
            for block in filter(own.__contains__, blocks):
                depth = (1 + blocks.index(block)) / len(blocks)
                line = axes.plot(*zip(*own[block].items(), strict=True), color=colour, linewidth=1,
                                 alpha=0.25 + 0.75 * depth)  # fmt: skip
                figures.tag(line, place, f"{name}, {_block_words(block)}")
                known = [point for point in own[block].items() if self._has_place(point[1])]
                end = known[-1] if known else end
            lines.append(figures.DrawnLine(place, name, end))
        self._finish(axes, lines, "step")

    def _has_place(self, value: float) -> bool:
        """Returns whether the axis has a place for the value."""
        return value > 0 if self.about.log else not isnan(value)

    def _finish(self, axes: Any, lines: Sequence[figures.DrawnLine], x: str) -> None:
        if self.about.log:
            axes.set_yscale("log", nonpositive="mask")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
        if len(lines) <= figures.MOST_LINES:  # more names would not be read, and take seconds
            figures.finish_lines(axes, lines)
        axes.set_xlabel(x)
        axes.set_ylabel(figures.short_name(self.title), parse_math=False)


def probe_profiles(study: Study, rows: Mapping[Path, Rows]) -> Iterator[Profile]:
    """Yields what was measured of each part, as means over the seeds that finished, at steps at
    which all runs of a variant were measured. A number that one of the runs lacks has no mean: a
    mean of the others is another quantity."""
    runs = {variant.name: _probed_rows(variant, rows) for variant in study.variants}
    common = {name: set.intersection(*map(set, own)) for name, own in runs.items() if own}
    steps = _spread(sorted(set().union(*common.values())))
    names = [variant.name for variant in study.variants]
    found: dict[tuple[str, str], Profile] = {}
    for name in common:
        for step in filter(common[name].__contains__, steps):
            for key in runs[name][0][step]:
                place = place_of(key)
                numbers: list[Any] = [run[step].get(key) for run in runs[name]]
                if place is None or (place.block or 0) >= _BLOCKS or not all(map(finite, numbers)):
                    continue
                inside = place.block is not None
                part, block = (place.part, str(place.block)) if inside else ("", place.part)
                new = Profile(place.measure, part, steps, names, {})
                own = found.setdefault((place.measure, part), new).means.setdefault(name, {})
                own.setdefault(block, {})[step] = fmean(numbers)
    order = [*MEASURES, *sorted({measure for measure, _ in found})]
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    yield from (found[key] for key in keys[:_PARTS])


def _probed_rows(variant: Variant, rows: Mapping[Path, Rows]) -> list[dict[int, Mapping[str, Any]]]:
    """The rows with probes by step, of the runs that finished; of all runs if none has finished."""
    finished = [member for member in variant.results if member.status == "finished"]
    runs = [
        {
            row["step"]: row
            for row in rows.get(member.folder, ())
            if isinstance(row.get("step"), int) and any(map(place_of, row))
        }
        for member in finished or variant.results
    ]
    return [run for run in runs if run]


def _spread(steps: Sequence[int]) -> list[int]:
    """At most _STEPS of the steps, evenly spread, the first and the last included."""
    if len(steps) <= _STEPS:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (_STEPS - 1))] for i in range(_STEPS)]


def _block_words(block: str) -> str:
    return f"block {block}" if block.isdigit() else block


def _rank(block: str) -> tuple[int, int, str]:
    """The embedding first, then blocks by number, then what follows them."""
    if block.isdigit():
        return 1, int(block), ""
    return (0 if block in ("embedding", "embed") else 2), 0, block
