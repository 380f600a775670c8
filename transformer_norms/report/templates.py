"""Templates of pages: whatever stands in them is text, and what does not print is `?`."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from transformer_norms.report.escape import printable


def templates(folder: Path) -> Environment:
    """Those in `folder`. A name that a template has and nobody gave it is an error."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )


def _printable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
