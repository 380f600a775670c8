"""The peak memory of a training step: of the sizes of step.py, with activation checkpointing and
without, and with GPT-2's vocabulary beside transformers' GPT-2. Every number from a process of its
own, rounds interleaved; what was measured is written whole. Linux.

    python benchmarks/memory.py [--sizes A,B] [--checkpointing A,B] [--beside A,B] [--rounds N]
                                [--out FILE] [KEY=VALUE...]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from contenders import Size
from fresh import CHECKPOINTING, THEIRS, Point, measured
from rounds import check_out, write
from step import SIZES

from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live, track

DEPTHS = "12-256-256-8-257,24-256-256-8-257"
GPT2S = "4-256-256-8-50257"
MIB = 2**20
WITHOUT, WITH = "recipe, kept", "recipe, checkpointed"
GPT2 = "ours, preset=gpt2"
KEYS = ("over", "seconds")
SAME = ("size", "overrides", "model", "parameters", "threads", "state")  # in all rounds
Row = dict[str, Any]  # of one size and name, as the JSON holds it


def main(arguments: Sequence[str] | None = None) -> int:
    typed = parser().parse_intermixed_args(arguments)
    if typed.rounds < 2:
        print(f"--rounds {typed.rounds}: at least 2 are needed", file=sys.stderr)
        return 2
    try:
        check_out(typed.out)
        points = asked(typed)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        with Live() as live:
            todo = track(live, "process {:.0f}/{:.0f}", [p for _, p in points] * typed.rounds)
            found = [measured(point) for point in todo]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    rows = [row(name, found[i :: len(points)]) for i, (name, _) in enumerate(points)]
    print("\n".join(table(rows)))
    write(typed.out, {"overrides": typed.overrides, "rows": rows})
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The peak memory of a training step.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="what `recipe` is, beside its sizes")
    add("--sizes", default=SIZES, metavar="DEPTH-WIDTH-CONTEXT-BATCH-VOCABULARY,...")
    add("--checkpointing", default=DEPTHS, metavar="SIZES", help="with it and without")
    add("--beside", default=GPT2S, metavar="SIZES", help="beside transformers' GPT-2")
    add("--rounds", type=int, default=3, help="processes for each row")
    add("--out", type=Path, metavar="FILE.json", help="every process's numbers, machine, versions")
    return parser


def asked(typed: argparse.Namespace) -> list[tuple[str, Point]]:
    """Every row's name and point. ConfigError where a size or an override is wrong."""
    own, gpt2 = tuple(typed.overrides), ("preset=gpt2",)
    points = [("recipe", Point(size, own)) for size in sizes(typed.sizes)]
    for size in sizes(typed.checkpointing):
        points += [(WITHOUT, Point(size, (*own, f"{CHECKPOINTING}=false")))]
        points += [(WITH, Point(size, (*own, f"{CHECKPOINTING}=true")))]
    for size in sizes(typed.beside):
        points += [(THEIRS, Point(size, gpt2, THEIRS)), (GPT2, Point(size, gpt2))]
    for _, point in points:
        compose([*Size.read(point.size).overrides(), *point.overrides])
    return points


def sizes(text: str) -> list[str]:
    """Of a list that may be empty."""
    return [str(Size.read(each)) for each in text.split(",")] if text else []


def row(name: str, rounds: Sequence[Row]) -> Row:
    """The rounds of one row together. `over` is in bytes, by round: what a step takes over the
    weights, gradients and AdamW's moments."""
    first = rounds[0]
    assert all(one[key] == first[key] for one in rounds for key in SAME)
    return {
        "name": name,
        **{key: first[key] for key in SAME},
        "over": [one["above"] - one["state"] for one in rounds],
        "above": [one["above"] for one in rounds],
        "seconds": [median(one["seconds"]) for one in rounds],
    }


def table(rows: list[Row]) -> list[str]:
    """Under 80 columns. The second of a pair also has its ratio to the first."""
    lines, shown = [], ""
    for i, row in enumerate(rows):
        if row["size"] != shown:
            shown = row["size"]
            lines += [f"\n{shown}: weights, gradients and moments {row['state'] / MIB:,.0f} MiB"]
            lines += [
                f"{'':21}{'MiB over':>9}{'quartiles':>20}{'ratio':>7}{'ms a step':>11}{'ratio':>7}"
            ]
        low, middle, high = (x / MIB for x in quantiles(row["over"], method="inclusive"))
        paired = i > 0 and row["name"] in (WITH, GPT2)
        memory, time = (ratio(row, rows[i - 1], key) if paired else "" for key in KEYS)
        lines.append(
            f"{row['name']:21}{middle:9,.1f}{f'{low:,.1f} to {high:,.1f}':>20}{memory:>7}"
            f"{1e3 * median(row['seconds']):11,.1f}{time:>7}"
        )
    return lines


def ratio(row: Row, other: Row, key: str) -> str:
    """The median of the ratios round by round."""
    return f"{median(a / b for a, b in zip(row[key], other[key], strict=True)):.3f}"


if __name__ == "__main__":
    sys.exit(main())
