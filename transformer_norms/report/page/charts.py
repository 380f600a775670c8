"""The data of a page's charts, for its script. Names in it are escaped for plotly."""

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

from transformer_norms.report.findings import LOSSES, Findings
from transformer_norms.report.statistics import half_interval
from transformer_norms.report.study import (
    LOSS_KEYS,
    Curve,
    Rows,
    Study,
    StudyRun,
    Variant,
    finite,
    loss_curve,
    loss_range,
    mean_curve,
    shown_loss,
)
from transformer_norms.report.tuning_audit import audits
from transformer_norms.run.reader import SavedRun
from transformer_norms.run.sweep_record import label
from transformer_norms.text_tables import escape_label
from transformer_norms.training.measures import MEASURES, Measure, Place, place_of

_SHORT = 14  # characters of a name beside a narrow chart
_POINTS = 150  # of one curve, at most
_STEPS, _FEW, _MANY = 25, 10, 12  # steps that are kept; with more than so many variants, fewer
_BLOCKS = 256  # of a model, at most
# measure -> part -> block -> a value for each step
ProbeValues = dict[str, dict[str, dict[str, list[float | None]]]]


def chart_data(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, Any]:
    study = findings.study
    return {
        "names": [escape_label(variant.name) for variant in study.variants],
        "short": [escape_label(variant.name[:_SHORT]) for variant in study.variants],
        "loss": LOSSES[findings.loss],
        "curves": _curves(findings, rows),
        "finals": _finals(findings),
        "rates": _rates(study),
        "axes": _number_axes(findings),
        "probes": probe_data(study, rows),
    }


def _finals(findings: Findings) -> list[dict[str, Any]]:
    """The final loss of every seed; a run that diverged has none here."""
    finals = []
    for variant in findings.study.variants:
        own = findings.outcomes[variant.name]
        names = {member.seed: member.folder.name for member in variant.results}
        ended = {seed: own.losses[seed] for seed in sorted(own.losses.keys() - own.diverged)}
        losses = list(ended.values())
        finals.append(
            {
                "losses": losses,
                "texts": [escape_label(f"seed {seed}: {names[seed]}") for seed in ended],
                "mean": sum(losses) / len(losses) if losses else None,
                "half": half_interval(losses),
                "diverged": len(own.diverged),
            }
        )
    return finals


def _rates(study: Study) -> dict[str, Any] | None:
    """The mean loss of each variant at each value that was tried."""
    every = audits(study)
    if not every or study.rate is None:
        return None
    places = {variant.name: place for place, variant in enumerate(study.variants)}
    lines = []
    for audit in every:
        chosen = (audit.variant.tuned.best if audit.variant.tuned else None) or {}
        points = {r: loss for r, loss in audit.losses.items() if r not in audit.lost}
        lines.append(
            {
                "variant": places[audit.variant.name],
                "rates": list(points),
                "losses": list(points.values()),
                "diverged": sorted(audit.diverged),
                "best": chosen.get(study.rate),
            }
        )
    return {
        "key": escape_label(study.rate),
        "ticks": sorted(study.tune[study.rate]),
        "log": min(study.tune[study.rate]) > 0,
        "lines": lines,
    }


# -------------------------------------------------------------------------------------- loss curves


def _curves(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, Any]:
    """The loss that comes first, the range of each loss, and each variant's curves."""
    every: dict[str, list[Curve]] = {key: [] for key in LOSS_KEYS}
    variants = [_variant_curves(variant, rows, every) for variant in findings.study.variants]
    evaluated = [len(curve.loss) for curve in every["val/loss"]]
    missing = len(every["train/loss"]) - len(evaluated)
    return {
        "first": shown_loss([*evaluated, *[0] * missing]),
        "ranges": {key: loss_range(curves) for key, curves in every.items() if curves},
        "variants": variants,
    }


def _variant_curves(
    variant: Variant, rows: Mapping[Path, Rows], every: dict[str, list[Curve]]
) -> dict[str, Any]:
    runs, means = [], {}
    for key, curves in every.items():
        finished = []
        for member in variant.results:
            curve = loss_curve(
                rows.get(member.folder, ()), key, member.status == "diverged", _POINTS
            )
            if curve is None:
                continue
            curves.append(curve)
            runs.append({"key": key, **_run_words(member), **_arrays(curve)})
            if member.status == "finished":
                finished.append(curve)
        if average := mean_curve(finished):
            means[key] = _arrays(average)
    run = next((member.run for member in variant.results if member.run), None)
    flops = [run.flops_per_token for run in variant.ended if run.flops_per_token]
    return {
        "runs": runs,
        "means": means,
        "tokens_per_step": _tokens_per_step(run) if run else None,
        "flops_per_token": flops[0] if flops else None,
    }


def _run_words(member: StudyRun) -> dict[str, Any]:
    state = "" if member.status == "finished" else f", {member.status}"
    text = f"seed {member.seed}{state}: {member.folder.name}"
    return {"text": escape_label(text), "diverged": member.status == "diverged"}


def _tokens_per_step(run: SavedRun) -> float | None:
    sizes = [run.value("trainer.batch_size"), run.value("model.context")]
    whole = all(isinstance(size, int) and 0 < size < 2**40 for size in sizes)
    return sizes[0] * sizes[1] if whole else None


def _arrays(curve: Curve) -> dict[str, Any]:
    seconds = [None if isnan(second) else round(second, 1) for second in curve.seconds.tolist()]
    return {
        "tokens": [round(tokens) for tokens in curve.tokens.tolist()],
        "loss": [round(loss, 5) for loss in curve.loss.tolist()],
        "seconds": seconds if any(second is not None for second in seconds) else [],
    }


# ---------------------------------------------------------------------------------- axes of numbers


def _number_axes(findings: Findings) -> list[dict[str, Any]]:
    """A chart for each axis with several numbers: mean final loss against it with Student's 95 %
    interval, a line for each combination of what varies besides."""
    study = findings.study
    charts = []
    for axis in study.axes:
        values = [variant.values.get(axis) for variant in study.variants]
        there = {float(value) for value in values if value is not None and finite(value)}
        if len(there) > 1:
            others = [other for other in study.axes if other != axis]
            low, high = min(there), max(there)
            charts.append(
                {
                    "axis": escape_label(axis),
                    "log": low > 0 and high / low >= 6,
                    "ticks": sorted(there),
                    "lines": _axis_lines(findings, axis, others),
                }
            )
    return charts


def _axis_lines(findings: Findings, axis: str, others: Sequence[str]) -> list[dict[str, Any]]:
    lines: dict[str, list[dict[str, Any]]] = {}
    for place, variant in enumerate(findings.study.variants):
        if not finite(variant.values.get(axis)):
            continue
        outcomes = findings.outcomes[variant.name]
        ended = [loss for seed, loss in outcomes.losses.items() if seed not in outcomes.diverged]
        lines.setdefault(label_on(variant, others), []).append(
            {
                "variant": place,
                "x": variant.values[axis],
                "loss": sum(ended) / len(ended) if ended else None,
                "half": half_interval(ended),
                "diverged": len(outcomes.diverged),
            }
        )
    return [
        {"name": escape_label(name), "points": sorted(points, key=lambda point: point["x"])}
        for name, points in lines.items()
    ]


def label_on(variant: Variant, axes: Sequence[str]) -> str:
    """The variant's values on the axes; nothing if it has none of them."""
    values = {axis: variant.values[axis] for axis in axes if axis in variant.values}
    return label(values) if values else ""


# ------------------------------------------------------------------------------------------- probes


def probe_data(study: Study, rows: Mapping[Path, Rows]) -> dict[str, Any] | None:
    """The values measured inside the models, by variant, block and step: means over seeds at steps
    that the variants have in common, as far as each got. None if nothing was measured."""
    probed = [_probed_rows(variant, rows) for variant in study.variants]
    common = [set.intersection(*map(set, runs)) if runs else set() for runs in probed]
    most = _FEW if len(study.variants) > _MANY else _STEPS
    steps = _spread(sorted(set().union(*common)), most)
    variants = [
        _probe_means(runs, [step for step in steps if step in there])
        for runs, there in zip(probed, common, strict=True)
    ]
    measured = {name for variant in variants if variant for name in variant["values"]}
    if not measured:
        return None
    names = [*filter(measured.__contains__, MEASURES), *sorted(measured - MEASURES.keys())]
    measures = [_measure(name, variants) for name in names]
    return {"steps": steps, "measures": measures, "variants": variants}


def _measure(name: str, variants: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    about = MEASURES.get(name, Measure(name, ""))
    parts = {part: None for v in variants if v for part in v["values"].get(name, {})}
    return {
        "name": name,
        "title": escape_label(about.title),
        "meaning": about.meaning,
        "log": about.log,
        "parts": sorted(parts),
    }


def _probed_rows(variant: Variant, rows: Mapping[Path, Rows]) -> list[dict[int, Mapping[str, Any]]]:
    """The rows with probes of its finished runs, or, where none has finished, of all that began."""
    finished = [member for member in variant.results if member.status == "finished"]
    runs = [_by_step(rows.get(member.folder, ())) for member in finished or variant.results]
    return [run for run in runs if run]


def _probe_means(
    runs: Sequence[Mapping[int, Mapping[str, Any]]], steps: Sequence[int]
) -> dict[str, Any] | None:
    """A variant's means at `steps`, at which all of its runs were measured."""
    if not runs:
        return None
    values: ProbeValues = {}
    for key in {key: None for run in runs for step in steps for key in run[step]}:
        place = place_of(key)
        if place is not None and (place.block or 0) < _BLOCKS:
            part, block = _part_and_block(place)
            seen = [[_finite_or_none(run[step].get(key)) for run in runs] for step in steps]
            values.setdefault(place.measure, {}).setdefault(escape_label(part), {})[
                escape_label(block)
            ] = [_mean(of) for of in seen]
    return {"steps": steps, "values": values}


def _part_and_block(place: Place) -> tuple[str, str]:
    """The part, and the block or what stands outside the blocks."""
    return (place.part, str(place.block)) if place.block is not None else ("", place.part)


def _by_step(rows: Rows) -> dict[int, Mapping[str, Any]]:
    return {
        row["step"]: row
        for row in rows
        if isinstance(row.get("step"), int) and any(place_of(key) for key in row)
    }


def _spread(steps: Sequence[int], most: int) -> list[int]:
    """`most` of them at even distances, the first and the last included."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _finite_or_none(value: Any) -> float | None:
    return value if finite(value) else None


def _mean(values: Sequence[float | None]) -> float | None:
    """None where a run has none: a mean of the others would be another quantity."""
    known = [value for value in values if value is not None]
    return float(f"{fmean(known):.4g}") if known and len(known) == len(values) else None
