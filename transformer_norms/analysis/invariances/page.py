"""The files of what norms are invariant to: a page for students, a figure, tables."""

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

import torch
from jinja2 import Environment
from markupsafe import Markup

from transformer_norms.analysis.invariances import laws
from transformer_norms.analysis.invariances.figure import figure
from transformer_norms.analysis.invariances.measuring import HOLDS_BELOW, SMALL, SPREAD, Answers
from transformer_norms.analysis.invariances.tables import (
    ROUNDING,
    as_csv,
    exact,
    grouped,
    markdown_table,
    number,
    word,
)
from transformer_norms.report.templates import templates

_HERE = Path(__file__).parent
_STYLE = _HERE.parents[1] / "report" / "page" / "page.css"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def files(rows: Sequence[Answers]) -> dict[str, bytes]:
    return {
        "invariances.html": page(rows).encode(),
        "invariances.svg": figure(rows),
        "invariances.csv": as_csv(rows),
        "invariances.md": markdown_table(rows).encode(),
    }


def page(rows: Sequence[Answers]) -> str:
    """One file that loads nothing and runs nothing."""
    abouts = [(about, len(list(own))) for about, own in groupby(law.about for law in laws.LAWS)]
    return (
        _environment()
        .get_template("page.html")
        .render(
            policy=_POLICY,
            style=Markup(_STYLE.read_text(encoding="utf-8")),
            rows=rows,
            groups=grouped(rows),
            abouts=abouts,
            setting=laws,
            leaks=[row for row in rows if not row.changes["later_training"].holds],
            holds_below=HOLDS_BELOW,
            small=SMALL[0],
            spread=SPREAD,
            rounding=ROUNDING,
            torch=torch.__version__,
        )
    )


@cache
def _environment() -> Environment:
    environment = templates(_HERE)
    environment.filters |= {"exact": exact, "number": number, "word": word}
    return environment
