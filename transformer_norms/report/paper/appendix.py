"""The appendix of a paper, as Markdown and as LaTeX: what the runs of a study recorded.

texts/appendix.txt has its sentences and tables. The first character of a line says what it is: # a
heading, : a paragraph, - an item of a list, | a row of a table, whose first row is the heading.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from transformer_norms import text_tables
from transformer_norms.kinds import value_at
from transformer_norms.report.fairness import mixture_notes
from transformer_norms.report.findings import Findings
from transformer_norms.report.paper.citations import choices_of
from transformer_norms.report.paper.latex import latex_text
from transformer_norms.report.study import Study, ended_runs
from transformer_norms.report.table import branch_note, regime_notes
from transformer_norms.report.texts import render_lines
from transformer_norms.report.tuning_audit import audits, loss_text
from transformer_norms.run.summary import Summary
from transformer_norms.text_tables import Rows, latex_tabular, printable, shorten, show

_LONGEST = 30  # rows of a tabular, which LaTeX does not break at the end of a page
_FORMULA = ("formula", "equation", "where", "learned")  # keys of a choice


def appendix_files(findings: Findings, content: Mapping[str, Any]) -> dict[str, str]:
    """appendix.md and appendix.tex. Parts and columns without content are left out."""
    study = findings.study
    runs = [*{member.folder: member.run for member in study.counted if member.run}.values()]
    lines = render_lines(
        "appendix.txt",
        row=lambda *cells: Markup("| " + "\t".join(map(printable, cells))),  # no cell has a tab
        pairs=lambda some: ", ".join(f"{key} {shorten(show(some[key]))}" for key in some),
        show=show,
        data=[*{run.summary.data.fingerprint: run.summary.data for run in runs}.values()],
        regime_notes=regime_notes(findings),
        ended_runs=ended_runs,
        best=lambda variant: [variant.best_text(key) for key in study.tune],
        choices=_choices(study),
        audits=audits(study),
        loss_text=loss_text,
        costs=_costs,
        failures=study.trial_failures | study.result_failures,
        branch=branch_note(study),
        mixed=mixture_notes(runs),
        versions=sorted({f"{k} {v}" for run in runs for k, v in run.summary.versions.items()}),
        commands=sorted({str(run.summary.process.get("command", "")) for run in runs} - {""}),
        **content,
    )
    return {"appendix.md": _written(_MARKDOWN, lines), "appendix.tex": _written(_LATEX, lines)}


def _choices(study: Study) -> list[tuple[str, str, str]]:
    """Each choice of the results, with its formula and its source, where it has one of them."""
    rows: dict[tuple[str, str, str], None] = {}
    for run in (run for variant in study.variants for run in variant.ended[:1]):
        for choice, source in choices_of(run.config).items():
            axis = choice.partition("=")[0]
            node = value_at(run.config, axis) if axis.startswith(("norm", "placement")) else {}
            formula = {key: node[key] for key in _FORMULA if node.get(key)}
            rows[choice, show(formula), source] = None
    return [row for row in rows if any(row[1:])]


def _costs(summaries: Iterable[Summary]) -> tuple[str, str, str]:
    """The tokens, the FLOPs and the hours of training and evaluation, as far as recorded."""
    costs = [[s.tokens, s.flops, s.seconds, s.evaluation_seconds] for s in summaries]
    tokens, flops, *seconds = (sum(cost[n] or 0 for cost in costs) for n in range(4))
    return f"{tokens:,}", f"{flops:.3g}", f"{sum(seconds) / 3600:.2f}"


_Form = dict[str, Callable[[Any], str]]  # how a format writes a part of each kind


def _written(form: _Form, lines: Sequence[str]) -> str:
    texts, heading = [], ""
    for kind, group in groupby(lines, lambda line: line[0]):
        part: list[Any] = [line[2:] for line in group]
        if kind == "|":
            columns = zip(*(line.split("\t") for line in part), strict=True)
            part = [*zip(*(column for column in columns if any(column[1:])), strict=True)]
        if kind == "#":
            heading = form[kind](part[-1])
        elif part:
            texts += [*filter(None, [heading]), form[kind](part)]
            heading = ""
    return "\n\n".join(texts) + "\n"


def _latex_list(texts: Sequence[str]) -> str:
    items = [rf"\item {{}}{latex_text(text)}" for text in texts]  # [ would begin an argument
    return "\n".join([r"\begin{itemize}", *items, r"\end{itemize}"])


def _latex_table(rows: Rows) -> str:
    """Tabulars as wide as a line at most: the widest columns are broken, and no word is."""
    columns = [*zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    words = [max(map(len, " - ".join(column).split())) for column in columns]
    fitted = text_tables.fitted_widths(widths, text_tables.COLUMNS - 2 * len(widths), words)
    align, forms = [], []
    for width, whole in zip(fitted, widths, strict=True):
        align.append(
            "l" if width == whole else rf"p{{{width / text_tables.COLUMNS:.3f}\linewidth}}"
        )
        forms.append("{}" if width == whole else r"{{\raggedright {}\par}}")
    head, *cells = [
        [form.format(latex_text(cell)) for form, cell in zip(forms, row, strict=True)]
        for row in rows
    ]
    tabulars = [
        latex_tabular([head, *cells[n : n + _LONGEST]], f"@{{}}{''.join(align)}@{{}}")
        for n in range(0, len(cells), _LONGEST)
    ]
    small = r"\footnotesize\setlength{\tabcolsep}{3pt}"
    return "\n".join([r"\begin{center}", small, "\n\n".join(tabulars), r"\end{center}"])


_MARKDOWN: _Form = {
    "#": lambda text: f"## {text_tables.escape_markdown(text)}",
    ":": lambda texts: "\n\n".join(map(text_tables.escape_markdown, texts)),
    "-": text_tables.markdown_list,
    "|": lambda rows: text_tables.markdown_table(rows, straight=True),
}
_LATEX: _Form = {
    "#": lambda text: rf"\subsection{{{latex_text(text)}}}",
    ":": lambda texts: "\n\n".join(map(latex_text, texts)),
    "-": _latex_list,
    "|": _latex_table,
}
