"""Shows an outcome: as text for the terminal, as a page in Markdown, as one CSV file and as SVG."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from transformer_norms.analysis.outcome import (
    DIVERGED,
    MODEL,
    SEED,
    Outcome,
    Rows,
    Table,
    View,
    csv_of,
    ended,
    models_of,
    of_kind,
    shared,
)
from transformer_norms.errors import ConfigError
from transformer_norms.report.figures import FONT, figure_bytes, subplots
from transformer_norms.storage.files import storage_error
from transformer_norms.text_tables import escape_markdown, markdown_list, markdown_table, paragraph

DIFFERENCES = (
    "Differences are means over paired seeds, with Student's 95 % interval from three seeds on; p "
    "is times the number of differences here."
)


def check_folder(folder: Path) -> None:
    """Raises ConfigError if `folder` cannot be a folder, StorageError if it may not be written."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{folder}: {nearest} is a file; name a folder")
    if not os.access(nearest, os.W_OK):
        raise storage_error(folder, f"{nearest} cannot be written to")


def check_new(*folders: Path) -> None:
    """Raises ConfigError unless a model can be written into each new folder, as --save asks."""
    for folder in folders:
        check_folder(folder)
        if folder.exists() or folders.count(folder) > 1:
            why = "is there already" if folder.exists() else "would be written twice"
            raise ConfigError(f"--save {folder}: {why}; name another folder")


def files(outcome: Outcome) -> dict[str, bytes]:
    """NAME.csv, NAME.md and NAME.svg."""
    name = outcome.analysis.name
    drawn = {f"{name}.svg": figure(outcome)} if outcome.analysis.panels else {}
    return {f"{name}.csv": csv_of(outcome.rows), f"{name}.md": page(outcome).encode(), **drawn}


def facts(outcome: Outcome) -> dict[str, Any]:
    """The numbers of each model, for the JSON line."""
    return {"numbers": [
        {MODEL: title(row), **{key: x for key in outcome.analysis.numbers
                               if (x := row.get(key)) is not None}}
        for row in of_kind(outcome.rows, MODEL)
    ]} if outcome.analysis.numbers else {}  # fmt: skip


def title(row: Mapping[str, Any]) -> str:
    seed = row.get(SEED)
    return f"{row[MODEL]}" if seed is None else f"{row[MODEL]} s{seed}"


# ------------------------------------------------------------------------------------ the tables


def tables(outcome: Outcome) -> list[Table]:
    """The numbers of the models, their differences, and the tables that the analysis declares."""
    analysis, rows = outcome.analysis, outcome.rows
    several = len(models_of(rows)) > 1
    numbers = shared(analysis.numbers, rows) if several else analysis.numbers
    models = View(MODEL, (), numbers, analysis.legend)
    if several:
        models = replace(models, rows=_with_seeds, by=(MODEL, "seeds"))
    found = [models.table(rows)] if numbers else []
    found.append(Table(difference_rows(outcome), DIFFERENCES, 6))
    found += [view.table(rows) for view in analysis.views if not (several and view.alone)]
    return [table for table in found if len(table.cells) > 1]


def _with_seeds(rows: Rows) -> Rows:
    """The models that have all their numbers, each with how many of its variant there are."""
    count = Counter(row[MODEL] for row in ended(rows))
    return [{**row, "seeds": count[row[MODEL]]} for row in ended(rows)]


def difference_rows(outcome: Outcome) -> list[list[str]]:
    """A heading, and a row for each difference of a variant from its baseline."""
    rows = [["difference", "of", "mean", "95 % interval", "seeds", "p"]]
    for (variant, baseline, key), c in outcome.comparisons.items():
        number = outcome.analysis.numbers[key]
        cells = [f"{variant} - {baseline}", number.heading]
        if c.difference is None:
            rows.append([*cells, c.verdict, "", str(len(c.seeds)), ""])
            continue
        ends = c.interval if c.interval and isfinite(c.interval[0]) else ()
        within, p = " to ".join(map(number.show_signed, ends)), c.p
        cells += [number.show_signed(c.difference), within, str(len(c.seeds))]
        rows.append([*cells, "" if p is None else f"{p:.2g}"])
    return rows


# ---------------------------------------------------------------------------- the text, the page


def terminal(outcome: Outcome) -> str:
    """Title, notices, tables with their legends, and remarks, within 80 columns."""
    subject = f": {outcome.subject}" if outcome.subject else ""
    lines = [*map(paragraph, (f"{outcome.analysis.title}{subject}", *outcome.notices)), ""]
    for table in tables(outcome):
        lines += [table.text, "", *([paragraph(table.legend), ""] if table.legend else [])]
    return "\n".join([*lines, *map(paragraph, _remarks(outcome))]).rstrip("\n")


def page(outcome: Outcome) -> str:
    """The same in Markdown, with the figure, what the analysis does not show, and the models."""
    analysis = outcome.analysis
    said = [*outcome.notices, *_remarks(outcome)]
    sections = [f"# {analysis.title}", escape_markdown(outcome.subject)]
    sections += [markdown_list(said)] if said else []
    for table in tables(outcome):
        sections += [markdown_table(table.cells), *([table.legend] if table.legend else [])]
    sections += [f"![{analysis.title.lower()}]({analysis.name}.svg)"] * bool(analysis.panels)
    for heading, texts in (
        ("What this does not show", analysis.limits),
        ("Models", outcome.origins),
    ):
        sections += [f"## {heading}", markdown_list(texts)] if texts else []
    return "\n\n".join(filter(None, sections)) + "\n"


def _remarks(outcome: Outcome) -> list[str]:
    failed = [row for row in of_kind(outcome.rows, MODEL) if row.get(DIVERGED)]
    return [*(f"{title(row)}: diverged ({row[DIVERGED]})" for row in failed), *outcome.remarks]


# ------------------------------------------------------------------------------------ the figure


def figure(outcome: Outcome) -> bytes:
    """The panels side by side as SVG, with one legend below."""
    analysis = outcome.analysis
    count = len(analysis.panels)
    size = analysis.size(outcome.rows) if analysis.size else (3.4 * count, 3.4)
    drawing, panels = subplots(1, count, figsize=size, layout="constrained", squeeze=False)
    labels: dict[str, Any] = {}
    for axes, draw in zip(panels[0], analysis.panels, strict=True):
        draw(axes, outcome.rows)
        axes.title.set_fontsize(FONT)
        handles, names = axes.get_legend_handles_labels()
        labels |= dict(zip(names, handles, strict=True))
    if labels:
        drawing.legend(labels.values(), labels, loc="outside lower center", ncols=2,
                       fontsize=FONT - 1, frameon=False)  # fmt: skip
    return svg_bytes(drawing)


def svg_bytes(drawing: Any) -> bytes:
    """The drawing as an SVG."""
    return figure_bytes(drawing, "svg")
