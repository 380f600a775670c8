"""What was probed, as charts: one for each measure and part, a line for each block."""

from collections.abc import Iterable
from typing import Any

import wandb

from transformer_norms.measures import MEASURES, PREFIX, Place, place_of

_MOST_POINTS = 200  # of a line: each is a row of the table that W&B draws from

Lines = dict[str, tuple[list[int], list[float]]]


def charts(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """`charts/MEASURE` and `charts/MEASURE/PART`, of the rows of a metrics.jsonl."""
    found: dict[tuple[str, str], Lines] = {}
    probed = [row for row in rows if any(key.startswith(f"{PREFIX}/") for key in row)]
    for row in probed[:: -(-len(probed) // _MOST_POINTS) or 1]:
        for key, value in row.items():
            place = place_of(key)
            if place is None or value is None:
                continue
            chart, name = _where(place)
            tokens, values = found.setdefault(chart, {}).setdefault(name, ([], []))
            tokens.append(row["tokens"])
            values.append(value)
    return {
        "/".join(filter(None, ["charts", *chart])): _drawn(chart, lines)
        for chart, lines in sorted(found.items())
    }


def _where(place: Place) -> tuple[tuple[str, str], str]:
    """The chart, and the name of the line; what stands outside the blocks has one by name."""
    if place.block is None:
        return (place.measure, ""), place.part
    return (place.measure, place.part), f"block {place.block:02d}"  # W&B sorts them as words


def _drawn(chart: tuple[str, str], lines: Lines) -> Any:
    measure, part = chart
    title = MEASURES[measure].title if measure in MEASURES else measure
    names = sorted(lines)
    return wandb.plot.line_series(
        [lines[name][0] for name in names],
        [lines[name][1] for name in names],
        keys=names,
        title=f"{title} ({part})" if part else title,
        xname="tokens",
        split_table=True,
    )
