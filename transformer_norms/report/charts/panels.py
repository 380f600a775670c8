"""Every chart of a study as a separate figure: a page holds them, and files for a paper are the
same drawings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.names import suggestion
from transformer_norms.report.charts.differences import (
    LEGEND,
    Row,
    difference_rows,
    draw_difference_rows,
)
from transformer_norms.report.charts.lines import against_panels
from transformer_norms.report.charts.profiles import probe_profiles
from transformer_norms.report.charts.step_times import step_time_panels
from transformer_norms.report.curves import ALONG, CurveView, curves_of, draw_finals, draw_training
from transformer_norms.report.figures import figure_bytes, subplots
from transformer_norms.report.findings import Findings
from transformer_norms.report.horizons import at_text
from transformer_norms.report.paper.figure_sheet import PANELS, TEXT, Sheet
from transformer_norms.report.rates import draw_tuning, rate_lines, too_many_lines
from transformer_norms.report.study import LOSS_KEYS, Rows
from transformer_norms.text_tables import file_name, listed, printable

SECTIONS = ("differences", "finals", "costs", "curves", "tuning", "axes", "probes")
_ROW, _FRAME = 0.19, 0.62  # inches of a row of names, and of what surrounds rows
_LETTER = 0.55  # of the size of text, the width of most letters
_NAMES = 0.4  # of the width, for names of rows
_LISTED = 16  # panels in a message


@dataclass(frozen=True)
class Panel:
    """`section` is one of SECTIONS of a page, which shows `title` and `note`. `rows` are the names
    of its rows, for a panel that has rows instead of a number upwards, and `above` the inches of
    what it draws above them."""

    section: str
    name: str
    title: str
    draw: Callable[[Any], None]
    rows: Sequence[str] = ()
    note: str = ""
    above: float = 0.0


def panel_files(panel: Panel, sheet: Sheet) -> dict[str, bytes]:
    """The files of a panel by name."""
    figure = draw_panel(panel, sheet.width)
    return {f"{panel.name}.{kind}": figure_bytes(figure, kind) for kind in sheet.formats}


def draw_panel(panel: Panel, width: float, height: float | None = None) -> Any:
    """The figure of a panel, of a size in inches. A panel that has rows is as high as its rows."""
    letters = int(_NAMES * width * 72 / (_LETTER * TEXT))
    names = [fill(printable(name), letters) for name in panel.rows]
    lines = sum(1 + name.count("\n") for name in names)
    if names:
        height = max(1.3, _FRAME + _ROW * lines) + panel.above
    size = width, height or 1.2 + width / 3
    figure, axes = subplots(figsize=size, layout="constrained")
    panel.draw(axes)
    if names:
        axes.set_yticks(range(len(names)), names, parse_math=False)
    elif len(label := axes.get_ylabel()) * _LETTER * TEXT > 0.8 * size[1] * 72:
        axes.set_ylabel(label.replace(", ", ",\n"))
    return figure


def panels(
    findings: Findings, rows: Mapping[Path, Rows], most: int | None = None
) -> Iterator[Panel]:
    """Yields the panels for which there are numbers. A curve has at most `most` points."""
    study = findings.study
    if compared := difference_rows(findings):
        title = "Differences from the baseline, by seed"
        yield difference_panel(title, compared, study.margin, at_text(study.at))
    if ended := [variant for variant in study.variants if variant.ended]:
        names = [variant.name for variant in ended]
        yield Panel("finals", "final-loss", "The final loss of every seed, by variant",
                    lambda axes: draw_finals(axes, findings, ended), names)  # fmt: skip
    for draw in step_time_panels(findings):
        title = "The final loss by the time of a step"
        yield Panel("costs", "final-loss-by-step-time", title, draw)
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


def chosen_panels(
    wanted: Sequence[str], findings: Findings, rows: Mapping[Path, Rows]
) -> list[Panel]:
    """Returns the panels of these names, or all without any. Raises ConfigError, one line, if the
    report has no panel of a typed name."""
    there = {panel.name: panel for panel in panels(findings, rows)}
    if wanted == PANELS:  # nothing was typed, and not every report has all of them
        return [there[name] for name in wanted if name in there]
    for name in (name for name in wanted if name not in there):
        near, known = suggestion(name, there), listed(["all", *there], _LISTED)
        raise ConfigError(f"--panels {name}: {near}there is no such panel; there are {known}")
    return [there[name] for name in wanted or there]


def difference_panel(title: str, rows: Sequence[Row], margin: float, at: str = "") -> Panel:
    draw = partial(draw_difference_rows, rows=rows, margin=margin, budget=at)
    names = [name for _, name, _ in rows]
    return Panel("differences", "differences", title, draw, names, above=LEGEND)


def _training_panels(
    findings: Findings, rows: Mapping[Path, Rows], most: int | None
) -> Iterator[Panel]:
    """Yields the curves of the validation loss along each of ALONG, and all of it on logarithmic
    axes. They are curves of the training loss where there are too few evaluations."""
    variants = [variant for variant in findings.study.variants if variant.ended]
    every = ((key, curves_of(findings, variants, rows, key, most)) for key in LOSS_KEYS)
    loss, curves = next((one for one in every if one[1]), ("", []))
    for view in (*(CurveView(loss, along) for along in ALONG), CurveView(loss, log=True)):
        if any(map(view.known, curves)):
            draw = partial(draw_training, findings.study, variants, curves, view)
            title = f"{LOSS_KEYS[loss]} by {ALONG[view.along]}"
            title = f"{title}, all of it on logarithmic axes" if view.log else title
            yield Panel("curves", f"loss-by-{view.along}{'-log' if view.log else ''}", title, draw)
