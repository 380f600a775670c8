"""The final loss against a number that the study varies."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from transformer_norms.comparison.statistics import finite
from transformer_norms.comparison.sweep_record import label
from transformer_norms.config.overrides import HORIZONS
from transformer_norms.report import figures
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant


def against_panels(findings: Findings) -> Iterator[tuple[str, Any]]:
    """Yields each axis of the study that has several numbers, and what draws the loss against it.
    Horizons have another drawing."""
    for axis in findings.study.axes:
        if axis in HORIZONS:
            continue
        variants = [v for v in findings.study.variants if finite(v.values.get(axis))]
        if len({float(variant.values[axis]) for variant in variants}) > 1:
            yield axis, partial(_draw_against, findings, axis, variants)


def _draw_against(findings: Findings, axis: str, variants: Sequence[Variant], axes: Any) -> None:
    """Draws a line for each combination of values on the other axes."""
    study = findings.study

    def name_of(variant: Variant) -> str:
        values = {key: value for key, value in variant.values.items() if key != axis}
        return label(values) if values else study.loss_name

    numbers = sorted({float(variant.values[axis]) for variant in variants})
    if numbers[0] > 0 and numbers[-1] / numbers[0] >= 6:
        axes.set_xscale("log")
    lines: dict[str, list[Variant]] = {}
    for variant in sorted(variants, key=lambda variant: float(variant.values[axis])):
        lines.setdefault(name_of(variant), []).append(variant)
    names = list(dict.fromkeys(map(name_of, variants)))
    drawn = []
    for place, name in enumerate(names):
        means = draw_means(axes, findings, [(float(v.values[axis]), v) for v in lines[name]], place)
        failed = {
            float(variant.values[axis]): count
            for variant in lines[name]
            if (count := len(findings.outcomes[variant.name].failed))
        }
        drawn.append(figures.DrawnLine(place, name, draw_line(axes, means, place), failed))
    axes.set_xticks(numbers, [f"{number:g}" for number in numbers], minor=False)
    axes.minorticks_off()
    axes.ticklabel_format(axis="y", useOffset=False)
    figures.finish_lines(axes, drawn, study.ngrams(study.loss))
    axes.set_xlabel(figures.short_name(axis), parse_math=False)
    axes.set_ylabel(f"final {study.loss_name}, nats per token")


def draw_means(
    axes: Any, findings: Findings, along: Sequence[tuple[float, Variant]], place: int
) -> list[tuple[float, float]]:
    """Draws a dot for every run, and Student's 95 % interval of each mean. `along` has the variants
    with their x. Returns the means with theirs."""
    means, (colour, _) = [], figures.line_style(place)
    for x, variant in along:
        outcomes = findings.outcomes[variant.name]
        words = [f"{variant.name}, seed {s}: {loss:.4f}" for s, loss in outcomes.losses.items()]
        at = [x] * len(outcomes.losses), [*outcomes.losses.values()]
        figures.draw_dots(axes, at, place, variant.name, words, size=2.5)
        if outcomes.mean is not None:
            means.append((x, outcomes.mean))
            axes.errorbar(*means[-1], outcomes.half or 0.0, fmt="none", ecolor=colour,
                          elinewidth=0.8, capsize=1.5)  # fmt: skip
    return means


def draw_line(
    axes: Any, points: Sequence[tuple[float, float]], place: int
) -> tuple[float, float] | None:
    """Draws a line through the points. Returns its end."""
    if not points:
        return None
    colour, dashes = figures.line_style(place)
    axes.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, linewidth=1.2)
    return points[-1]
