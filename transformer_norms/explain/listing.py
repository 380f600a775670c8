"""All choices, a line each with its source, read from the files and classes of the choices."""

from itertools import takewhile
from typing import Any

import yaml

from transformer_norms.config.checks.registered import USES
from transformer_norms.explain.anatomy import first_paragraph
from transformer_norms.explain.painting import wrap
from transformer_norms.explain.text import heading
from transformer_norms.model.mlp import ACTIVATIONS
from transformer_norms.names import AXES_OF_A_RUN, option_files


def listing() -> str:
    lines: list[str] = []
    for axis in AXES_OF_A_RUN:
        lines += heading(f"{axis}=")
        files = option_files(axis)
        wide = max(len(name) for name in files)
        for name, file in files.items():
            description = _description(axis, file.read_text(encoding="utf-8"))
            lines += wrap(f"{name:<{wide}}  {description}", "  ", " " * (wide + 4))
    return "\n".join(lines[1:]) + "\n"


def _description(axis: str, text: str) -> str:
    """A choice's source; else the comment at the top of its file; else the docstring of its class;
    else the content of its file."""
    content: dict[str, Any] = yaml.safe_load(text) or {}
    # A preset says its source under `about`, a recipe under `recipe`.
    about: dict[str, Any] = content.get("about", content.get("recipe", content))
    if "source" in about:
        return f"{about['source']}{' (unverified)' if 'unverified' in about else ''}"
    if comment := _comment(text):
        return comment
    if axis == "mlp":
        activation = ACTIVATIONS[content["activation"]]
        return f"{content['type']}: {first_paragraph(activation)}"
    if axis in USES and "type" in content:
        return first_paragraph(USES[axis].registry[content["type"]])
    return ", ".join(f"{key} {value}" for key, value in content.items()) or "no choice"


def _comment(text: str) -> str:
    """The lines of comment at the top of a file, without the line that Hydra reads."""
    top = takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = (line.lstrip("# ") for line in top if not line.startswith("# @package"))
    return " ".join(lines)
