"""The final loss against a number that the study varies."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from transformer_norms.comparison.statistics import finite
from transformer_norms.comparison.sweep_record import label
from transformer_norms.report import figures
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant


def against_panels(findings: Findings) -> Iterator[tuple[str, Any]]:
    """Yields each axis of the study that has several numbers, and what draws the loss against
    it."""
    for axis in findings.study.axes:
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
        end = _draw_means(axes, findings, axis, lines[name], place)
        failed = {
            float(variant.values[axis]): count
            for variant in lines[name]
            if (count := len(findings.outcomes[variant.name].failed))
        }
        drawn.append(figures.DrawnLine(place, name, end, failed))
    axes.set_xticks(numbers, [f"{number:g}" for number in numbers], minor=False)
    axes.minorticks_off()
    axes.ticklabel_format(axis="y", useOffset=False)
    figures.finish_lines(axes, drawn, study.ngrams(study.loss))
    axes.set_xlabel(figures.short_name(axis), parse_math=False)
    axes.set_ylabel(f"final {study.loss_name}, nats per token")


def _draw_means(
    axes: Any, findings: Findings, axis: str, variants: Sequence[Variant], place: int
) -> tuple[float, float] | None:
    """Draws a dot for every run, and a line through the means with Student's 95 % intervals.
    Returns the end of the line."""
    means = []
    for variant in variants:
        x, outcomes = float(variant.values[axis]), findings.outcomes[variant.name]
        words = [f"{variant.name}, seed {s}: {loss:.4f}" for s, loss in outcomes.losses.items()]
        at = [x] * len(outcomes.losses), [*outcomes.losses.values()]
        figures.draw_dots(axes, at, place, variant.name, words, size=2.5)
        if outcomes.mean is not None:
            means.append((x, outcomes.mean, outcomes.half or 0.0))
    if not means:
        return None
    colour, dashes = figures.line_style(place)
    bars = axes.errorbar(*zip(*means, strict=True), color=colour, linestyle=dashes, linewidth=1.2,
                         elinewidth=0.8, capsize=1.5)  # fmt: skip
    for bar in bars[2]:
        bar.set_linestyle("-")
    return means[-1][:2]
