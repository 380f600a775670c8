"""curves.svg and curves.png: how the variants trained, and where every seed ended."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_norms.report.drawing import (
    FONT,
    name,
    name_ends,
    plain,
    pyplot,
    saved,
    style,
)
from transformer_norms.report.findings import Findings
from transformer_norms.report.losses import KEYS, Curve, Rows, averaged, curve_of, view, which
from transformer_norms.report.paired_tests import half_interval
from transformer_norms.report.statistics import Outcomes
from transformer_norms.report.table import LOSSES
from transformer_norms.run.reader import SavedRun

_WIDTH, _HEIGHT, _PER_NAME = 8.6, 3.4, 0.15  # inches
_FAR = 12  # times the distance of the median from the best: what lies beyond is at the edge


def curves(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, bytes]:
    """The figure as an SVG and as a PNG; none where no run has ended. `rows` of metrics by run
    folder."""
    study = findings.study
    shown = [variant for variant in study.variants if variant.ended]
    if not shown:
        return {}
    plt = pyplot()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(_WIDTH, max(_HEIGHT, _PER_NAME * len(shown) + 1)),
        width_ratios=(1.5, 1), layout="constrained",
    )  # fmt: skip
    figure.get_layout_engine().set(wspace=0.05)
    loss, drawn = _read([variant.ended for variant in shown], rows)
    names = [variant.name for variant in shown]
    _training(left, names, drawn)
    left.set(xlabel="tokens", ylabel=f"{loss}, nats per token")
    _finals(right, names, [findings.outcomes[name] for name in names])
    # To the right: beside long names the axes are narrower than their label.
    right.set_xlabel(f"final {LOSSES[findings.loss]}, nats per token", loc="right")
    files = {f"curves.{kind}": saved(figure, kind) for kind in ("svg", "png")}
    plt.close(figure)
    return files


def _read(
    runs: Sequence[Sequence[SavedRun]], rows: Mapping[Path, Rows]
) -> tuple[str, list[list[Curve]]]:
    """Which loss is drawn, and the curves."""
    evaluated = [curve_of(rows[run.folder], "val/loss") for members in runs for run in members]
    key = which([0 if one is None else len(one.loss) for one in evaluated])
    drawn = [
        [
            found
            for run in members
            if (found := curve_of(rows[run.folder], key, run.summary.status == "diverged"))
        ]
        for members in runs
    ]
    return KEYS[key], drawn


def _training(axes: Any, names: Sequence[str], drawn: Sequence[Sequence[Curve]]) -> None:
    """Each seed a thin line behind the mean, and each variant's name at its line's end."""
    from matplotlib.ticker import EngFormatter

    every = [curve for curves in drawn for curve in curves]
    axes.set_ylim(*view(every))
    axes.set_xlim(0, max((curve.tokens[-1] for curve in every), default=1) * 1.01)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.ticklabel_format(axis="y", useOffset=False)
    name_ends(axes, names, [_draw(axes, place, curves) for place, curves in enumerate(drawn)])
    plain(axes)


def _draw(axes: Any, place: int, curves: Sequence[Curve]) -> tuple[float, float]:
    """One variant; where its line ends."""
    colour, dashes = style(place)
    for curve in curves:
        axes.plot(curve.tokens, curve.loss, color=colour, linewidth=0.5, alpha=0.35, zorder=2)
        if curve.diverged:
            low, high = axes.get_ylim()
            y = min(max(curve.loss[-1], low), high)  # at the edge where it is out of view
            axes.plot(curve.tokens[-1:], [y], "x", color=colour, clip_on=False, zorder=4)
    average = averaged([curve for curve in curves if not curve.diverged])
    if average is not None:
        axes.plot(
            average.tokens, average.loss, color=colour, linestyle=dashes, linewidth=1.4, zorder=3
        )
    last = average or (curves[0] if curves else None)
    return (last.tokens[-1], last.loss[-1]) if last else (0.0, axes.get_ylim()[1])


def _finals(axes: Any, names: Sequence[str], outcomes: Sequence[Outcomes]) -> None:
    """A row a variant: every seed a dot above the mean with Student's 95 % interval. At the right
    edge a cross for each that diverged, a triangle for each that lies beyond."""
    finished = [[o.losses[seed] for seed in sorted(o.losses.keys() - o.diverged)] for o in outcomes]
    span = _span(finished)
    axes.set_xlim(*span)
    axes.ticklabel_format(axis="x", useOffset=False)
    for place, (losses, outcome) in enumerate(zip(finished, outcomes, strict=True)):
        colour, _ = style(place)
        above = [place - 0.18] * len(losses)
        axes.plot(losses, above, "o", color=colour, markersize=2.8, markeredgewidth=0, alpha=0.7)
        if any(loss > span[1] for loss in losses):
            axes.plot([1], [place - 0.18], ">", color=colour, markersize=4, clip_on=False,
                      transform=axes.get_yaxis_transform())  # fmt: skip
        if losses:
            half = half_interval(losses)
            axes.errorbar(np.mean(losses), place + 0.14, xerr=half, fmt="|", color=colour,
                          capsize=2, markersize=7, linewidth=1.2)  # fmt: skip
        for i in range(len(outcome.diverged)):
            y = place - 0.3 + 0.6 * (i + 1) / (len(outcome.diverged) + 1)
            axes.plot([1], [y], "x", color=colour, markersize=5,
                      clip_on=False, transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_yticks(
        range(len(names)), [name(text) for text in names], fontsize=FONT, parse_math=False
    )
    axes.set_ylim(len(names) - 0.5, -0.5)
    plain(axes)


def _span(finished: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Dots are in view, and the intervals of three seeds or more, but for what lies so far above
    the median of all that the others would be one."""
    ends = [loss for losses in finished for loss in losses]
    if not ends:
        return 0.0, 1.0
    far = min(ends) + _FAR * (float(np.median(ends)) - min(ends))
    for losses in finished:
        if len(losses) > 2:
            half = half_interval(losses) or 0
            ends += [float(np.mean(losses)) - half, float(np.mean(losses)) + half]
    near = [end for end in ends if end <= far] if far > min(ends) else ends
    room = 0.06 * (max(near) - min(near)) or 0.01
    return min(near) - room, max(near) + 2 * room
