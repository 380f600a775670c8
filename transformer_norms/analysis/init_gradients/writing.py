"""What was found, as a table for a terminal, and as init_gradients.csv, .md and .svg."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from transformer_norms.analysis.init_gradients.asking import Setting
from transformer_norms.analysis.init_gradients.figure import figure
from transformer_norms.analysis.init_gradients.law import Variant, bounds, geometric
from transformer_norms.analysis.init_gradients.measuring import SEQUENCES, VOCABULARY, Row
from transformer_norms.analysis.writing import grid, markdown_grid, spreadsheet, written
from transformer_norms.explain.text import wrapped
from transformer_norms.model.placement import Placement
from transformer_norms.report.escape import markdown, printable

_TITLE = "Gradients and streams before training"
_DIGITS = 10  # significant: the last ones of float64 depend on the number of threads
_BOUNDS = {-0.5: "N^-1/2", 0.0: "N^0", None: ""}
_NOT_SHOWN = (
    "One step backward from the start says how large gradients are there, not how a model trains: "
    "Adam, for one, divides by it.",
    "The tokens are random, one batch of them a seed, and what the model learns from text is not "
    "in their gradients.",
    "The intervals are over seeds. A line through a few depths is no proof of a power of N, and "
    "what it is beyond them is not measured; misfit says how far from it the depths are.",
    "Two matrices of each block are measured, and neither norms nor embeddings.",
)
_NOT_SHOWN_OF_XIONG = (
    "All variants have the paper's init and shapes here: what a placement brings besides norms "
    "and skips, as DeepNorm's init, is not in this comparison. Without --xiong it is.",
)


def text(setting: Setting, found: Sequence[Variant]) -> str:
    """At most 80 columns."""
    heads, rows = cells(setting, found)
    lines = [*wrapped(f"{_TITLE}: {_asked(setting)}", ""), "", grid([heads, *rows]), ""]
    for note in (*notes(setting, found), *setting.warnings):
        lines += wrapped(printable(note), "")
    return "\n".join(lines) + "\n"


def write(setting: Setting, found: Sequence[Variant], folder: Path) -> list[str]:
    """The files' paths; ConfigError where `folder` can be none."""
    files = {
        "init_gradients.csv": _csv([row for variant in found for row in variant.rows]),
        "init_gradients.md": _markdown(setting, found).encode(),
        "init_gradients.svg": figure(found, setting.depths),
    }
    return written(folder, files)


def cells(setting: Setting, found: Sequence[Variant]) -> tuple[list[str], list[list[str]]]:
    """The table's headings, and a row a variant."""
    first, last = setting.depths[0], setting.depths[-1]
    heads = ["variant", "bound", "slope", "misfit", f"N={first}", f"N={last}", "stream"]
    return heads, [_row(variant, first, last) for variant in found]


def _row(variant: Variant, first: int, last: int) -> list[str]:
    law = variant.law
    half = "" if law is None or law.half is None else f" ± {law.half:.2f}"
    gradients = [
        geometric([row.down for row in variant.last if row.depth == n]) for n in (first, last)
    ]
    pre = variant.bound == -0.5
    stream = fmean(row.square for row in variant.last if row.depth == last)
    return [
        variant.name,
        _BOUNDS[variant.bound],
        f"{law.slope:+.2f}{half}" if law else "none",
        f"{law.misfit:.2f}" if law else "",
        *(f"{gradient:.3g}" for gradient in gradients),
        f"{stream:.3g}" + (" ({:g} to {:g})".format(*bounds(last)) if pre else ""),
    ]


def _asked(setting: Setting) -> str:
    depths, seeds = (", ".join(map(str, some)) for some in (setting.depths, setting.seeds))
    return f"N = {depths} blocks, seeds {seeds}"


def notes(setting: Setting, found: Sequence[Variant]) -> list[str]:
    """What the table's columns mean."""
    first, last = setting.depths[0], setting.depths[-1]
    said = [
        f"N={first}, N={last}: Frobenius norm of dL/dW_down in the last of N blocks, geometric "
        "mean of the seeds. slope: of its logarithm on log N, least squares for each seed; their "
        "mean and Student's 95 % interval. misfit: the largest factor between a depth's gradient "
        f"and the line. stream: mean square after block {last} of {last}, mean of the seeds."
    ]
    if setting.xiong:
        said.append(
            "bound: the power of N beyond which the gradient does not grow, proven as are the two "
            "bounds of pre's stream by Xiong et al. 2020 (arXiv:2002.04745), whose suppositions "
            "the models meet as far as a placement lets them."
        )
    else:
        said.append(
            "Xiong et al. 2020 (arXiv:2002.04745) prove bounds of pre and post under suppositions "
            "that these models do not meet; --xiong makes them."
        )
    if any(variant.law is None for variant in found):
        said.append("none: a gradient is zero or not finite, and has no logarithm.")
    placements = {name: Placement(**of[0]["placement"]) for name, of in setting.variants.items()}
    dual = [name for name, placement in placements.items() if placement.topology == "dual"]
    if dual:
        said.append(f"Of the two streams of {', '.join(dual)}, x is measured, and not r.")
    return said


def _csv(rows: Sequence[Row]) -> bytes:
    """A row for each variant, depth, seed and block."""
    found = ([_rounded(value) for value in asdict(row).values()] for row in rows)
    return spreadsheet([[field.name for field in fields(Row)], *found])


def _rounded(value: Any) -> Any:
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else value


def _markdown(setting: Setting, found: Sequence[Variant]) -> str:
    heads, rows = cells(setting, found)
    kept = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    shown = markdown_grid([[row[n] for n in kept] for row in (heads, *rows)])
    not_shown = (*_NOT_SHOWN, *(_NOT_SHOWN_OF_XIONG if setting.xiong else ()))
    sections = [
        [f"# {_TITLE}"],
        [
            f"Models as they start, in float64, of {_asked(setting)}; one batch of {SEQUENCES} "
            f"sequences of uniformly drawn tokens, {VOCABULARY} of them in the vocabulary; the "
            "gradient is that of the mean cross-entropy in nats per token. The keys:"
        ],
        [f"- {markdown(key)}" for key in setting.keys],
        [shown],
        [f"- {markdown(note)}" for note in notes(setting, found)],
        ["![by depth and by block](init_gradients.svg)"],
        ["## What this does not show"],
        [f"- {markdown(line)}" for line in not_shown],
    ]
    if setting.warnings:
        sections += [["## Warnings"], [f"- {markdown(line)}" for line in setting.warnings]]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"
