"""table.tex: the table for a paper, with booktabs."""

from collections.abc import Iterable

from transformer_norms.report.escape import latex, printable
from transformer_norms.report.findings import Findings
from transformer_norms.report.notes import how
from transformer_norms.report.table import table

_LEFT_OUT = ("median", "correlation")  # what a paper's table can do without
_WORDS = ("variant", "verdict")


def table_tex(findings: Findings) -> str:
    r"""A tabular that needs \usepackage{booktabs}; how its numbers came about, as a comment."""
    columns = {name: cells for name, cells in table(findings).items() if name not in _LEFT_OUT}
    align = "".join("l" if name in _WORDS else "r" for name in columns)
    lines = [
        f"% {printable(findings.study.question or 'Runs by variant')}",
        f"% {printable(how(findings))}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _row(columns),
        r"\midrule",
        *map(_row, zip(*columns.values(), strict=True)),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return " & ".join(map(latex, cells)) + r" \\"
