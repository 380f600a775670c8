"""Anybody's text made inert: in a terminal, a spreadsheet, Markdown, LaTeX and a chart.

What a report shows comes from folders that somebody else may have made. In each, a newline or tab
becomes a space, and what does not print (controls, lone surrogates, reversed writing) `?`.
"""

from typing import Any

# A cell that begins so is a formula to some spreadsheet; the last four are full-width.
_FORMULA = ("=", "+", "-", "@", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*|[]<>#~$"} | {"&": "&amp;"})
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "#$%&_{}"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "−": "$-$", "∞": r"$\infty$"}
)


def printable(text: object) -> str:
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in str(text))


def cell(value: Any) -> Any:
    """A spreadsheet's cell: numbers as they are, text that begins as a formula behind a quote."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def markdown(text: object) -> str:
    return printable(text).translate(_MARKDOWN)


def latex(text: object) -> str:
    return printable(text).translate(_LATEX)


def label_text(text: object) -> str:
    """For plotly, which reads tags and entities in names, ticks and hover text."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
