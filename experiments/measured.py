"""python experiments/measured.py   writes init_gradients.csv and width/coordinate_check.csv anew

These measurements need no saved run, and take two minutes of two cores. The report of all studies
reads their CSV files, and those of norm_removal.
"""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from transformer_norms.analysis import coordinate_check, init_gradients, init_measures
from transformer_norms.analysis.coordinate_check import PARTS
from transformer_norms.analysis.init_measures import Setting, bound, read_setting
from transformer_norms.analysis.norm_removal import CURVES, RESULTS, WITHOUT
from transformer_norms.analysis.norm_tuning import CONTROL, Cost, Tuning
from transformer_norms.comparison.sweep_record import label
from transformer_norms.sweep.question import read_request

HERE = Path(__file__).parent
BLOCKS, CHANGES = "init_gradients.csv", "coordinate_check.csv"
XIONG = [
    "norm=layernorm",  # the theorem's
    "placement=pre,post,deepnorm,sandwich,out,hybrid,normformer,mixln", "seed=range(0,10)"
]  # fmt: skip
Rows = list[dict[str, str]]
WIDTHS, STEPS = ["model.width=64,128,256,512", "seed=0,1"], 5


def measure_blocks() -> bytes:
    """The gradients and streams of every block of the models of XIONG."""
    return init_gradients.csv_file(init_measures.measure_variants(read_setting(XIONG, xiong=True)))


def measure_changes(widths: Sequence[str] = WIDTHS) -> bytes:
    """The coordinate check of each rule of configs/sweep/width.yaml."""
    checked = []
    for values in read_request(["sweep=width"]).question.variants:
        typed = [f"{key}={value}" for key, value in values.items()]
        _, configs = coordinate_check.read_variants([*widths, *typed])
        (variant,) = coordinate_check.measure(configs, STEPS)
        checked.append(replace(variant, name=label(values)))
    return coordinate_check.csv_file(checked)


def read_blocks(setting: Setting, folder: Path) -> list[init_measures.Variant]:
    """What `measure_blocks` measured of the models of a setting."""
    variants = []
    groups = _read_groups(folder / BLOCKS, "variant", "depth")
    for name, configs in setting.variants.items():
        blocks = {
            depth: _numbers(groups[name, str(depth)], ("down", "output", "square"))
            .reshape(len(setting.seeds), depth, -1)
            for depth in setting.depths
        }  # fmt: skip
        variants.append(init_measures.Variant(name, setting.seeds, blocks, bound(configs[0])))
    return variants


def read_changes(folder: Path) -> list[coordinate_check.Variant]:
    """What `measure_changes` measured."""
    checked = []
    for (name,), rows in _read_groups(folder / CHANGES, "variant").items():
        widths = list(dict.fromkeys(int(row["width"]) for row in rows))
        numbers = _numbers(rows, PARTS).reshape(len(widths), -1, len(PARTS))
        changes = {part: numbers[:, :, n] for n, part in enumerate(PARTS)}
        checked.append(coordinate_check.Variant(name, widths, changes))
    return checked


def _numbers(rows: Rows, columns: Sequence[str]) -> np.ndarray:
    return np.array([[float(row[column]) for column in columns] for row in rows])


def read_costs(folder: Path) -> list[Cost]:
    """What an analysis of the removal of norms measured."""
    stages, curves = (_read_groups(folder / name, "run", "seed") for name in (RESULTS, CURVES))
    costs = []
    for (name, seed), own in stages.items():
        rounding, diverged = own[-1]["rounding"], own[-1]["diverged"]
        reasons = dict(part.split(": ", 1) for part in diverged.split("; ") if part)
        removed = _tuning("loss", own, curves[name, seed], reasons.get(WITHOUT, ""))
        control = _tuning("loss_control", own, curves[name, seed], reasons.get(CONTROL, ""))
        costs.append(Cost(name, int(seed), removed, control, float(rounding) if rounding else None))
    return costs


def _tuning(loss: str, stages: Rows, curves: Rows, diverged: str) -> Tuning:
    reached = [row for row in stages if row[f"val_{loss}"]]
    return Tuning(
        {row["stage"]: int(row["step"]) for row in reached},
        {row["stage"]: float(row[f"val_{loss}"]) for row in reached},
        [float(row[f"train_{loss}"]) for row in curves if row[f"train_{loss}"]],
        diverged,
    )


def _read_groups(file: Path, *keys: str) -> dict[tuple[str, ...], Rows]:
    """The rows of a CSV file, by their values of some columns."""
    groups: dict[tuple[str, ...], Rows] = {}
    with open(file, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def main() -> None:
    (HERE / "init_gradients" / BLOCKS).write_bytes(measure_blocks())
    (HERE / "width" / CHANGES).write_bytes(measure_changes())


if __name__ == "__main__":
    main()
