"""Writes a report: all files are made before the first is written, and none written unchanged."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live, Tell, tell_nobody, track
from transformer_norms.report.charts.panels import chosen_panels, panel_files
from transformer_norms.report.curves import draw_curves
from transformer_norms.report.figures import drawn_with
from transformer_norms.report.findings import Findings, findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.page import content_of, render_page
from transformer_norms.report.paper.appendix import appendix_files
from transformer_norms.report.paper.figure_sheet import TEXT, Sheet
from transformer_norms.report.paper.latex import paper_files
from transformer_norms.report.rates import draw_rates
from transformer_norms.report.study import RowsOf, read_rows
from transformer_norms.report.texts import render
from transformer_norms.storage.files import remove_leftovers, storage, write_bytes
from transformer_norms.text_tables import csv_table, show


def write_report(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    baseline: dict[str, Any] | None = None,
    margin: float | None = None,
    contrasts: Sequence[str] = (),
    at: str = "",
    names: dict[str, str] = {},
    wanted: Sequence[str] = (),
    appendix: bool = False,
) -> tuple[Path, Findings]:
    """Writes report.html, results.csv, table.md, tables for LaTeX with their sources, and curves
    into `out`, else into the first of `folders`. Returns the path of report.html, and the findings.
    `names` are shown in the place of words of labels, and `appendix` writes appendix.md and
    appendix.tex, too.

    Raises ConfigError, one line and nothing written, if runs must not be compared, a folder is not
    what it should be, or the report has no panel of a name in `wanted`.
    """
    if isinstance(folders, (str, Path)):
        raise ConfigError(
            f"{str(folders)!r}: a list of folders is wanted, such as [{str(folders)!r}]"
        )
    with Live() as live:
        places = [Path(folder) for folder in folders]
        study = read_study(places, baseline, margin, contrasts, live, at, names)
        runs = list({member.folder: member.run for member in study.runs if member.run}.values())
        rows, damaged = read_rows(track(live, "reading curves {:.0f}/{:.0f}", runs))
        study = replace(study, damaged=[*study.damaged, *damaged])
        results = findings(study)
        chosen_panels(wanted, results, rows)  # before anything is written
        files = _report_files(results, rows, live, appendix)
        folder = study.home if out is None else Path(out)
        write_files(folder, files)
        return folder / "report.html", results


def _report_files(findings: Findings, rows: RowsOf, tell: Tell, appendix: bool) -> dict[str, bytes]:
    tell("drawing", 0, 0)
    content = content_of(findings)
    papers = paper_files(findings, content["column_notes"])
    papers |= appendix_files(findings, content) if appendix else {}
    return {
        "report.html": render_page(content, findings, rows),
        "results.csv": _results_csv(findings),
        **{name: text.encode() for name, text in papers.items()},
        "table.md": render("table.md", **content).encode(),
        **draw_curves(findings, rows),
        **draw_rates(findings.study),
    }


def write_figures(
    findings: Findings, folder: str | Path, sheet: Sheet, tell: Tell = tell_nobody
) -> list[str]:
    """Writes the panels that the sheet names into `folder`, in each format. Returns the paths of
    all files. A file that would not change is not touched."""
    rows, _ = read_rows(findings.study.results)
    files: dict[str, bytes] = {}
    wanted = chosen_panels(sheet.panels, findings, rows)
    with drawn_with(TEXT, sheet.settings()):
        for panel in track(tell, "drawing figures {:.0f}/{:.0f}", wanted):
            files |= panel_files(panel, sheet)
    return write_files(Path(folder), files, "--figures")


def write_files(folder: Path, files: Mapping[str, bytes], flag: str = "--out") -> list[str]:
    """Writes the files that have changed into `folder`, which may be missing. Returns all paths.
    `flag` is how the folder was typed."""
    with storage(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            raise ConfigError(f"{flag} {folder}: is not a folder: {error.strerror}") from None
        remove_leftovers(folder)
        for name, data in files.items():
            path = folder / name
            if path.is_symlink() or not path.is_file() or path.read_bytes() != data:
                write_bytes(path, data)
    return [str(folder / name) for name in files]


def _results_csv(findings: Findings) -> bytes:
    """results.csv: a row for each run, planned by a sweep or not, in full precision."""
    rows = findings.table.to_numpy().tolist()
    cells = [[show(one) if isinstance(one, Mapping) else one for one in row] for row in rows]
    return csv_table([[*findings.table] or ["study"], *cells])
