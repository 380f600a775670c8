"""The report of run folders: a page, figures and tables. It reads folders and nothing else."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_norms.report.writing import write_report as write_report


def __getattr__(name: str) -> Any:
    """Imports `write_report` when it is asked for: its libraries take a while."""
    if name == "write_report":
        from transformer_norms.report.writing import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
