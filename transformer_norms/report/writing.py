"""The files of a report: all made before the first is written, and none written unchanged."""

from pathlib import Path

from transformer_norms.errors import ConfigError
from transformer_norms.files import storage, write_bytes
from transformer_norms.report.figure import curves
from transformer_norms.report.findings import Findings
from transformer_norms.report.latex import table_tex
from transformer_norms.report.markdown import table_md
from transformer_norms.report.rates import rates
from transformer_norms.report.results import results_csv


def write(findings: Findings, out: Path | None = None) -> Path:
    """The path of table.md, in `out` or the first folder of the study."""
    folder = out or findings.study.home
    files = {
        "results.csv": results_csv(findings.study).encode(),
        "table.tex": table_tex(findings).encode(),
        "table.md": table_md(findings).encode(),
        **curves(findings),
        **rates(findings.study),
    }
    with storage(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            raise ConfigError(f"--out {folder}: is no folder: {error.strerror}") from None
        for name, data in files.items():
            path = folder / name
            if path.is_symlink() or not path.is_file() or path.read_bytes() != data:
                write_bytes(path, data)
    return folder / "table.md"
