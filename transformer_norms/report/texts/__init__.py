"""The texts of a report as templates, which hold its sentences as a reader sees them.

A tag drops the newline that follows it, so that a blank line after a tag ends a line of the text.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from transformer_norms.comparison.sentences import listed, plural
from transformer_norms.text_tables import (
    Table,
    escape_markdown,
    markdown_list,
    markdown_table,
    printable,
    rows_of,
)


def render(name: str, **values: Any) -> str:
    """Returns the text of the template `name`. A name that it has and that nobody gave it is an
    error."""
    return _environment().get_template(name).render(**values)


def render_lines(name: str, **values: Any) -> list[str]:
    """Returns the lines of the template `name` that are not empty. A value is within one line."""
    text = _environment(finalize=_within_a_line).get_template(name).render(**values)
    return [line for line in text.split("\n") if line]


def _within_a_line(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


@cache
def _environment(finalize: Callable[[Any], Any] | None = None) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bullets": markdown_list,
        "grid": _grid,
        "listed": listed,
        "markdown": escape_markdown,
        "one_line": lambda text: " ".join(text.split()),
        "plural": plural,
    }
    return environment


def _grid(table: Table) -> str:
    return markdown_table(rows_of(table), straight=True)
