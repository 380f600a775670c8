"""The final loss against the time of a step: which variants are worth their time."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from transformer_norms.report import figures
from transformer_norms.report.fairness import obstacles
from transformer_norms.report.findings import Findings
from transformer_norms.report.measured.cost import CostRatio, cost_ratio, step_seconds


def step_time_panels(findings: Findings) -> Iterator[Any]:
    """Yields what draws the loss against the time of a step, if the times of all variants whose
    losses may be compared can be compared. The reference is the baseline of the longest horizon.
    A variant of which a run failed is left out: a mean of the others flatters it."""
    study, outcomes = findings.study, findings.outcomes
    trained = [v for v in study.variants if v.ended and not outcomes[v.name].failed]
    known = [v for v in study.baselines if v in trained]
    if not known:
        return
    reference = max(known, key=lambda v: v.ended[0].summary.tokens or 0)
    times = {
        v.name: time
        for v in trained
        if not obstacles(reference.ended[0], v.ended[0])
        if (time := cost_ratio(study, v, reference, step_seconds))
    }
    if len(times) > 1 and not any(time.apart for time in times.values()):
        yield partial(_draw, findings, times)


def _draw(findings: Findings, times: Mapping[str, CostRatio], axes: Any) -> None:
    """Draws each mean with its 95 % interval and the quartiles of the time, and rings and
    a line along the front: no other variant has a lower loss in less time."""
    ends = {
        name: (time.median, findings.outcomes[name].mean or 0.0) for name, time in times.items()
    }
    at, drawn = ends.values(), []
    front = sorted((x, y) for x, y in at if not any(time < x and loss < y for time, loss in at))
    for place, variant in enumerate(findings.study.variants):
        if time := times.get(name := variant.name):
            (x, y), half = ends[name], findings.outcomes[name].half
            bar = axes.errorbar(x, y, xerr=[[x - time.low], [time.high - x]], yerr=half, fmt="o",
                                color=figures.line_style(place)[0], markersize=3.5, linewidth=0.9,
                                capsize=1.5)  # fmt: skip
            words = f"{name}: {y:.4f} nats, step time {time}"
            figures.tag(bar.get_children(), place, words)
            drawn.append(figures.DrawnLine(place, name, (x, y)))
    axes.step(*zip(*front, strict=True), where="post", color=figures.LINE, linewidth=1, zorder=1)
    axes.plot(*zip(*front, strict=True), "o", markersize=8, markerfacecolor="none",
              color=figures.GREY, markeredgewidth=0.8)  # fmt: skip
    axes.ticklabel_format(useOffset=False)
    figures.finish_lines(axes, drawn)
    axes.set_xlabel("time of a step, baseline = 1", loc="right")
    axes.set_ylabel(f"final {findings.study.loss_name}, nats per token")
