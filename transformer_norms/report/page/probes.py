"""What was measured inside the models, by variant, block and step: means over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from transformer_norms.report.escape import label_text
from transformer_norms.report.losses import Rows
from transformer_norms.report.study import Study, Variant, finite
from transformer_norms.training.measures import MEASURES, Measure, Place, place_of

_STEPS, _FEW, _MANY = 25, 10, 12  # steps that are kept; with more than so many variants, fewer
_BLOCKS = 256  # of a model, at most
# measure -> part -> block -> a value for each step
Values = dict[str, dict[str, dict[str, list[float | None]]]]


def probes(study: Study, rows: Mapping[Path, Rows]) -> dict[str, Any] | None:
    """For the page's script, of steps that variants have in common, as far as each got; None where
    nothing was measured."""
    looked = [_looked(variant, rows) for variant in study.variants]
    whole = [set.intersection(*map(set, found)) if found else set() for found in looked]
    most = _FEW if len(study.variants) > _MANY else _STEPS
    steps = _spread(sorted(set().union(*whole)), most)
    variants = [
        _variant(found, [step for step in steps if step in there])
        for found, there in zip(looked, whole, strict=True)
    ]
    found = {name for variant in variants if variant for name in variant["values"]}
    if not found:
        return None
    names = [*filter(found.__contains__, MEASURES), *sorted(found - MEASURES.keys())]
    measures = [_measure(name, variants) for name in names]
    return {"steps": steps, "measures": measures, "variants": variants}


def _measure(name: str, variants: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    about = MEASURES.get(name, Measure(name, ""))
    parts = {part: None for v in variants if v for part in v["values"].get(name, {})}
    return {
        "name": name,
        "title": label_text(about.title),
        "meaning": about.meaning,
        "log": about.log,
        "parts": sorted(parts),
    }


def _looked(variant: Variant, rows: Mapping[Path, Rows]) -> list[dict[int, Mapping[str, Any]]]:
    """The rows with probes of its finished runs, or, where none has finished, of all that began."""
    finished = [member for member in variant.results if member.status == "finished"]
    looked = [_by_step(rows.get(member.folder, ())) for member in finished or variant.results]
    return [found for found in looked if found]


def _variant(
    looked: Sequence[Mapping[int, Mapping[str, Any]]], steps: Sequence[int]
) -> dict[str, Any] | None:
    """Its means at `steps`, at which all of its runs were looked at."""
    if not looked:
        return None
    values: Values = {}
    for key in {key: None for found in looked for step in steps for key in found[step]}:
        place = place_of(key)
        if place is not None and (place.block or 0) < _BLOCKS:
            part, block = _where(place)
            seen = [[_number(found[step].get(key)) for found in looked] for step in steps]
            values.setdefault(place.measure, {}).setdefault(label_text(part), {})[
                label_text(block)
            ] = [_mean(of) for of in seen]
    return {"steps": steps, "values": values}


def _where(place: Place) -> tuple[str, str]:
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


def _number(value: Any) -> float | None:
    return value if finite(value) else None


def _mean(values: Sequence[float | None]) -> float | None:
    """None where a run has none: a mean of the others would be another quantity."""
    known = [value for value in values if value is not None]
    return float(f"{fmean(known):.4g}") if known and len(known) == len(values) else None
