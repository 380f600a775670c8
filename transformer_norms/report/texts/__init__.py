"""The texts of a report as templates, which hold its sentences as a reader sees them.

A tag drops the newline that follows it, so that a blank line after a tag ends a line of the text.
"""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from transformer_norms.comparison.sentences import plural
from transformer_norms.report.figures import COLOURS, DASHES
from transformer_norms.text_tables import (
    Table,
    escape_markdown,
    listed,
    markdown_list,
    markdown_table,
    printable,
    rows_of,
)

_HERE = Path(__file__).parent


def render(name: str, **values: Any) -> str:
    """Returns the text of the template `name`. A name that it has and that nobody gave it is an
    error. All values in HTML are text. In Markdown alone a value may have several lines."""
    return _environment(several_lines=name.endswith(".md")).get_template(name).render(**values)


def render_lines(name: str, **values: Any) -> list[str]:
    """Returns the lines of the template `name` that are not empty."""
    return [line for line in render(name, **values).split("\n") if line]


@cache
def _environment(several_lines: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([_HERE, _HERE.parent / "page"]),
        autoescape=select_autoescape(["html"], default=False),
        undefined=StrictUndefined,
        finalize=None if several_lines else _within_a_line,
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
        "style": _line_classes,
    }
    environment.globals["zip"] = zip
    return environment


def _within_a_line(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _line_classes(place: int) -> str:
    """The classes of a variant's line, by the variant's place; the same styles as in figures."""
    return f"colour-{place % len(COLOURS)} dash-{place % len(DASHES)}"


def _grid(table: Table) -> str:
    return markdown_table(rows_of(table), straight=True)
