"""A report in Python and in a notebook: its answer, its table and its figure."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import escape
from pandas import DataFrame

from transformer_norms.config.finding import find_study
from transformer_norms.report.answer import answer
from transformer_norms.report.curves import draw_curves
from transformer_norms.report.findings import findings
from transformer_norms.report.gathering import read_study
from transformer_norms.report.study import Study, read_rows
from transformer_norms.report.table import summary_lines, table
from transformer_norms.run.reader import Runs


class Figure(bytes):
    """The bytes of an SVG, which a notebook shows."""

    def _repr_svg_(self) -> str:
        return self.decode()


class ShownReport:
    """A report's first sentence, its `table` with a row for each variant, and its `figure`, the
    bytes of curves.svg, which are none if no run has ended. `findings` has all numbers."""

    def __init__(self, study: Study) -> None:
        self.findings = findings(study)
        self.answer = answer(self.findings).lead
        self.table = DataFrame(table(self.findings)).set_index("variant")
        drawn = draw_curves(self.findings, read_rows(study.results)[0])
        self.figure = Figure(drawn.get("curves.svg", b""))

    def __repr__(self) -> str:
        return "\n".join([self.answer, *summary_lines(self.findings)])

    def _repr_html_(self) -> str:
        image = f'<img src="data:image/svg+xml;base64,{b64encode(self.figure).decode()}">'
        return f"<p>{escape(self.answer)}</p>{self.table.to_html()}{image * bool(self.figure)}"


def compare(
    runs: str | Path | Iterable[str | Path | Mapping[str, Any]],
    baseline: dict[str, Any] | None = None, margin: float | None = None,
    contrasts: Sequence[str] = (), at: str = "", names: dict[str, str] = {},
) -> ShownReport:  # fmt: skip
    """Returns the report of runs, as `transformer-norms report` has it, and writes nothing.

    `runs` is what `runs` returned, the name or folder of a study, or a list of folders or of rows.
    The other arguments are the options of the command, such as baseline={"placement": "pre"}.
    Raises ConfigError, one line, if runs must not be compared.
    """
    several = [runs.place] if isinstance(runs, Runs) else runs
    several = [several] if isinstance(several, (str, Path)) else several
    folders = [find_study(one["folder"] if isinstance(one, Mapping) else one) for one in several]
    return ShownReport(read_study(folders, baseline, margin, contrasts, at=at, names=names))
