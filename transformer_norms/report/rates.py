"""The loss at each learning rate that tuning tried, run by run; rates.svg draws it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_norms.report import figures
from transformer_norms.report.study import TUNED_ON, Study
from transformer_norms.report.tuning_audit import Audit, rate_lines

_WIDTH = 5.2  # inches
_FAR = 0.3  # nats above a variant's lowest loss: what lies farther has the last colour of the map
_TICKS = [0, 0.01, 0.05, 0.1, 0.2, _FAR]  # of the map's colours, whose scale is that of the root


def draw_rates(study: Study) -> dict[str, bytes]:
    """The figure as an SVG; none if nothing was tuned."""
    lines = rate_lines(study)
    if not lines:
        return {}
    height = figures.height_of(len(lines), rows_of_crosses(lines))
    figure, axes = figures.subplots(figsize=(_WIDTH, height), layout="constrained")
    draw_tuning(axes, study, lines)
    return {"rates.svg": figures.figure_bytes(figure, "svg")}


def draw_tuning(axes: Any, study: Study, lines: Sequence[Audit]) -> None:
    """Draws the losses at all rates: as lines, or as a map where lines would look alike."""
    if too_many_lines(lines):
        _draw_map(axes, study, lines)
    else:
        _draw_lines(axes, study, lines)


def too_many_lines(lines: Sequence[Audit]) -> bool:
    """Whether two of the lines would look alike."""
    return len({line.place % figures.MOST_LINES for line in lines}) < len(lines)


def rows_of_crosses(lines: Sequence[Audit]) -> int:
    """The rows of crosses above the axes: a map has its crosses inside."""
    failing = [any(o.failed for o in line.outcomes.values()) for line in lines]
    return 0 if too_many_lines(lines) else sum(failing)


def _draw_map(axes: Any, study: Study, lines: Sequence[Audit]) -> None:
    """Draws a row for each variant with a cell for each rate, whose colour tells how far the mean
    there lies above the lowest of the row. The chosen one has a ring, and one where a run failed a
    cross."""
    from matplotlib.colors import PowerNorm

    rates = sorted({rate for line in lines for rate in line.outcomes})
    above = np.full((len(lines), len(rates)), np.nan)
    for row, line in enumerate(lines):
        for rate, mean in line.means.items():
            above[row, rates.index(rate)] = max(0.0, mean - line.lowest)
        failed = [rates.index(rate) for rate, o in line.outcomes.items() if o.failed]
        axes.plot(failed, [row] * len(failed), "x", color=figures.COLOURS[2], markersize=4)
        if line.chosen in line.means:
            axes.plot([rates.index(line.chosen)], [row], "o", markersize=5, color="white",
                      markerfacecolor="none", markeredgewidth=1.2)  # fmt: skip
    edges = [np.arange(count + 1) - 0.5 for count in (len(rates), len(lines))]
    colours = axes.pcolormesh(*edges, above, cmap="cividis", norm=PowerNorm(0.5, 0, _FAR))
    names = [figures.short_name(line.variant.name) for line in lines]
    axes.set_yticks(range(len(names)), names, fontsize=figures.text_size(), parse_math=False)
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates], rotation=90)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    bar = axes.figure.colorbar(colours, ax=axes, location="top", aspect=40, pad=0.01, extend="max")
    bar.set_ticks(_TICKS)
    # To the right: in a narrow figure the bar is shorter than its label.
    bar.set_label(
        "nats above the lowest loss of the row", size=figures.text_size() + 1, loc="right"
    )
    bar.ax.tick_params(labelsize=figures.text_size())
    axes.set_xlabel(study.rate)


def _draw_lines(axes: Any, study: Study, lines: Sequence[Audit]) -> None:
    """Draws a dot for every run, a line through the means, a ring around the chosen one, and a
    cross on the upper edge for the runs that failed."""
    if study.rate is None:
        return
    tried = [rate for line in lines for rate in line.outcomes]
    if min(*tried, *study.tune[study.rate]) > 0:
        figures.use_log_axis(axes)
    axes.set_ylim(*_loss_span(lines))
    drawn = [_draw_line(axes, line) for line in lines]
    # Crosses do not widen the axis, and a rate may have nothing else.
    axes.update_datalim([(rate, axes.get_ylim()[0]) for rate in tried])
    axes.margins(x=0.04)
    figures.finish_lines(axes, drawn, study.ngrams(TUNED_ON))
    axes.set(xlabel=study.rate, ylabel="validation loss, nats per token")


def _draw_line(axes: Any, line: Audit) -> figures.DrawnLine:
    means, name, (colour, dashes) = line.means, line.variant.name, figures.line_style(line.place)
    mean = axes.plot([*means], [*means.values()], linestyle=dashes, color=colour, linewidth=1.2)
    figures.tag(mean, line.place, f"{name}, mean")
    runs = [(rate, *run) for rate, o in line.outcomes.items() for run in o.losses.items()]
    rates, seeds, losses = zip(*runs, strict=True) if runs else ((), (), ())
    words = [f"{name}, {rate:g}, seed {seed}: {loss:.4f}" for rate, seed, loss in runs]
    figures.draw_dots(axes, (rates, losses), line.place, name, words, size=3)
    if line.chosen in means:
        ring = axes.plot(
            [line.chosen], [means[line.chosen]], "o", markersize=8, markerfacecolor="none",
            color=colour,
        )  # fmt: skip
        figures.tag(ring, line.place, f"{name}: chosen, {line.chosen:g}")
    end = [*means.items()][-1] if means else (max(line.outcomes), axes.get_ylim()[1])
    failed = {rate: len(o.failed) for rate, o in line.outcomes.items() if o.failed}
    return figures.DrawnLine(line.place, name, end, failed)


def _loss_span(lines: Sequence[Audit]) -> tuple[float, float]:
    losses = [loss for line in lines for o in line.outcomes.values() for loss in o.losses.values()]
    if not losses:
        return 0.0, 1.0
    room = 0.06 * (max(losses) - min(losses)) or 0.1
    return min(losses) - room, max(losses) + 2 * room
