"""The final loss against a number that the study varies."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from transformer_norms.comparison.sweep_record import label
from transformer_norms.report import figures
from transformer_norms.report.findings import Findings
from transformer_norms.report.study import Variant, finite


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
    ends = {name: _draw_means(axes, findings, axis, lines[name], names.index(name))
            for name in names}  # fmt: skip
    axes.set_ylim(*axes.get_ylim())  # crosses lie on its upper end
    failing = [n for n in names if any(findings.outcomes[v.name].failed for v in lines[n])]
    for row, name in enumerate(failing):
        for variant in lines[name]:
            if count := len(findings.outcomes[variant.name].failed):
                x = float(variant.values[axis])
                figures.mark_failures(axes, x, count, row, names.index(name), variant.name)
    axes.set_xticks(numbers, [f"{number:g}" for number in numbers], minor=False)
    axes.minorticks_off()
    axes.ticklabel_format(axis="y", useOffset=False)
    drawn = {name: end for name, end in ends.items() if end}
    ngrams = study.ngrams(study.loss)
    figures.label_ends(
        axes, [*drawn], [*drawn.values()], [*map(names.index, drawn)], ngrams, len(failing)
    )
    axes.set_xlabel(figures.short_name(axis), parse_math=False)
    axes.set_ylabel(f"final {study.loss_name}, nats per token")
    figures.style_axes(axes)


def _draw_means(
    axes: Any, findings: Findings, axis: str, variants: Sequence[Variant], place: int
) -> tuple[float, float] | None:
    """Draws a dot for every run, and a line through the means with Student's 95 % intervals.
    Returns the end of the line."""
    colour, dashes = figures.line_style(place)
    means = []
    for variant in variants:
        x, outcomes = float(variant.values[axis]), findings.outcomes[variant.name]
        dots = axes.plot([x] * len(outcomes.losses), [*outcomes.losses.values()], "o", color=colour,
                         markersize=2.5, markeredgewidth=0, alpha=0.7)  # fmt: skip
        words = [f"{variant.name}, seed {s}: {loss:.4f}" for s, loss in outcomes.losses.items()]
        figures.tag(dots, place, variant.name, words)
        if outcomes.mean is not None:
            means.append((x, outcomes.mean, outcomes.half or 0.0))
    if not means:
        return None
    bars = axes.errorbar(*zip(*means, strict=True), color=colour, linestyle=dashes, linewidth=1.2,
                         elinewidth=0.8, capsize=1.5)  # fmt: skip
    for bar in bars[2]:
        bar.set_linestyle("-")
    return means[-1][:2]
