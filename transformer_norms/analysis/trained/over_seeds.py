"""The numbers of an analysis over seeds: means with intervals, and differences of paired seeds.

Intervals and tests are those of comparison/: Student's on the differences of pairs, Holm over all
differences of one command. A variant with a run that did not finish has no difference, since the
runs that are left are no sample of all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from transformer_norms.analysis.trained.subjects import Subject, Subjects
from transformer_norms.comparison.outcomes import Outcomes
from transformer_norms.comparison.statistics import FEWEST, half_interval
from transformer_norms.comparison.verdict import Comparison, Rules, Sides, compare, pair
from transformer_norms.report.figures import line_style
from transformer_norms.text_tables import COLUMNS, csv_table, paragraph, text_table, wrapped_table

DIFFERENCES = (
    "Differences are means over paired seeds, with Student's 95 % interval from three seeds on; p "
    "is adjusted by Holm over all differences here."
)
# The numbers of each model: by its variant, its seed (None of a model alone), and their names.
Numbers = Mapping[str, Mapping[int | None, Mapping[str, float]]]


@dataclass(frozen=True)
class Quantity:
    """A number of a model that is compared. `title` names it in tables, `words` say what it is."""

    title: str
    digits: int = 4
    words: str = ""


Quantities = Mapping[str, Quantity]


def mean_text(values: Sequence[float], digits: int) -> str:
    """`0.0312 ± 0.0040`: the mean over seeds, and half of its interval from FEWEST seeds on."""
    half = half_interval(values) if len(values) >= FEWEST else None
    return f"{fmean(values):.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def mean_rows(numbers: Numbers, quantities: Quantities) -> list[list[str]]:
    """A heading, and for each variant its seeds and the mean of each quantity."""
    rows = [["model", "seeds", *(quantity.title for quantity in quantities.values())]]
    for name, seeds in numbers.items():
        columns = ([one[key] for one in seeds.values()] for key in quantities)
        cells = [
            mean_text(values, quantity.digits)
            for values, quantity in zip(columns, quantities.values(), strict=True)
        ]
        rows.append([name, str(len(seeds)), *cells])
    return rows


def compare_numbers(
    subjects: Subjects, numbers: Numbers, quantities: Quantities
) -> dict[tuple[str, str], Comparison]:
    """Compares each quantity of each variant with its baseline's, by (variant, quantity). All are
    tested together."""
    asked: dict[str, Sides] = {}
    places: dict[str, tuple[str, str]] = {}
    for variant, baseline in subjects.baselines.items():
        for key in quantities:
            name = f"{variant}: {key}"
            one, other = (_outcomes(subjects, numbers, side, key) for side in (variant, baseline))
            asked[name], places[name] = pair(one, other), (variant, key)
    study = subjects.study
    if study is None or not asked:
        return {}
    looks = max(2, study.looks) if study.sequential else 1
    found = compare(asked, Rules(effect=0.0, looks=looks, order=study.order))
    return {places[name]: comparison for name, comparison in found.items()}


def _outcomes(subjects: Subjects, numbers: Numbers, name: str, key: str) -> Outcomes:
    values = {seed: one[key] for seed, one in numbers[name].items() if seed is not None}
    return Outcomes(values, subjects.missing.get(name, {}), subjects.waiting.get(name, frozenset()))


def difference_rows(
    subjects: Subjects,
    comparisons: Mapping[tuple[str, str], Comparison],
    quantities: Quantities,
) -> list[list[str]]:
    """A heading, and a row for each difference; nothing where none was asked for."""
    rows = [["difference", "of", "mean", "95 % interval", "seeds", "p"]]
    for (variant, key), c in comparisons.items():
        digits = quantities[key].digits
        cells = [f"{variant} - {subjects.baselines[variant]}", quantities[key].title]
        if c.difference is None:
            rows.append([*cells, c.verdict, "", str(len(c.seeds)), ""])
            continue
        within = _interval(c.low, c.high, digits)
        p = "" if c.p_holm is None else f"{c.p_holm:.2g}"
        rows.append([*cells, f"{c.difference:+.{digits}f}", within, str(len(c.seeds)), p])
    return rows if len(rows) > 1 else []


def _interval(low: float | None, high: float | None, digits: int) -> str:
    if low is None or high is None:
        return ""
    return f"{low:+.{digits}f} to {high:+.{digits}f}"


def numbers_csv(numbers: Numbers) -> bytes:
    """A row for each model, in full precision."""
    keys = list(
        dict.fromkeys(k for seeds in numbers.values() for one in seeds.values() for k in one)
    )
    rows: list[list[object]] = [["model", "seed", *keys]]
    for name, seeds in numbers.items():
        for seed, one in seeds.items():
            rows.append([name, "" if seed is None else seed, *(one.get(key) for key in keys)])
    return csv_table(rows)


# ------------------------------------------------------------------------- what is shown of models

Tables = list[tuple[list[list[str]], str]]  # each with its legend


def by_variant(each: Iterable[tuple[Subject, Mapping[str, float]]]) -> Numbers:
    """The numbers of models, by variant and seed."""
    numbers: dict[str, dict[int | None, Mapping[str, float]]] = {}
    for subject, own in each:
        numbers.setdefault(subject.name, {})[subject.seed] = own
    return numbers


def seed_tables(
    subjects: Subjects,
    numbers: Numbers,
    quantities: Quantities,
    legend: str,
    compared: Collection[str] | None = None,
) -> Tables:
    """The table of means, and that of differences where variants are compared: of all quantities,
    or of those that are `compared`."""
    asked = {k: q for k, q in quantities.items() if compared is None or k in compared}
    comparisons = compare_numbers(subjects, numbers, asked)
    differences = difference_rows(subjects, comparisons, quantities)
    means: Tables = [(mean_rows(numbers, quantities), legend)]
    return [*means, (differences, DIFFERENCES)] if differences else means


def terminal_text(
    title: str,
    names: Sequence[str],
    notices: Sequence[str],
    tables: Tables,
    remarks: Sequence[str],
) -> str:
    """A title, notices, tables with their legends, and remarks, within 80 columns."""
    lines = [paragraph(f"{title}: {names[0] if len(names) == 1 else f'{len(names)} models'}")]
    lines += [*map(paragraph, notices), ""]
    for rows, legend in tables:
        table = text_table(rows)
        fits = max(map(len, table.splitlines())) <= COLUMNS
        lines += [table if fits else "\n".join(wrapped_table(rows)), "", paragraph(legend), ""]
    return "\n".join([*lines, *map(paragraph, remarks)])


def draw_seeds(axes: Any, lines: Sequence[Mapping[Any, float]], name: str, place: int) -> None:
    """Draws the numbers of each seed, by block or by size, as a thin line, and their mean as a
    thick one."""
    colour, dashes = line_style(place)
    lines = [line for line in lines if line]
    for line in lines if len(lines) > 1 else ():
        axes.plot([*line], [*line.values()], color=colour, linewidth=0.4)
    if lines:
        places = sorted(set.intersection(*({*line} for line in lines)))
        mean = [fmean(line[at] for line in lines) for at in places]
        axes.plot(places, mean, color=colour, linestyle=dashes, linewidth=1.5, label=name)
