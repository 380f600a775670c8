"""Panels of lines over a number: losses against a varied number, and probes against the block."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import unescape
from math import nan
from pathlib import Path
from typing import Any

from transformer_norms.report.figures import NameLines, line_style, style_axes
from transformer_norms.report.findings import LOSSES, Findings
from transformer_norms.report.page.charts import number_axes, probe_data
from transformer_norms.report.study import Rows, Study

DrawLines = Callable[..., None]  # onto axes, with `name_lines`
_TICKS = 8  # names of blocks below the axis, at most


def against_panels(findings: Findings) -> Iterator[tuple[str, DrawLines]]:
    """The final loss against each axis of the study that has several numbers."""
    for chart in number_axes(findings):
        draw = partial(_draw_against, chart=chart, loss=LOSSES[findings.loss])
        yield f"final-loss-by-{unescape(chart['key'])}", draw


def _draw_against(axes: Any, chart: Mapping[str, Any], loss: str, name_lines: NameLines) -> None:
    """Draws a dot for every run, and a line through the means with their intervals."""
    if chart["log"]:
        axes.set_xscale("log")
    ends = []
    lines = [line for line in chart["lines"] if any(p["loss"] is not None for p in line["points"])]
    for line in lines:
        colour, dashes = line_style(line["place"])
        points = [point for point in line["points"] if point["loss"] is not None]
        x, y = [point["x"] for point in points], [point["loss"] for point in points]
        half = [point["half"] or 0.0 for point in points]
        bars = axes.errorbar(x, y, half, color=colour, linestyle=dashes, linewidth=1.2,
                             elinewidth=0.8, capsize=1.5)  # fmt: skip
        for bar in bars[2]:
            bar.set_linestyle("-")
        dots = [(point["x"], one) for point in points for one in point["losses"]]
        axes.plot(*zip(*dots, strict=True), "o", color=colour, markersize=2.5, markeredgewidth=0,
                  alpha=0.7)  # fmt: skip
        ends.append((x[-1], y[-1]))
    axes.set_xticks(chart["ticks"], [f"{tick:g}" for tick in chart["ticks"]], minor=False)
    axes.minorticks_off()
    axes.ticklabel_format(axis="y", useOffset=False)
    names = [unescape(line["name"]) for line in lines]
    name_lines(axes, names, ends, [line["place"] for line in lines])
    axes.set(xlabel=unescape(chart["key"]), ylabel=f"final {loss}, nats per token")
    style_axes(axes)


def probe_panels(study: Study, rows: Mapping[Path, Rows]) -> Iterator[tuple[str, DrawLines]]:
    """Each measure by block, at the step that the page shows first: at the end of a schedule
    little moves. A part is drawn that is measured inside the blocks."""
    probes = probe_data(study, rows)
    if probes is None:
        return
    step = probes["steps"][(len(probes["steps"]) - 1) // 2]
    for measure in probes["measures"]:
        for part in measure["parts"]:
            values = [_profile(variant, measure["name"], part, step)
                      for variant in probes["variants"]]  # fmt: skip
            if any(block.isdigit() for own in values for block in own):
                names = [variant.name for variant in study.variants]
                draw = partial(
                    _draw_profile, names=names, step=step, measure=measure, part=part, values=values
                )
                yield f"probe {measure['name']} {unescape(part)}", draw


def _profile(variant: Any, measure: str, part: str, step: int) -> dict[str, float | None]:
    """The values of a variant by block, at a step."""
    if variant is None or step not in variant["steps"]:
        return {}
    blocks = variant["values"].get(measure, {}).get(part, {})
    return {block: own[variant["steps"].index(step)] for block, own in blocks.items()}


def _draw_profile(
    axes: Any,
    names: Sequence[str],
    step: int,
    measure: Mapping[str, Any],
    part: str,
    values: Sequence[Mapping[str, float | None]],
    name_lines: NameLines,
) -> None:
    if measure["log"]:
        axes.set_yscale("log", nonpositive="mask")
    blocks = sorted({block for own in values for block in own}, key=_rank)
    places = [place for place, own in enumerate(values) if own]
    ends = []
    for place in places:
        colour, dashes = line_style(place)
        y = [nan if (v := values[place].get(block)) is None else v for block in blocks]
        axes.plot(range(len(blocks)), y, color=colour, linestyle=dashes, linewidth=1.2, marker="o",
                  markersize=2.5, markeredgewidth=0)  # fmt: skip
        ends.append((len(blocks) - 1, y[-1]))
    every = -(-len(blocks) // _TICKS)
    axes.set_xticks(range(0, len(blocks), every), [unescape(b) for b in blocks[::every]])
    name_lines(axes, [names[place] for place in places], ends, places)
    title = f"{unescape(measure['title'])} {unescape(part)}".strip()
    axes.set(xlabel=f"block, at step {step}")
    axes.set_ylabel(title, parse_math=False)
    style_axes(axes)


def _rank(block: str) -> tuple[int, int, str]:
    """The embedding first, then blocks by number, then what follows them."""
    if block.isdigit():
        return 1, int(block), ""
    return (0 if block in ("embedding", "embed") else 2), 0, block
