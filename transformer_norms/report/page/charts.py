"""The data of a page's charts, for its script. The names are escaped for plotly."""

from collections.abc import Collection, Mapping, Sequence
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.sweep_record import label
from transformer_norms.data.ngrams import ngram_name
from transformer_norms.report.figures import short_name
from transformer_norms.report.findings import LOSSES, Findings
from transformer_norms.report.rates import rate_lines
from transformer_norms.report.regime import TUNED_ON, shared_lines
from transformer_norms.report.study import (
    LOSS_KEYS,
    Curve,
    Rows,
    Study,
    StudyRun,
    Variant,
    enough_evaluations,
    finite,
    loss_curve,
    loss_range,
    mean_curve,
)
from transformer_norms.text_tables import escape_label, file_name
from transformer_norms.training.measures import MEASURES, Measure, place_of

_SHORT = 16  # characters of a name beside a narrow chart
_POINTS = 150  # of one curve, at most
_STEPS, _FEW, _MANY = (
    25,
    10,
    12,
)  # steps of a variant, and steps where there are more variants than _MANY
_BLOCKS = 256  # of a model, at most
# measure -> part -> block -> a value for each step
ProbeValues = dict[str, dict[str, dict[str, list[float | None]]]]


def chart_data(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, Any]:
    """The data of every chart. Lists by variant have the order of the study's variants."""
    study = findings.study
    return {
        "home": file_name(study.home.resolve().name) or "study",
        "names": [escape_label(variant.name) for variant in study.variants],
        "short": [*map(escape_label, _short_names([v.name for v in study.variants]))],
        "loss": LOSSES[findings.loss],
        "ngrams": {
            "final": _ngram_lines(study, findings.loss),
            "validation": _ngram_lines(study, TUNED_ON),
        },
        "curves": _curves(findings, rows),
        "finals": [_finals(findings, variant) for variant in study.variants],
        "rates": _rates(study),
        "axes": number_axes(findings),
        "probes": probe_data(study, rows),
    }


def _short_names(names: Sequence[str]) -> list[str]:
    """Names for a narrow chart; one that two would have stays whole."""
    short = [short_name(name, _SHORT) for name in names]
    return [one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)]


def _ngram_lines(study: Study, loss: str) -> list[dict[str, Any]]:
    lines = enumerate(shared_lines(study, loss), start=1)
    return [{"name": ngram_name(order), "loss": round(loss, 5)} for order, loss in lines]


def _finals(findings: Findings, variant: Variant) -> dict[str, Any]:
    """The final loss of every seed that trained, their mean and Student's interval."""
    folders = {member.seed: member.folder.name for member in variant.results}
    outcomes = findings.outcomes[variant.name]
    losses = list(outcomes.losses.values())
    return {
        "losses": losses,
        "texts": [escape_label(f"seed {seed}: {folders[seed]}") for seed in outcomes.losses],
        "mean": outcomes.mean,
        "half": outcomes.half,
        "failed": len(outcomes.failed),
        "ended": outcomes.ended,
    }


# -------------------------------------------------------------------------------------- loss curves


def _curves(findings: Findings, rows: Mapping[Path, Rows]) -> dict[str, Any]:
    """The loss that comes first, the range of each loss, and each variant's curves."""
    study = findings.study
    by_variant = [
        _thinned_curves(variant, findings.outcomes[variant.name], rows)
        for variant in study.variants
    ]
    every = {
        key: [curve for curves in by_variant for own, _, curve in curves if own == key]
        for key in LOSS_KEYS
    }
    evaluated = [len(curve.loss) for curve in every["val/loss"]]
    enough = enough_evaluations([*evaluated, *[0] * (len(every["train/loss"]) - len(evaluated))])
    return {
        "first": "val/loss" if enough else "train/loss",
        "points": _POINTS,
        "ranges": {key: loss_range(curves) for key, curves in every.items() if curves},
        "variants": [
            _variant_curves(variant, curves)
            for variant, curves in zip(study.variants, by_variant, strict=True)
        ],
    }


def _thinned_curves(
    variant: Variant, outcomes: Outcomes, rows: Mapping[Path, Rows]
) -> list[tuple[str, StudyRun, Curve]]:
    """The loss, the run and the curve of each line in a chart, with few points."""
    return [
        (key, member, curve)
        for key in LOSS_KEYS
        for member in variant.results
        if (
            curve := loss_curve(
                rows.get(member.folder, ()), key, member.seed in outcomes.failed, _POINTS
            )
        )
    ]


def _variant_curves(
    variant: Variant, curves: Sequence[tuple[str, StudyRun, Curve]]
) -> dict[str, Any]:
    means = {
        key: mean_curve([c for own, run, c in curves if own == key and run.ended and not c.failed])
        for key in LOSS_KEYS
    }
    return {
        "runs": [
            {"key": key, **_run_words(run, curve), **_arrays(curve)} for key, run, curve in curves
        ],
        "means": {key: _arrays(mean) for key, mean in means.items() if mean},
        "tokens_per_step": variant.tokens_per_step,
        "flops_per_token": variant.flops_per_token,
    }


def _run_words(member: StudyRun, curve: Curve) -> dict[str, Any]:
    state = "" if member.status == "finished" else f", {member.status}"
    state = f"{state}, failed to train" if curve.failed else state
    text = f"seed {member.seed}{state}: {member.folder.name}"
    return {"text": escape_label(text), "failed": curve.failed}


def _arrays(curve: Curve) -> dict[str, Any]:
    seconds = [None if isnan(second) else round(second, 1) for second in curve.seconds.tolist()]
    return {
        "tokens": [round(tokens) for tokens in curve.tokens.tolist()],
        "loss": [round(loss, 5) for loss in curve.loss.tolist()],
        "seconds": seconds if any(second is not None for second in seconds) else [],
    }


# --------------------------------------------------------------------------- losses against numbers


def _chart_against(
    key: str, ticks: Collection[float], log: bool, lines: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A chart of losses against a number. Each line has a name, the place of its style, and points
    of a variant: x, the mean loss (None where no run trained), half its interval, the losses by
    seed, and how many of the runs that ended have failed.
    """
    return {"key": escape_label(key), "ticks": sorted(ticks), "log": log, "lines": lines}


def _rates(study: Study) -> dict[str, Any] | None:
    """Every tuning run of each variant at each rate, and the means."""
    every, key = rate_lines(study), study.rate
    if not every or key is None:
        return None
    lines = []
    for line in every:
        points = [_point(line.place, rate, outcomes) for rate, outcomes in line.outcomes.items()]
        name = escape_label(line.variant.name)
        lowest = line.lowest if line.means else None
        lines.append(
            {
                "name": name,
                "place": line.place,
                "points": points,
                "best": line.chosen,
                "lowest": lowest,
            }
        )
    rates = [*study.tune[key], *(rate for line in every for rate in line.outcomes)]
    return _chart_against(key, study.tune[key], min(rates) > 0, lines)


def number_axes(findings: Findings) -> list[dict[str, Any]]:
    """A chart for each axis with several numbers: mean final loss against it with Student's 95 %
    interval, a line for each combination of values on the remaining axes."""
    study = findings.study
    charts = []
    for axis in study.axes:
        values = [variant.values.get(axis) for variant in study.variants]
        numbers = {float(value) for value in values if value is not None and finite(value)}
        if len(numbers) > 1:
            log = min(numbers) > 0 and max(numbers) / min(numbers) >= 6
            charts.append(_chart_against(axis, numbers, log, _axis_lines(findings, axis)))
    return charts


def _axis_lines(findings: Findings, axis: str) -> list[dict[str, Any]]:
    rest = [name for name in findings.study.axes if name != axis]
    lines: dict[str, list[dict[str, Any]]] = {}
    for place, variant in enumerate(findings.study.variants):
        if not finite(variant.values.get(axis)):
            continue
        outcomes = findings.outcomes[variant.name]
        point = _point(place, variant.values[axis], outcomes) | {"half": outcomes.half}
        lines.setdefault(label_on(variant, rest), []).append(point)
    return [
        {
            "name": escape_label(name or LOSSES[findings.loss]),
            "place": place,
            "points": sorted(points, key=lambda point: point["x"]),
        }
        for place, (name, points) in enumerate(lines.items())
    ]


def _point(variant: int, x: Any, outcomes: Outcomes) -> dict[str, Any]:
    return {
        "variant": variant,
        "x": x,
        "loss": outcomes.mean,
        "half": None,
        "losses": list(outcomes.losses.values()),
        "seeds": list(outcomes.losses),
        "failed": len(outcomes.failed),
        "ended": outcomes.ended,
    }


def label_on(variant: Variant, axes: Sequence[str]) -> str:
    """The variant's values on the axes; nothing if it has none of them."""
    values = {axis: variant.values[axis] for axis in axes if axis in variant.values}
    return label(values) if values else ""


# ------------------------------------------------------------------------------------------- probes


def probe_data(study: Study, rows: Mapping[Path, Rows]) -> dict[str, Any] | None:
    """The probes by variant, block and step: means over the seeds, at steps at which all runs of a
    variant were measured. None if there are no probes."""
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
    parts = {part for variant in variants if variant for part in variant["values"].get(name, {})}
    return {
        "name": name,
        "title": escape_label(about.title),
        "meaning": about.meaning,
        "log": about.log,
        "parts": sorted(parts),
    }


def _probed_rows(variant: Variant, rows: Mapping[Path, Rows]) -> list[dict[int, Mapping[str, Any]]]:
    """The rows with probes of the runs that finished; of all runs if none has finished."""
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
        if place is None or (place.block or 0) >= _BLOCKS:
            continue
        inside = place.block is not None
        part, block = (place.part, str(place.block)) if inside else ("", place.part)
        blocks = values.setdefault(place.measure, {}).setdefault(escape_label(part), {})
        blocks[escape_label(block)] = [
            _mean([run[step].get(key) for run in runs]) for step in steps
        ]
    return {"steps": steps, "values": values}


def _by_step(rows: Rows) -> dict[int, Mapping[str, Any]]:
    return {
        row["step"]: row
        for row in rows
        if isinstance(row.get("step"), int) and any(place_of(key) for key in row)
    }


def _spread(steps: Sequence[int], most: int) -> list[int]:
    """At most `most` of the steps, evenly spread, the first and the last included."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _mean(values: Sequence[Any]) -> float | None:
    """The mean. None unless every run has a number: a mean of the others is another quantity."""
    return float(f"{fmean(values):.4g}") if values and all(map(finite, values)) else None
