"""How the time and the peak memory of a training step grow with depth, context and vocabulary, and
the time to build the model. Every point from a process of its own; what was measured is written
whole. Linux.

    python benchmarks/growth.py [--depths A,B] [--contexts A,B] [--vocabularies A,B] [--out FILE]
                                [KEY=VALUE...]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from statistics import linear_regression, median, quantiles
from typing import Any, NamedTuple

from contenders import Size
from fresh import CHECKPOINTING, Point, measured
from rounds import check_out, write

from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live, track

TOKENS = 4096  # a step, whatever the context
BOTH = 64  # blocks: to here without activation checkpointing, from here on with it
MIB = 2**20
Row = dict[str, Any]  # of one point, as the JSON holds it


class Axis(NamedTuple):
    """What grows: `size` of a value, and into how many of a `unit` a step's time is divided."""

    about: str
    size: Callable[[int], str]
    unit: str
    units: Callable[[int], int]
    usual: str


AXES = {
    "depths": Axis(
        "N-64-32-4-257", lambda n: f"{n}-64-32-4-257", "block", lambda n: n, "1,4,16,64,256,1000"
    ),
    "contexts": Axis(
        f"2-128-N-{TOKENS}/N-257",
        lambda n: f"2-128-{n}-{TOKENS // n}-257",
        "token",
        lambda n: TOKENS // n * n,
        "64,128,256,512,1024,2048,4096",
    ),
    "vocabularies": Axis(
        "2-128-128-8-N", lambda n: f"2-128-128-8-{n}", "row", lambda n: n, "257,4096,50257,131072"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    typed = parser().parse_intermixed_args(arguments)
    try:
        check_out(typed.out)
        points = {name: asked(name, getattr(typed, name), typed.overrides) for name in AXES}
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    results = {}
    try:
        for name in [name for name in AXES if points[name]]:
            with Live() as live:
                todo = track(live, name + ", process {:.0f}/{:.0f}", points[name])
                rows = [row(name, value, measured(point)) for value, point in todo]
            results[name] = {"rows": rows, **exponents(rows)}
            print("\n".join(table(name, results[name])), flush=True)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    write(typed.out, {"overrides": typed.overrides, **results})
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How a training step's time and memory grow.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="the run, beside its sizes")
    for name, axis in AXES.items():
        add(f"--{name}", default=axis.usual, metavar="A,B,...", help=axis.about)
    add("--out", type=Path, metavar="FILE.json", help="every step's time, machine, versions")
    return parser


def asked(name: str, text: str, overrides: Sequence[str]) -> list[tuple[int, Point]]:
    """The points of an axis, smallest first. ConfigError where a value or an override is wrong."""
    values = text.split(",") if text else []
    if not all(value.isdecimal() and int(value) > 0 for value in values):
        raise ConfigError(f"--{name} {text}: numbers above 0 as in {AXES[name].usual}")
    points = []
    for value in sorted({int(value) for value in values}):
        if name == "contexts" and value > TOKENS:
            raise ConfigError(f"--contexts {value}: at most {TOKENS}, which a step has")
        for own in kinds(name, value):
            size = AXES[name].size(value)
            point = Point(size, (*own, *overrides), warm=1, steps=5)
            compose([*Size.read(size).overrides(), *point.overrides])
            points.append((value, point))
    return points


def kinds(name: str, value: int) -> list[tuple[str, ...]]:
    """Without activation checkpointing, with it, or both."""
    if name != "depths":
        return [()]
    without = [()] if value <= BOTH else []
    return [*without, *([(f"{CHECKPOINTING}=true",)] if value >= BOTH else [])]


def row(name: str, value: int, one: Row) -> Row:
    middle = median(one["seconds"])
    return {
        "value": value,
        "checkpointed": f"{CHECKPOINTING}=true" in one["overrides"],
        **one,
        "median": middle,
        "of_unit": middle / AXES[name].units(value),
    }


def exponents(rows: list[Row]) -> dict[str, float | None]:
    """Of the time and of the memory over the larger half of the values, where checkpointing is as
    at the largest."""
    values = sorted({row["value"] for row in rows})
    half = [
        row
        for row in rows
        if row["value"] in values[len(values) // 2 :]
        and row["checkpointed"] == rows[-1]["checkpointed"]
    ]
    at = [row["value"] for row in half]
    return {
        "exponent": exponent(at, [row["median"] for row in half]),
        "exponent_of_memory": exponent(at, [row["above"] for row in half]),
    }


def exponent(values: Sequence[float], measured: Sequence[float]) -> float | None:
    """p of the least-squares c * value ** p on logarithms; None of fewer than two values."""
    if len(values) < 2 or min(measured) <= 0:
        return None
    return linear_regression([log(x) for x in values], [log(y) for y in measured]).slope


def table(name: str, result: Row) -> list[str]:
    """Under 80 columns."""
    lines = [
        f"\n{name}: {AXES[name].about}",
        f"{'':11}{'build ms':>9}{'first ms':>10}{'ms a step':>11}{'quartiles':>18} "
        f"{'us a ' + AXES[name].unit:>10}{'MiB':>8}",
    ]
    for row in result["rows"]:
        low, middle, high = (1e3 * value for value in quantiles(row["seconds"], method="inclusive"))
        mark = " *" if row["checkpointed"] else ""
        lines.append(
            f"{row['value']:>9}{mark:2}{1e3 * row['building']:9.0f}{1e3 * row['first']:10.0f}"
            f"{middle:11.1f}{f'{low:.1f} to {high:.1f}':>19}{1e6 * row['of_unit']:10.2f}"
            f"{row['above'] / MIB:8.0f}"
        )
    if any(row["checkpointed"] for row in result["rows"]):
        lines.append("* with activation checkpointing")
    half = {"time": result["exponent"], "memory": result["exponent_of_memory"]}
    shown = [f"of {key} {p:.2f}" for key, p in half.items() if p is not None]
    return [*lines, *(["exponent over the larger half: " + ", ".join(shown)] if shown else [])]


if __name__ == "__main__":
    sys.exit(main())
