"""Each panel of a report as a figure of its own, in the size of a column of a paper."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from transformer_norms.progress import Tell, tell_nobody, track
from transformer_norms.report.curves import ALONG, View, curves_of, draw_finals, draw_training
from transformer_norms.report.figures import (
    drawn_with,
    figure_bytes,
    label_ends,
    line_style,
    pyplot,
    text_size,
)
from transformer_norms.report.findings import Findings
from transformer_norms.report.paper.differences_panel import draw_difference_rows
from transformer_norms.report.paper.figure_sheet import TEXT, Sheet
from transformer_norms.report.paper.lines_panel import against_panels, probe_panels
from transformer_norms.report.rates import draw_tuning, rate_lines, too_many_lines
from transformer_norms.report.study import LOSS_KEYS, Rows, read_rows
from transformer_norms.report.writing import write_files
from transformer_norms.text_tables import file_name, printable

Draw = Callable[[Any], None]  # onto axes
_ROW, _FRAME = 0.19, 0.62  # inches of a row of names, and of what stands around rows
_LETTER = 0.55  # of the size of text, the width of most letters
_NAMES = 0.4  # of the width, for names of rows


@dataclass(frozen=True)
class Panel:
    """`rows` are the names of its rows, for a panel that has rows instead of a number upwards."""

    name: str
    draw: Draw
    rows: Sequence[str] = ()


def write_figures(
    findings: Findings, folder: str | Path, sheet: Sheet, tell: Tell = tell_nobody
) -> list[str]:
    """Writes each panel of the report into `folder`, in each format. Returns the paths of all
    files. A file that would not change is not touched."""
    rows, _ = read_rows(findings.study.results)
    with drawn_with(TEXT, sheet.settings()):
        every = [*panels(findings, rows)]
        files: dict[str, bytes] = {}
        for panel in track(tell, "drawing figures {:.0f}/{:.0f}", every):
            files |= panel_files(panel, sheet)
    return write_files(Path(folder), files, "--figures")


def panel_files(panel: Panel, sheet: Sheet) -> dict[str, bytes]:
    """The files of a panel by name. The figure is as wide as the sheet, to the point."""
    plt = pyplot()
    letters = int(_NAMES * sheet.width * 72 / (_LETTER * TEXT))
    names = [fill(printable(name), letters) for name in panel.rows]
    lines = sum(1 + name.count("\n") for name in names)
    height = max(1.3, _FRAME + _ROW * lines) if names else 1.2 + sheet.width / 3
    size = (sheet.width, sheet.height or height)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02)
    panel.draw(axes)
    if names:
        axes.set_yticks(range(len(names)), names, parse_math=False)
    elif sheet.height is None:  # a legend takes no height from the axes
        above = sum(legend.get_window_extent().height for legend in figure.legends)
        figure.set_size_inches(sheet.width, height + above / figure.dpi)
    files = {
        f"{panel.name}.{kind}": figure_bytes(figure, kind, sheet.dpi) for kind in sheet.formats
    }
    plt.close(figure)
    return files


def panels(findings: Findings, rows: Mapping[Path, Rows]) -> Iterator[Panel]:
    """Yields the panels for which there are numbers."""
    study = findings.study
    yield from _training_panels(findings, rows)
    ended = [variant for variant in study.variants if variant.ended]
    if ended:
        names = [variant.name for variant in ended]
        yield Panel("final-loss", lambda axes: draw_finals(axes, findings, ended), names)
    if findings.compared:
        compared = [variant.name for variant in findings.compared]
        yield Panel("differences", lambda axes: draw_difference_rows(axes, findings), compared)
    if rates := rate_lines(study):
        named = [line.variant.name for line in rates] if too_many_lines(rates) else []
        yield Panel("tuning", lambda axes: draw_tuning(axes, study, rates, name_above), named)
    for name, draw in (*against_panels(findings), *probe_panels(study, rows)):
        yield Panel(file_name(name), partial(draw, name_lines=name_above))


def _training_panels(findings: Findings, rows: Mapping[Path, Rows]) -> Iterator[Panel]:
    """The curves of the validation loss, or of the training loss if there are too few evaluations:
    along each of ALONG, with linear and with logarithmic axes."""
    study = findings.study
    variants = [variant for variant in study.variants if variant.ended]
    every = ((key, curves_of(findings, variants, rows, key)) for key in LOSS_KEYS)
    loss, curves = next(((key, own) for key, own in every if own), ("", []))
    for along in ALONG:
        for log in (False, True):
            view = View(loss, along, log, name_above)
            if any(map(view.known, curves, variants)):
                draw = partial(
                    draw_training, study=study, variants=variants, by_variant=curves, view=view
                )
                yield Panel(f"loss-by-{along}{'-log' if log else ''}", draw)


def name_above(
    axes: Any,
    names: Sequence[str],
    ends: Sequence[tuple[float, float]],
    places: Sequence[int],
    ngrams: Sequence[float] = (),
    crosses: int = 0,
) -> None:
    """A legend above the axes, where it hides nothing, in as many columns as the figure has room
    for. Lines of n-grams keep their names at the right."""
    from matplotlib.lines import Line2D

    label_ends(axes, [], [], [], ngrams, crosses)
    styles = [line_style(place) for place in places]
    handles = [Line2D([], [], color=colour, linestyle=dashes, linewidth=1.4)
               for colour, dashes in styles]  # fmt: skip
    labels = [f" {name}" if name.startswith("_") else name for name in map(printable, names)]
    figure = axes.figure
    for columns in range(min(6, len(names)), 0, -1):
        legend = figure.legend(
            handles, labels, loc="outside upper center", ncols=columns, frameon=False,
            fontsize=text_size(), handlelength=2.6, handletextpad=0.5, columnspacing=1.2,
            labelspacing=0.3, borderaxespad=0.2, borderpad=0.1,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
