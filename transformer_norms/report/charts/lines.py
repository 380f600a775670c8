"""The final loss against a number that the study varies. Horizons are drawn in tokens."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from transformer_norms.comparison.statistics import finite
from transformer_norms.comparison.sweep_record import label
from transformer_norms.config.overrides import HORIZONS
from transformer_norms.report import figures
from transformer_norms.report.charts.horizons import curve_points, draw_gaps, saved_text
from transformer_norms.report.findings import Findings
from transformer_norms.report.horizons.prices import horizon_of
from transformer_norms.report.study import Variant


def against_panels(findings: Findings) -> Iterator[tuple[str, Any]]:
    """Yields each axis of the study that has several numbers, and what draws the loss against
    it."""
    for axis in findings.study.axes:
        tokens = axis in HORIZONS
        found = [
            (v, horizon_of(v) if tokens else v.values.get(axis)) for v in findings.study.variants
        ]
        numbers = {variant.name: float(number) for variant, number in found if finite(number)}
        if len({*numbers.values()}) > 1:
            yield "tokens" if tokens else axis, partial(_draw_against, findings, axis, numbers)


def _draw_against(findings: Findings, axis: str, numbers: Mapping[str, float], axes: Any) -> None:
    """Draws a line for each combination of values on the other axes."""
    from matplotlib.ticker import EngFormatter

    study, tokens = findings.study, axis in HORIZONS

    def name_of(variant: Variant) -> str:
        values = {key: value for key, value in variant.values.items() if key != axis}
        return label(values, study.names) if values else study.loss_name

    ticks = sorted({*numbers.values()})
    if tokens or (ticks[0] > 0 and ticks[-1] / ticks[0] >= 6):
        axes.set_xscale("log")
    variants = [variant for variant in study.variants if variant.name in numbers]
    lines: dict[str, list[Variant]] = {name_of(variant): [] for variant in variants}
    for variant in sorted(variants, key=lambda variant: numbers[variant.name]):
        lines[name_of(variant)].append(variant)
    curves = curve_points(findings) if tokens else {}
    drawn = []
    for place, (name, along) in enumerate(lines.items()):
        end = _draw_means(axes, findings, [(numbers[v.name], v) for v in along], place, curves)
        failed = {
            numbers[variant.name]: count
            for variant in along
            if (count := len(findings.outcomes[variant.name].failed))
        }
        saved = saved_text(findings, along[-1]) if tokens else ""
        drawn.append(figures.DrawnLine(place, f"{name}{saved}", end, failed))
    if tokens and len(ticks) == 2:
        ticks.insert(1, (ticks[0] * ticks[1]) ** 0.5)  # an axis has three numbers
    form = EngFormatter(places=1, sep="") if tokens else "{:g}".format
    axes.set_xticks(ticks, [form(number) for number in ticks], minor=False)
    axes.minorticks_off()
    axes.ticklabel_format(axis="y", useOffset=False)
    figures.finish_lines(axes, drawn, study.ngrams(study.loss))
    axes.set_xlabel("tokens of training" if tokens else figures.short_name(axis), parse_math=False)
    axes.set_ylabel(f"final {study.loss_name}, nats per token")
    if tokens:
        draw_gaps(axes, findings, [along[-1] for along in lines.values()], curves)


def _draw_means(
    axes: Any,
    findings: Findings,
    along: Sequence[tuple[float, Variant]],
    place: int,
    curves: Mapping[str, Sequence[tuple[float, float]]],
) -> tuple[float, float] | None:
    """Draws a dot for every run, Student's 95 % intervals of the means, and a line through the
    means: the curve of the variant, if it has one. Returns the end of the line."""
    means = []
    for x, variant in along:
        outcomes = findings.outcomes[variant.name]
        words = [f"{variant.name}, seed {s}: {loss:.4f}" for s, loss in outcomes.losses.items()]
        at = [x] * len(outcomes.losses), [*outcomes.losses.values()]
        figures.draw_dots(axes, at, place, variant.name, words, size=2.5)
        if outcomes.mean is not None:
            means.append((x, outcomes.mean, outcomes.half or 0.0))
    if not means:
        return None
    colour, dashes = figures.line_style(place)
    line = curves.get(along[-1][1].name) or [mean[:2] for mean in means]
    axes.errorbar(*zip(*means, strict=True), fmt="none", ecolor=colour, elinewidth=0.8, capsize=1.5)
    axes.plot(*zip(*line, strict=True), color=colour, linestyle=dashes, linewidth=1.2)
    return line[-1]
