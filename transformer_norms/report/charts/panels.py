"""Every chart of a study as a figure of its own: a page holds them, and files for a paper are the
same drawings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from transformer_norms.report.charts.differences import draw_difference_rows
from transformer_norms.report.charts.lines import against_panels
from transformer_norms.report.charts.profiles import probe_profiles
from transformer_norms.report.curves import ALONG, View, curves_of, draw_finals, draw_training
from transformer_norms.report.figures import figure_bytes, pyplot
from transformer_norms.report.findings import Findings
from transformer_norms.report.paper.figure_sheet import TEXT, Sheet
from transformer_norms.report.rates import draw_tuning, rate_lines, too_many_lines
from transformer_norms.report.study import LOSS_KEYS, Rows
from transformer_norms.text_tables import file_name, printable

SECTIONS = ("differences", "finals", "curves", "tuning", "axes", "probes")
_ROW, _FRAME = 0.19, 0.62  # inches of a row of names, and of what surrounds rows
_LETTER = 0.55  # of the size of text, the width of most letters
_NAMES = 0.4  # of the width, for names of rows


@dataclass(frozen=True)
class Panel:
    """`section` is one of SECTIONS of a page, which shows `title` and `note`. `rows` are the names
    of its rows, for a panel that has rows instead of a number upwards."""

    section: str
    name: str
    title: str
    draw: Callable[[Any], None]
    rows: Sequence[str] = ()
    note: str = ""


def panel_files(panel: Panel, sheet: Sheet) -> dict[str, bytes]:
    """The files of a panel by name."""
    figure = draw_panel(panel, sheet)
    files = {
        f"{panel.name}.{kind}": figure_bytes(figure, kind, sheet.dpi) for kind in sheet.formats
    }
    pyplot().close(figure)
    return files


def draw_panel(panel: Panel, sheet: Sheet) -> Any:
    """The figure of a panel, as wide as the sheet, to the point."""
    letters = int(_NAMES * sheet.width * 72 / (_LETTER * TEXT))
    names = [fill(printable(name), letters) for name in panel.rows]
    lines = sum(1 + name.count("\n") for name in names)
    height = max(1.3, _FRAME + _ROW * lines) if names else 1.2 + sheet.width / 3
    size = (sheet.width, sheet.height or height)
    figure, axes = pyplot().subplots(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02)
    panel.draw(axes)
    if names:
        axes.set_yticks(range(len(names)), names, parse_math=False)
    return figure


def panels(
    findings: Findings, rows: Mapping[Path, Rows], most: int | None = None
) -> Iterator[Panel]:
    """Yields the panels for which there are numbers. A curve has at most `most` points."""
    study = findings.study
    if findings.compared:
        compared = [variant.name for variant in findings.compared]
        yield Panel("differences", "differences", "Differences from the baseline, by seed",
                    lambda axes: draw_difference_rows(axes, findings), compared)  # fmt: skip
    if ended := [variant for variant in study.variants if variant.ended]:
        names = [variant.name for variant in ended]
        yield Panel("finals", "final-loss", "The final loss of every seed, by variant",
                    lambda axes: draw_finals(axes, findings, ended), names)  # fmt: skip
    yield from _training_panels(findings, rows, most)
    if rates := rate_lines(study):
        named = [line.variant.name for line in rates] if too_many_lines(rates) else []
        yield Panel("tuning", "tuning", "Loss at each value that was tried, by variant",
                    lambda axes: draw_tuning(axes, study, rates), named)  # fmt: skip
    for axis, draw in against_panels(findings):
        yield Panel("axes", file_name(f"final-loss-by-{axis}"), axis, draw)
    for profile in probe_profiles(study, rows):
        name = file_name(f"probe {profile.measure} {profile.part}")
        title, note = profile.title, ": ".join(filter(None, profile.about[:2]))
        yield Panel("probes", name, f"{title}, by block", profile.draw_blocks, note=note)
        yield Panel("probes", f"{name}-by-step", f"{title}, over training", profile.draw_training,
                    note=note)  # fmt: skip


def _training_panels(
    findings: Findings, rows: Mapping[Path, Rows], most: int | None
) -> Iterator[Panel]:
    """Yields the curves of the validation loss, if there are enough evaluations, and of the
    training loss: along each of ALONG, with linear and with logarithmic axes."""
    variants = [variant for variant in findings.study.variants if variant.ended]
    every = {key: curves_of(findings, variants, rows, key, most) for key in LOSS_KEYS}
    losses = [loss for loss, curves in every.items() if curves]
    for loss in losses:
        for view in (View(loss, along, log) for along in ALONG for log in (False, True)):
            if any(map(view.known, every[loss], variants)):
                draw = partial(draw_training, findings.study, variants, every[loss], view)
                name = f"loss-by-{view.along}{'-log' if view.log else ''}"
                name = name if loss == losses[0] else f"training-{name}"
                title = f"{LOSS_KEYS[loss]} by {ALONG[view.along][0]}"
                title = f"{title}, all of it on logarithmic axes" if view.log else title
                yield Panel("curves", name, title, draw)
