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
from transformer_norms.analysis.trained.over_seeds import Quantity, seed_tables
from transformer_norms.analysis.trained.subjects import Subjects, read_subjects
from transformer_norms.run.reader import SavedRun, run_folders
from transformer_norms.text_tables import markdown_table

STUDY = "trained_models"
DEPTHS = (4, 16)


@dataclass(frozen=True)
class Asked:
    """What a study asks of an analysis: the baseline of its differences, and its quantities."""

    baseline: str
    quantities: Mapping[str, Quantity]
    legend: str


ASKED = {
    "mean_drift": Asked("norm=layernorm", mean_drift.QUANTITIES, mean_drift.LEGEND_OF_MEANS),
    "quantization": Asked(
        "norm=layernorm",
        {
            "w4a4_row": Quantity("W4A4 row", 4),
            "w8a8_tensor": Quantity("W8A8 tensor", 5),
            "w4_row": Quantity("W4 row", 4),
            "outlier": Quantity("outlier", 2),
        },
        quantization.COMPARED.strip(),
    ),
    "depth_use": Asked("placement=pre", depth_use.QUANTITIES, depth_use.LEGEND_OF_MEANS),
    "collapse": Asked(
        "norm=layernorm", collapse.QUANTITIES, f"{collapse.in_words(collapse.QUANTITIES)}."
    ),
}


def trained_text(home: Path, runs: Path) -> str:
    """The tables of an analysis, of each depth. `runs` has the unpacked runs of the study."""
    return "\n\n".join(part for depth in DEPTHS for part in _of_depth(home, runs, depth))


def _of_depth(home: Path, runs: Path, depth: int) -> Iterator[str]:
    asked = ASKED[home.name]
    numbers = read_numbers(home / f"blocks_{depth}" / f"{home.name}_runs.csv")
    subjects = _subjects(runs, depth, asked.baseline)
    yield f"{depth} blocks:"
    for rows, legend in seed_tables(subjects, numbers, asked.quantities, asked.legend):
        yield markdown_table(rows)
        yield legend


def _subjects(runs: Path, depth: int, baseline: str) -> Subjects:
    of_depth = [run for run in run_folders(runs) if SavedRun(run).value("model.depth") == depth]
    typed = Namespace(where=list(map(str, of_depth)), baseline=[baseline], text=None)
    return read_subjects(typed, lambda *_: None)


def read_numbers(file: Path) -> dict[str, dict[int | None, dict[str, float]]]:
    """The numbers of each model by variant and seed, as an analysis wrote them."""
    numbers: dict[str, dict[int | None, dict[str, float]]] = {}
    with open(file, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            name, seed = row.pop("model"), row.pop("seed")
            numbers.setdefault(name, {})[int(seed)] = {
                key: float(text) for key, text in row.items() if text
            }
    return numbers
