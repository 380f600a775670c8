"""The outcome of an analysis: rows of numbers, and how they are shown and drawn.

An analysis declares its numbers, its tables (`View`) and the panels of its figure once. It computes
rows. rendering.py makes of both the terminal's text, a page, one CSV file and a figure. The rows of
a CSV file give the same tables and the same figure again.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from statistics import fmean
from typing import Any

from transformer_norms.comparison.statistics import FEWEST, half_interval
from transformer_norms.comparison.sweep_record import grouped
from transformer_norms.comparison.verdict import Comparison
from transformer_norms.report.figures import GREY, line_style
from transformer_norms.text_tables import COLUMNS, csv_table, show, text_table, wrapped_table

# A row is of one kind: of a whole model, where it names none, or of a block, of a step, and so on.
# `model` names its variant, `seed` its seed, and `diverged` why a model has not all its numbers.
Row = Mapping[str, Any]
Rows = Sequence[Row]
KIND, MODEL, SEED, DIVERGED = "kind", "model", "seed", "diverged"
INTERVAL = "± 95 %: half of Student's 95 % interval over seeds."
MOST_TICKS = 8  # on a logarithmic axis of whole numbers, one for each
# Draws one panel of the figure into its axes.
Panel = Callable[[Any, Rows], None]


@dataclass(frozen=True)
class Number:
    """A number of a row. `heading` names it in tables, and `meaning` says what it is. `format` is
    that of Python. Variants are compared over seeds by the numbers that are `compared`."""

    heading: str
    meaning: str = ""
    format: str = ".4f"
    compared: bool = False

    def show(self, value: Any) -> str:
        return value if isinstance(value, str) else show(value, self.format, "inf")

    def show_signed(self, value: float) -> str:
        return f"{value:+{self.format.lstrip('+')}}"

    def show_mean(self, values: Sequence[Any]) -> str:
        """`0.0312 ± 0.0040`: the mean, and half of its 95 % interval from FEWEST values on."""
        if len(values) == 1 or isinstance(values[0], str) or None in values:
            return self.show(values[0] if None not in values else None)
        half = half_interval(values) if len(values) >= FEWEST else None
        within = "" if half is None else f" ± {half:{self.format.lstrip('+')}}"
        return self.show(fmean(values)) + within


Numbers = Mapping[str, Number]


@dataclass(frozen=True)
class Table:
    """The cells of a table, of which the first row is the heading, and its legend. The first `by`
    columns tell its rows apart."""

    cells: list[list[str]]
    legend: str
    by: int

    @property
    def text(self) -> str:
        """The table within 80 columns: where it is wider, its columns are in several tables."""
        parts, columns = [self.cells], range(self.by, len(self.cells[0]))
        if width(self.cells) > COLUMNS:
            parts, taken = [], list[int]()
            for n in columns:
                if taken and width(self._part([*taken, n])) > COLUMNS:
                    parts.append(self._part(taken))
                    taken = []
                taken.append(n)
            parts.append(self._part(taken))
        texts = [text_table(part) if width(part) <= COLUMNS else "\n".join(wrapped_table(part))
                 for part in parts]  # fmt: skip
        return "\n\n".join(texts)

    def _part(self, columns: Sequence[int]) -> list[list[str]]:
        return [[*row[: self.by], *(row[n] for n in columns)] for row in self.cells]


def width(cells: list[list[str]]) -> int:
    return max(map(len, text_table(cells).splitlines()))


@dataclass(frozen=True)
class View:
    """A table of the rows of one kind, or of the rows that a function makes of all rows.

    The columns `by` tell the rows of one model apart, and `numbers` are shown. Of several models a
    number is its mean over seeds. A view that is `alone` is shown of one model only.
    """

    rows: str | Callable[[Rows], Rows]
    by: Sequence[str]
    numbers: Numbers
    legend: str = ""
    alone: bool = False

    def table(self, rows: Rows) -> Table:
        """A heading, and a row for each variant and each value of `by`, with the numbers that some
        row has. The legend has the meaning of each number."""
        chosen = select(self.rows, rows)
        several = len(models_of(rows)) > 1 and len(models_of(chosen)) > 0
        by = [MODEL, *self.by] if several and MODEL not in self.by else [*self.by]
        told = {key: number for key, number in self.numbers.items()
                if any(row.get(key) not in (None, "") for row in chosen)}  # fmt: skip
        cells = [
            [
                *(str(own[0][key]) for key in by),
                *(number.show_mean([row.get(key) for row in own]) for key, number in told.items()),
            ]
            for own in grouped(chosen, lambda row: [row[key] for key in by])
        ]
        within = [any(" ± " in row[n] for row in cells) for n in range(len(by) + len(told))]
        names = [*by, *(number.heading for number in told.values())]
        heading = [name + " ± 95 %" * half for name, half in zip(names, within, strict=True)]
        meanings = "; ".join(f"{n.heading}: {n.meaning}" for n in told.values() if n.meaning)
        parts = self.legend, f"{meanings}." * bool(meanings), INTERVAL * any(within)
        return Table([heading, *cells], " ".join(filter(None, parts)), len(by))


@dataclass(frozen=True)
class Lines:
    """A panel of the figure: a number of the rows of one kind over another one. A thin line is a
    seed, a thick one the mean of a variant. Where `x` is a text, marks take the place of lines.

    `level` is a grey line: a number, or the key of one in each row. `linear` is the size below
    which a logarithmic `y` is linear, so that it may be negative. `mean` is that of the seeds.
    """

    rows: str | Callable[[Rows], Rows]
    x: str
    y: str
    xlabel: str
    ylabel: str
    log: str = ""  # the logarithmic axes, such as "xy"
    level: float | str | None = None
    linear: float | None = None
    mean: Callable[[Sequence[float]], float] = fmean

    def __call__(self, axes: Any, rows: Rows) -> None:
        own = [row for row in select(self.rows, rows) if row.get(self.y) is not None]
        for place, name in enumerate(dict.fromkeys(row[MODEL] for row in (*rows, *own))):
            seeds: dict[Any, dict[Any, float]] = {}
            for row in own:
                if row[MODEL] == name:
                    seeds.setdefault(row.get(SEED), {})[row[self.x]] = row[self.y]
            draw_seeds(axes, list(seeds.values()), name, place, self.mean)
        levels = {row[self.level] for row in own} if isinstance(self.level, str) else {self.level}
        for level in levels - {None}:
            axes.axhline(level, color=GREY, linewidth=0.8, linestyle=":")
        self._set_axes(axes, own)

    def _set_axes(self, axes: Any, own: Rows) -> None:
        axes.set(xlabel=self.xlabel, ylabel=self.ylabel)
        places = sorted({row[self.x] for row in own if isinstance(row[self.x], int)})
        if "x" in self.log:
            axes.set_xscale("log")
            if 0 < len(places) <= MOST_TICKS:
                axes.set_xticks(places, map(str, places))
                axes.xaxis.minorticks_off()
        elif places:
            axes.xaxis.get_major_locator().set_params(integer=True)
        if self.linear is not None:
            axes.set_yscale("symlog", linthresh=self.linear)
        elif "y" in self.log:
            axes.set_yscale("log", nonpositive="mask")
            set_decades(axes)


def draw_seeds(
    axes: Any,
    lines: Sequence[Mapping[Any, float]],
    name: str,
    place: int,
    mean: Callable[[Sequence[float]], float],
) -> None:
    """Draws each of `lines` thin, and their mean thick and named."""
    colour, dashes = line_style(place)
    marks = bool(lines) and isinstance(next(iter(lines[0])), str)
    style = {"color": colour, "marker": "o" if marks else "", "fillstyle": "none"}
    for line in lines if len(lines) > 1 else ():
        axes.plot([*line], [*line.values()], linestyle="" if marks else "-", linewidth=0.4,
                  markersize=1.5, **style)  # fmt: skip
    if lines:
        places = [at for at in lines[0] if all(at in line for line in lines)]
        means = [mean([line[at] for line in lines]) for at in places]
        axes.plot(places, means, linestyle="" if marks else dashes, linewidth=1.5, markersize=4.5,
                  label=name, **style)  # fmt: skip


def set_decades(axes: Any) -> None:
    """Numbers all decades, and parts of decades where the axis has few of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    parts = (1,) if high / low > 1e3 else (1, 2, 5) if high / low > 10 else (1, 2, 3, 5, 7)
    axes.yaxis.set_major_locator(LogLocator(subs=parts))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class Analysis:
    """The declaration of an analysis. `numbers` are those of each model. They make the first table,
    whose legend begins with `legend`. `size` is that of the figure in inches."""

    name: str
    title: str
    numbers: Numbers = field(default_factory=dict)
    views: Sequence[View] = ()
    panels: Sequence[Panel] = ()
    limits: Sequence[str] = ()
    legend: str = ""
    size: Callable[[Rows], tuple[float, float]] | None = None


@dataclass(frozen=True)
class Outcome:
    """The rows of an analysis, and the words about them: the `subject` of its title, `notices`
    before the tables, `remarks` after them, and the `origins` of models. `comparisons` has the
    differences of variants over seeds, by a pair of variants and a number. `saved` are the folders
    of models that the analysis wrote."""

    analysis: Analysis
    rows: Rows
    subject: str = ""
    notices: Sequence[str] = ()
    remarks: Sequence[str] = ()
    origins: Sequence[str] = ()
    comparisons: Mapping[tuple[str, str, str], Comparison] = field(default_factory=dict)
    saved: Sequence[str] = ()


# ------------------------------------------------------------------------------------- the rows


def of_kind(rows: Rows, kind: str) -> Rows:
    return [row for row in rows if row.get(KIND, MODEL) == kind]


def select(source: str | Callable[[Rows], Rows], rows: Rows) -> Rows:
    """The rows of a kind, or those that a function makes of all rows."""
    return source(rows) if callable(source) else of_kind(rows, source)


def models_of(rows: Rows) -> list[tuple[str, Any]]:
    """The variant and the seed of each model."""
    return list(dict.fromkeys((row[MODEL], row.get(SEED)) for row in rows if MODEL in row))


def ended(rows: Rows) -> Rows:
    """The rows of whole models that have all their numbers."""
    return [row for row in of_kind(rows, MODEL) if not row.get(DIVERGED)]


def shared(numbers: Numbers, rows: Rows) -> Numbers:
    """The numbers that all models have."""
    models = ended(rows)
    return {
        key: number for key, number in numbers.items()
        if models and all(row.get(key) is not None for row in models)
    }  # fmt: skip


def csv_of(rows: Rows) -> bytes:
    """A row for each row, in full precision, and a column for each key."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return csv_table([keys, *([row.get(key) for key in keys] for row in rows)])


def read_rows(text: str) -> list[dict[str, Any]]:
    """The rows of a CSV file, of which empty cells are left out."""
    return [
        {key: cell if key == MODEL else _value(cell) for key, cell in row.items() if cell}
        for row in csv.DictReader(StringIO(text))
    ]


def _value(cell: str) -> Any:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
