"""What run folders say: a page, figures and tables. Reads folders and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_norms.report.findings import Findings

from transformer_norms.errors import ConfigError


def write_report(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    baseline: dict[str, Any] | None = None,
    effect: float | None = None,
    refresh: int | None = None,
) -> tuple[Path, "Findings"]:
    """Writes report.html, results.csv, table.md, table.tex and curves into `out`, else into the
    first of `folders`; the path of report.html, and what was found. A page of an unfinished study
    is loaded anew by its browser every `refresh` seconds. ConfigError, one line and nothing
    written, where runs must not be compared or a folder is not what it should be."""
    from transformer_norms.progress import Live
    from transformer_norms.report.findings import findings
    from transformer_norms.report.gathering import read_study
    from transformer_norms.report.writing import write

    if isinstance(folders, (str, Path)):
        raise ConfigError(
            f"{str(folders)!r}: a list of folders is wanted, such as [{str(folders)!r}]"
        )
    with Live() as live:
        found = findings(read_study([Path(folder) for folder in folders], baseline, effect, live))
        return write(found, None if out is None else Path(out), refresh, live), found
