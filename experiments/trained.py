"""The tables of the analyses of trained models, from the numbers that each wrote of each model.

An analysis reads weights, which are not committed. What it found in each model stands in
NAME/blocks_N/NAME_runs.csv; means, intervals and tests follow from that and from the packed runs.
"""

import csv
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from scipy import special

from transformer_norms.analysis.trained import collapse, depth_use, mean_drift, quantization
from transformer_norms.analysis.trained.over_seeds import (
    Numbers,
    Quantities,
    Quantity,
    compare_numbers,
    seed_tables,
)
from transformer_norms.analysis.trained.subjects import Subjects, read_subjects
from transformer_norms.comparison.statistics import LEVEL, deviation, holm
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.run.reader import SavedRun, run_folders
from transformer_norms.text_tables import markdown_table

STUDY = "trained_models"
DEPTHS = (4, 16)
BITS = (8, 4)
NOISE = collapse.LOSSES | {"longer": collapse.OTHERS["longer"]} | collapse.ATTENTION


@dataclass(frozen=True)
class Later:
    """Differences that were asked for after the results had been seen: a family of its own, of both
    depths. `said` puts them into the row of the claim, if it is not empty."""

    words: str
    baseline: str
    quantities: Quantities
    said: str = ""


@dataclass(frozen=True)
class Level:
    """A number of a model, `of` its numbers, which is held `against` another one. `said`
    puts it into the row of the claim, if it is not empty."""

    quantity: Quantity
    of: Callable[[Mapping[str, float]], float]
    against: float
    said: str = ""


@dataclass(frozen=True)
class Asked:
    """Holds what a study asks of an analysis: the baseline of its differences, and its quantities.
    These are all that the command compares. `primary` was chosen before the models were trained.
    The quantities `beside` are shown. `later` and `levels` were added after the results."""

    primary: str
    baseline: str
    quantities: Quantities
    legend: str
    beside: Quantities = field(default_factory=dict)
    later: Later | None = None
    levels: tuple[Level, ...] = ()


ASKED = {
    "mean_drift": Asked(
        "chance",
        "norm=layernorm",
        mean_drift.QUANTITIES,
        mean_drift.LEGEND_OF_MEANS,
        beside=mean_drift.BESIDE,
        levels=(
            Level(
                Quantity("share / chance", 3),
                lambda numbers: numbers["chance"],
                1.0,
                "the level itself, which a random direction has at 1",
            ),
            Level(Quantity("at norms / chance", 3), lambda numbers: numbers["norms_chance"], 1.0),
        ),
    ),
    "quantization": Asked(
        "w4a4_row",
        "norm=layernorm",
        quantization.compared(BITS),
        f"Rise of the loss, nats per byte.{quantization.COMPARED}",
    ),
    "depth_use": Asked(
        "rise",
        "placement=pre",
        depth_use.QUANTITIES,
        depth_use.LEGEND_OF_MEANS,
        beside=depth_use.MUTED,
        later=Later(
            "blocks are muted: their sub-layers add nothing, and their norms on the stream stay",
            "placement=pre",
            {"rise_muted": depth_use.MUTED["rise_muted"]},
            "HybridNorm has a norm on the stream in each block; where norms stay and sub-layers "
            "add nothing",
        ),
    ),
    "collapse": Asked(
        "rise",
        "norm=layernorm",
        NOISE,
        f"{collapse.in_words(NOISE)}.",
        later=Later(
            "the distance of attention by placement",
            "placement=pre",
            {"distance": NOISE["distance"]},
        ),
        levels=(
            Level(
                Quantity("by length, % - changed, %", 2),
                lambda numbers: numbers["changed_length"] - numbers["changed"],
                0.0,
            ),
        ),
    ),
}


# Of each depth: the numbers of its models, and which runs these are.
Read = Mapping[int, tuple[Numbers, Subjects]]


def trained_text(home: Path, runs: Path) -> str:
    """The declared differences, the tables of an analysis at each depth, and what was added later.
    `runs` has the unpacked runs of the study."""
    asked = ASKED[home.name]
    read = _read(home, runs, asked.baseline)
    parts = [_declared_text(asked, read)]
    for depth, (numbers, subjects) in read.items():
        parts.append(f"{depth} blocks:")
        quantities = {**asked.quantities, **asked.beside}
        for rows, legend in seed_tables(
            subjects, numbers, quantities, asked.legend, asked.quantities
        ):
            parts += [markdown_table(rows), legend]
    parts += [_level_text(level, read) for level in asked.levels]
    if asked.later is not None:
        parts.append(_later_text(asked.later, _read(home, runs, asked.later.baseline)))
    return "\n\n".join(parts)


def claim_words(home: Path, runs: Path) -> str:
    """The declared differences of each depth, and what has to be read with them."""
    asked = ASKED[home.name]
    read = _read(home, runs, asked.baseline)
    digits = asked.quantities[asked.primary].digits
    declared = _declared(asked, read)
    parts = [_in_words([(one.depth, one.variant, one.comparison) for one in declared], digits)]
    least = min(declared, key=lambda one: one.alone)
    parts.append(
        f"p after Holm over all differences of a command, as declared; the smallest is "
        f"{least.command:.2g} so, {least.declared:.2g} over the {len(declared)} declared ones of "
        f"both commands, {least.all:.2g} over all of both"
    )
    parts += [_level_words(level, read) for level in asked.levels if level.said]
    if asked.later is not None and asked.later.said:
        later, [*_, key] = asked.later, asked.later.quantities
        found = _compared(_read(home, runs, later.baseline), {key: later.quantities[key]})
        each = [(depth, variant, c) for (depth, variant, _), c in found.items()]
        parts.append(f"{later.said}: {_in_words(each, later.quantities[key].digits, False)}")
    return "; ".join(parts)


def _in_words(each: Iterable[tuple[int, str, Comparison]], digits: int, tested: bool = True) -> str:
    depths: dict[int, list[str]] = {}
    for depth, variant, c in each:
        mean, low, high = (f"{x:+.{digits}f}" for x in (c.difference, c.low, c.high))  # type: ignore[str-format]
        p = f", p {c.p_holm:.2g}" if tested else ""
        text = f"{variant} {mean} (95 % interval {low} to {high}{p})"
        depths.setdefault(depth, []).append(text)
    return "; ".join(f"{depth} blocks: {', '.join(texts)}" for depth, texts in depths.items())


# ------------------------------------------------------------------------ what was declared


@dataclass(frozen=True)
class Declared:
    """A declared difference, and its p alone and after Holm over three families: all differences of
    its `command`, the `declared` ones of both commands, and `all` of both."""

    depth: int
    variant: str
    comparison: Comparison
    alone: float
    command: float
    declared: float
    all: float


def _declared(asked: Asked, read: Read) -> list[Declared]:
    found = _compared(read, asked.quantities)
    alone = {str(place): c.p for place, c in found.items() if c.p is not None}
    own = {place: c for place, c in found.items() if place[2] == asked.primary}
    declared, every = holm({str(place): alone[str(place)] for place in own}), holm(alone)
    return [
        Declared(depth, variant, c, alone[name], c.p_holm or 0.0, declared[name], every[name])
        for (depth, variant, key), c in own.items()
        for name in [str((depth, variant, key))]
    ]


def _compared(read: Read, quantities: Quantities) -> dict[tuple[int, str, str], Comparison]:
    return {
        (depth, *place): c
        for depth, (numbers, subjects) in read.items()
        for place, c in compare_numbers(subjects, numbers, quantities).items()
    }


def _declared_text(asked: Asked, read: Read) -> str:
    """A table of the declared differences, with the p of each family."""
    declared, quantity = _declared(asked, read), asked.quantities[asked.primary]
    count, digits = len(declared), quantity.digits
    command = len(_compared(read, asked.quantities)) // len(read)
    rows = [["blocks", "difference", "mean", "95 % interval", f"for all {count} together",
             "p alone", f"p of {command}, declared", f"p of {count}",
             f"p of {command * len(read)}"]]  # fmt: skip
    for one in declared:
        c, baselines = one.comparison, read[one.depth][1].baselines
        ps = (f"{p:.2g}" for p in (one.alone, one.command, one.declared, one.all))
        ends = [_interval(c.differences, digits, tests) for tests in (1, count)]
        name = f"{one.variant} - {baselines[one.variant]}"
        rows.append([str(one.depth), name, f"{c.difference:+.{digits}f}", *ends, *ps])
    legend = (
        f"The declared differences, of {quantity.title}. Intervals that hold for all together are "
        f"Bonferroni's. p alone is not adjusted. It was declared that Holm adjusts over the "
        f"{command} differences of a command, secondary ones among them; beside it stand Holm "
        f"over the {count} declared differences of both commands, and over all "
        f"{command * len(read)} of both."
    )
    return f"Declared before the runs:\n\n{markdown_table(rows)}\n\n{legend}"


def _interval(values: Sequence[float], digits: int, tests: int = 1, sign: str = "+") -> str:
    """Student's interval of the mean, Bonferroni's of so many `tests`."""
    quantile = float(special.stdtrit(len(values) - 1, 1 - LEVEL / 2 / tests))
    half, mean = quantile * deviation(values) / len(values) ** 0.5, fmean(values)
    return f"{mean - half:{sign}.{digits}f} to {mean + half:{sign}.{digits}f}"


# ------------------------------------------------------------------------ what was added later


def _levels(level: Level, read: Read) -> Iterator[tuple[int, str, list[float]]]:
    for depth, (numbers, _) in read.items():
        for name, seeds in numbers.items():
            yield depth, name, [level.of(one) for one in seeds.values()]


def _level_text(level: Level, read: Read) -> str:
    digits, against = level.quantity.digits, level.against
    rows = [["blocks", "model", "mean", "95 % interval", f"seeds below {against:g}"]]
    for depth, name, values in _levels(level, read):
        below = f"{sum(value < against for value in values)} of {len(values)}"
        mean = f"{fmean(values):.{digits}f}"
        rows.append([str(depth), name, mean, _interval(values, digits, sign=""), below])
    title = f"Added later, {level.quantity.title} against {against:g}:"
    return f"{title}\n\n{markdown_table(rows)}\n\nIntervals are not adjusted for each other."


def _level_words(level: Level, read: Read) -> str:
    digits = level.quantity.digits
    texts = [
        f"{depth} blocks {name} {fmean(values):.{digits}f} ({_interval(values, digits, sign='')})"
        for depth, name, values in _levels(level, read)
    ]
    return f"{level.said}: {', '.join(texts)}"


def _later_text(later: Later, read: Read) -> str:
    """The differences of both depths, tested together."""
    found = _compared(read, later.quantities)
    adjusted = holm({str(place): c.p for place, c in found.items() if c.p is not None})
    rows = [["blocks", "difference", "of", "mean", "95 % interval", "p"]]
    for (depth, variant, key), c in found.items():
        quantity, name = later.quantities[key], str((depth, variant, key))
        ends = _interval(c.differences, quantity.digits)
        p = f"{adjusted[name]:.2g}" if name in adjusted else ""
        cells = [f"{variant} - {read[depth][1].baselines[variant]}", quantity.title]
        rows.append([str(depth), *cells, f"{c.difference:+.{quantity.digits}f}", ends, p])
    legend = f"p is adjusted by Holm over the {len(adjusted)} differences of this table."
    return f"Added later, {later.words}:\n\n{markdown_table(rows)}\n\n{legend}"


# ------------------------------------------------------------------------ what is read


def _read(home: Path, runs: Path, baseline: str) -> Read:
    read = {}
    for depth in DEPTHS:
        numbers = read_numbers(home / f"blocks_{depth}" / f"{home.name}_runs.csv")
        own = [run for run in run_folders(runs) if SavedRun(run).value("model.depth") == depth]
        typed = Namespace(where=list(map(str, own)), baseline=[baseline], text=None)
        read[depth] = numbers, read_subjects(typed, lambda *_: None)
    return read


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
