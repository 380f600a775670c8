"""The tables of the analyses of trained models, from the numbers that each wrote of each model.

An analysis reads weights, which are not committed. What it found in each model stands in
NAME/blocks_N/NAME_runs.csv; means, intervals and tests follow from that and from the packed runs.
"""

import csv
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from transformer_norms.analysis.trained import collapse, depth_use, mean_drift, quantization
from transformer_norms.analysis.trained.over_seeds import (
    Numbers,
    Quantity,
    compare_numbers,
    seed_tables,
)
from transformer_norms.analysis.trained.subjects import Subjects, read_subjects
from transformer_norms.run.reader import SavedRun, run_folders
from transformer_norms.text_tables import markdown_table

STUDY = "trained_models"
DEPTHS = (4, 16)
BITS = (8, 4)
NOISE = collapse.LOSSES | {"longer": collapse.OTHERS["longer"]} | collapse.ATTENTION


@dataclass(frozen=True)
class Asked:
    """Holds what a study asks of an analysis: the baseline of its differences, and its quantities.
    These are all that the command compares. `primary` was chosen before the models were trained."""

    primary: str
    baseline: str
    quantities: Mapping[str, Quantity]
    legend: str


ASKED = {
    "mean_drift": Asked(
        "chance", "norm=layernorm", mean_drift.QUANTITIES, mean_drift.LEGEND_OF_MEANS
    ),
    "quantization": Asked(
        "w4a4_row",
        "norm=layernorm",
        quantization.compared(BITS),
        f"Rise of the loss, nats per byte.{quantization.COMPARED}",
    ),
    "depth_use": Asked("rise", "placement=pre", depth_use.QUANTITIES, depth_use.LEGEND_OF_MEANS),
    "collapse": Asked("rise", "norm=layernorm", NOISE, f"{collapse.in_words(NOISE)}."),
}


def trained_text(home: Path, runs: Path) -> str:
    """The tables of an analysis, of each depth. `runs` has the unpacked runs of the study."""
    return "\n\n".join(part for depth in DEPTHS for part in _of_depth(home, runs, depth))


def primary_words(home: Path, runs: Path) -> str:
    """The differences of the primary quantity, of each depth."""
    return "; ".join(f"{depth} blocks: {_differences(home, runs, depth)}" for depth in DEPTHS)


def _differences(home: Path, runs: Path, depth: int) -> str:
    asked, (numbers, subjects) = ASKED[home.name], _read(home, runs, depth)
    found = compare_numbers(subjects, numbers, asked.quantities)
    digits = asked.quantities[asked.primary].digits
    return ", ".join(
        f"{variant} {c.difference:+.{digits}f} (95 % interval {c.low:+.{digits}f} to "
        f"{c.high:+.{digits}f}, p {c.p_holm:.2g})"
        for (variant, key), c in found.items()
        if key == asked.primary and None not in (c.difference, c.low, c.high, c.p_holm)
    )


def _of_depth(home: Path, runs: Path, depth: int) -> Iterator[str]:
    asked, (numbers, subjects) = ASKED[home.name], _read(home, runs, depth)
    yield f"{depth} blocks:"
    for rows, legend in seed_tables(subjects, numbers, asked.quantities, asked.legend):
        yield markdown_table(rows)
        yield legend


def _read(home: Path, runs: Path, depth: int) -> tuple[Numbers, Subjects]:
    """The numbers of the models of a depth, and which runs these are."""
    numbers = read_numbers(home / f"blocks_{depth}" / f"{home.name}_runs.csv")
    of_depth = [run for run in run_folders(runs) if SavedRun(run).value("model.depth") == depth]
    baseline = [ASKED[home.name].baseline]
    typed = Namespace(where=list(map(str, of_depth)), baseline=baseline, text=None)
    return numbers, read_subjects(typed, lambda *_: None)


def read_numbers(file: Path) -> Numbers:
    """The numbers of each model by variant and seed, as an analysis wrote them."""
    numbers: dict[str, dict[int | None, dict[str, float]]] = {}
    with open(file, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            name, seed = row.pop("model"), row.pop("seed")
            numbers.setdefault(name, {})[int(seed)] = {
                key: float(text) for key, text in row.items() if text
            }
    return numbers
