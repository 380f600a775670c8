"""The tables of the analyses of trained models, from the numbers that each wrote of each model.

An analysis reads weights, which are not committed. The rows of models of its CSV file are in
NAME/blocks_N/NAME.csv. Means, intervals and tests follow from them and from the packed runs.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from analyses import collapse, depth_use, mean_drift, quantization
from measured import described
from scipy import special, stats

from transformer_norms.analysis.outcome import Analysis, Number, Numbers, Outcome, Rows, read_rows
from transformer_norms.analysis.rendering import tables
from transformer_norms.analysis.trained.measuring import Subjects, compare_numbers, read_subjects
from transformer_norms.comparison.statistics import LEVEL, deviation
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.run.reader import SavedRun, run_folders
from transformer_norms.text_tables import markdown_table

STUDY = "trained_models"
DEPTHS = (4, 16)


@dataclass(frozen=True)
class Later:
    """The difference of a number that was asked for after the results had been seen, in a family of
    its own, of both depths. `said` names it in claims.csv, if it is not empty."""

    words: str
    baseline: str
    key: str
    said: str = ""


@dataclass(frozen=True)
class Level:
    """A number of a model, `of` its numbers, which is held `against` another one. `said`
    names it in claims.csv, if it is not empty."""

    number: Number
    of: Callable[[Mapping[str, Any]], float]
    against: float
    said: str = ""


@dataclass(frozen=True)
class Asked:
    """Holds what a study asks of an analysis: the baseline of its differences, which are of all
    numbers that the analysis compares. `primary` was chosen before the models were trained.
    `later` and `levels` were added after the results."""

    analysis: Analysis
    primary: str
    baseline: str
    later: Later | None = None
    levels: tuple[Level, ...] = ()

    @property
    def number(self) -> Number:
        return self.analysis.numbers[self.primary]


ASKED = {
    "mean_drift": Asked(
        mean_drift.ANALYSIS,
        "chance",
        "norm=layernorm",
        levels=(
            Level(
                Number("share / chance", format=".3f"),
                lambda row: row["chance"],
                1.0,
                "of a random direction",
            ),
            Level(Number("at norms / chance", format=".3f"), lambda row: row["norms_chance"], 1.0),
        ),
    ),
    "quantization": Asked(quantization.ANALYSIS, "w4a4_row", "norm=layernorm"),
    "depth_use": Asked(
        depth_use.ANALYSIS,
        "rise",
        "placement=pre",
        later=Later(
            "blocks are muted: their sub-layers add nothing, and their norms on the stream stay",
            "placement=pre",
            "rise_muted",
            "muted",
        ),
    ),
    "collapse": Asked(
        collapse.ANALYSIS,
        "rise",
        "norm=layernorm",
        later=Later("the distance of attention by placement", "placement=pre", "distance"),
        levels=(
            Level(
                Number("by length, % - changed, %", format=".2f"),
                lambda row: row["changed_length"] - row["changed"],
                0.0,
            ),
        ),
    ),
}


# Of each depth: the rows of its models, and which runs these are.
Read = Mapping[int, tuple[Rows, Subjects]]
Place = tuple[int, str, str, str]  # depth, variant, baseline and number


def trained_text(home: Path, runs: Path) -> str:
    """The declared differences, the tables of an analysis at each depth, and what was added later.
    `runs` has the unpacked runs of the study."""
    asked = ASKED[home.name]
    read = _read(home, runs, asked.baseline)
    parts = [_declared_text(asked, read)]
    # The loss is in the tables of trained_models.
    shown = {key: n for key, n in asked.analysis.numbers.items() if key != "loss"}
    analysis = replace(asked.analysis, numbers=shown, views=())
    for depth, (rows, subjects) in read.items():
        parts.append(f"{depth} blocks:")
        outcome = Outcome(analysis, rows, comparisons=compare_numbers(subjects, rows, shown))
        for table in tables(outcome):
            parts += [markdown_table(table.cells), table.legend]
    parts += [_level_text(level, read) for level in asked.levels]
    if asked.later is not None:
        parts.append(_later_text(asked, asked.later, _read(home, runs, asked.later.baseline)))
    return "\n\n".join(parts)


def measured_values(home: Path, runs: Path) -> dict[str, Comparison]:
    """The declared differences of both depths, with their p after Holm over all differences of a
    command; those that were added later, and the levels, are described."""
    asked = ASKED[home.name]
    read = _read(home, runs, asked.baseline)
    values = {
        f"{one.depth} blocks {one.variant}": _judge(one.comparison, one.command)
        for one in _declared(asked, read)
    }
    if asked.later is not None and asked.later.said:
        later = _read(home, runs, asked.later.baseline)
        for (depth, name, *_), c in _compared(later, _later(asked, asked.later)).items():
            values[f"{depth} blocks {name}, {asked.later.said}"] = _judge(c)
    for level in (one for one in asked.levels if one.said):
        for depth, name, seeds in _levels(level, read):
            values[f"{depth} blocks {name}, {level.said}"] = described(seeds)
    return values


def _judge(c: Comparison, p: float | None = None) -> Comparison:
    """The verdict of a p, if it was tested."""
    if p is None or p >= LEVEL:
        return replace(c, p=p, verdict="described" if p is None else "not told apart")
    return replace(c, p=p, verdict="better" if (c.difference or 0.0) < 0 else "worse")


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
    found = _compared(read, asked.analysis.numbers)
    alone = {place: _p(c) for place, c in found.items()}
    own = {place: p for place, p in alone.items() if place[3] == asked.primary}
    families = (
        {at: p for depth in read for at, p in holm(alone, depth).items()},
        holm(own),
        holm(alone),
    )
    return [
        Declared(*place[:2], found[place], p, *(family[place] for family in families))
        for place, p in own.items()
    ]


def _p(c: Comparison) -> float:
    """Student's p of the differences, not adjusted."""
    return float(stats.ttest_1samp(c.differences, 0.0).pvalue)


def holm(p: Mapping[Place, float], depth: int | None = None) -> dict[Place, float]:
    """Holm's p, of one depth alone if it is given: the k-th smallest of m is multiplied by
    m - k + 1, and is at least the one before it."""
    ordered = sorted((place for place in p if depth in (None, place[0])), key=p.__getitem__)
    steps = [min(1.0, p[place] * (len(ordered) - k)) for k, place in enumerate(ordered)]
    return dict(zip(ordered, accumulate(steps, max), strict=True))


def _compared(read: Read, numbers: Numbers) -> dict[Place, Comparison]:
    return {
        (depth, *place): c
        for depth, (rows, subjects) in read.items()
        for place, c in compare_numbers(subjects, rows, numbers).items()
    }


def _later(asked: Asked, later: Later) -> Numbers:
    return {later.key: replace(asked.analysis.numbers[later.key], compared=True)}


def _declared_text(asked: Asked, read: Read) -> str:
    """A table of the declared differences, with the p of each family."""
    declared, number = _declared(asked, read), asked.number
    count = len(declared)
    command = len(_compared(read, asked.analysis.numbers)) // len(read)
    rows = [["blocks", "difference", "mean", "95 % interval", f"for all {count} together",
             "p alone", f"p of {command}, declared", f"p of {count}",
             f"p of {command * len(read)}"]]  # fmt: skip
    for one in declared:
        c, baselines = one.comparison, read[one.depth][1].baselines
        ps = (f"{p:.2g}" for p in (one.alone, one.command, one.declared, one.all))
        ends = [_interval(c.differences, number.show_signed, tests) for tests in (1, count)]
        name = f"{one.variant} - {baselines[one.variant]}"
        rows.append([str(one.depth), name, number.show_signed(c.difference), *ends, *ps])
    legend = (
        f"The declared differences, of {number.heading}. Intervals that hold for all together are "
        f"Bonferroni's. p alone is not adjusted. It was declared that Holm adjusts over the "
        f"{command} differences of a command, secondary ones among them; beside it stand Holm "
        f"over the {count} declared differences of both commands, and over all "
        f"{command * len(read)} of both."
    )
    return f"Declared before the runs:\n\n{markdown_table(rows)}\n\n{legend}"


def _interval(values: Sequence[float], show: Callable[[float], str], tests: int = 1) -> str:
    """Student's interval of the mean, Bonferroni's of so many `tests`."""
    quantile = float(special.stdtrit(len(values) - 1, 1 - LEVEL / 2 / tests))
    half, mean = quantile * deviation(values) / len(values) ** 0.5, fmean(values)
    return f"{show(mean - half)} to {show(mean + half)}"


# ------------------------------------------------------------------------ what was added later


def _levels(level: Level, read: Read) -> Iterator[tuple[int, str, list[float]]]:
    for depth, (rows, _) in read.items():
        for name in dict.fromkeys(row["model"] for row in rows):
            yield depth, name, [level.of(row) for row in rows if row["model"] == name]


def _level_text(level: Level, read: Read) -> str:
    show, against = level.number.show, level.against
    rows = [["blocks", "model", "mean", "95 % interval", f"seeds below {against:g}"]]
    for depth, name, values in _levels(level, read):
        below = f"{sum(value < against for value in values)} of {len(values)}"
        rows.append([str(depth), name, show(fmean(values)), _interval(values, show), below])
    title = f"Added later, {level.number.heading} against {against:g}:"
    return f"{title}\n\n{markdown_table(rows)}\n\nIntervals are not adjusted for each other."


def _later_text(asked: Asked, later: Later, read: Read) -> str:
    """The differences of both depths, tested together."""
    numbers = _later(asked, later)
    found, number = _compared(read, numbers), numbers[later.key]
    adjusted = holm({place: _p(c) for place, c in found.items()})
    rows = [["blocks", "difference", "of", "mean", "95 % interval", "p"]]
    for place, c in found.items():
        depth, variant, baseline, _ = place
        cells = [str(depth), f"{variant} - {baseline}", number.heading]
        ends = _interval(c.differences, number.show_signed)
        rows.append([*cells, number.show_signed(c.difference), ends, f"{adjusted[place]:.2g}"])
    legend = f"p is adjusted by Holm over the {len(adjusted)} differences of this table."
    return f"Added later, {later.words}:\n\n{markdown_table(rows)}\n\n{legend}"


# ------------------------------------------------------------------------ what is read


def _read(home: Path, runs: Path, baseline: str) -> Read:
    read = {}
    for depth in DEPTHS:
        rows = read_rows((home / f"blocks_{depth}" / f"{home.name}.csv").read_text())
        own = [run for run in run_folders(runs) if SavedRun(run).value("model.depth") == depth]
        typed = Namespace(where=list(map(str, own)), baseline=[baseline], text=None)
        read[depth] = rows, read_subjects(typed, lambda *_: None)
    return read
