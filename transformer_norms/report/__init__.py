"""What run folders say: figures and tables. Reads folders and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_norms.report.findings import Findings


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    baseline: dict[str, Any] | None = None,
    effect: float | None = None,
) -> tuple[Path, "Findings"]:
    """Writes results.csv, table.md, table.tex and curves into `out`, else into the first of
    `folders`; the path of table.md, and what was found. ConfigError, one line and nothing written,
    where runs must not be compared or a folder is not what it should be."""
    from transformer_norms.report.findings import findings
    from transformer_norms.report.gathering import read_study
    from transformer_norms.report.writing import write

    found = findings(read_study(folders, baseline, effect))
    return write(found, out), found
