"""Everything that can be chosen, a line each with its source, read from the choices themselves."""

from collections.abc import Mapping
from typing import Any

import yaml

from transformer_norms.config.tree import TRACKING
from transformer_norms.data import CORPORA, TOKENIZERS
from transformer_norms.explain.text import heading, wrap
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.model.mlp import ACTIVATIONS, MLPS
from transformer_norms.model.position import POSITIONS
from transformer_norms.names import AXES_OF_A_RUN, option_files
from transformer_norms.norms import NORMS
from transformer_norms.training.loss import LOSSES
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.schedule import SCHEDULES

# The registry of each axis: a choice's `type` names a class whose docstring is shown.
REGISTRIES: Mapping[str, Mapping[str, Any]] = {
    "norm": NORMS,
    "position": POSITIONS,
    "attention": ATTENTIONS,
    "mlp": MLPS,
    "data": CORPORA,
    "tokenizer": TOKENIZERS,
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "tracking": TRACKING,
}


def listing() -> str:
    lines: list[str] = []
    for axis in AXES_OF_A_RUN:
        lines += heading(f"{axis}=")
        files = option_files(axis)
        wide = max(len(name) for name in files)
        for name, file in files.items():
            said = _said(axis, file.read_text())
            lines += wrap(f"{name:<{wide}}  {said}", "  ", " " * (wide + 4))
    return "\n".join(lines[1:]) + "\n"


def _said(axis: str, text: str) -> str:
    """A choice's source; else the comment at the top of its file; else what its class says; else
    what it holds."""
    held: dict[str, Any] = yaml.safe_load(text) or {}
    about: dict[str, Any] = held.get("about", held)  # a preset's, else the choice's own
    if "source" in about:
        return f"{about['source']}{' (unverified)' if 'unverified' in about else ''}"
    comment = _comment(text)
    if comment:
        return comment
    if axis == "mlp":
        own = ACTIVATIONS[held["activation"]].__doc__
        return f"{held['type']}: {_first(own)}"
    thing = REGISTRIES.get(axis, {}).get(held.get("type", ""))
    if thing is not None and thing.__doc__:
        return _first(thing.__doc__)
    return ", ".join(f"{key} {value}" for key, value in held.items()) or "no choice"


def _comment(text: str) -> str:
    """The first lines of a file, if they are a comment, without what they say to Hydra."""
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            found.append(line.lstrip("# "))
    return " ".join(found)


def _first(docstring: str | None) -> str:
    """Its first paragraph, blanks single."""
    return " ".join((docstring or "").split("\n\n")[0].split())
