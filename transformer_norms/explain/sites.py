"""The table of every norm in a model, wherever it stands."""

import re
from collections import Counter
from typing import Any

from torch import nn

from transformer_norms.attention import AllHeads, Attention
from transformer_norms.explain.facts import Fact, Section
from transformer_norms.explain.reading import Reader, epsilon, norms_in
from transformer_norms.placement import SITES

KNOWN = {site for sites in SITES.values() for site in sites} | {"embed", "final", "rows"}
HEADS = ("where", "module", "site", "norm", "width", "eps", "norms", "parameters")


def norms(reader: Reader, model: nn.Module) -> Section:
    """One fact for each norm, or for those of one site that are one a head."""
    found: Counter[tuple[Any, ...]] = Counter()
    for name, module in norms_in(model):
        width = width_of(model, name)
        inside = re.match(r"blocks\.(\d+)\.", name)
        pattern = re.sub(r"^blocks\.\d+\.", "", re.sub(r"\.heads\.\d+$", ".heads.*", name))
        kind = reader.shown(reader.name(module, width))
        own = sum(parameter.numel() for parameter in module.parameters())
        where = int(inside[1]) if inside else None
        found[pattern, _site(name), kind, str(width), epsilon(module) or "-", own, where] += 1
    facts = [
        Fact(pattern, (site, kind, width, eps, count, own * count), where)
        for (pattern, site, kind, width, eps, own, where), count in found.items()
    ]
    total = sum(int(fact.cells[-2]) for fact in facts), sum(int(fact.cells[-1]) for fact in facts)
    last = Fact("all", ("", "", "", "", *total))
    return Section("Where norms stand", HEADS, [*facts, last])


def _site(name: str) -> str:
    """A place that no placement knows is named as it is."""
    parts = name.split(".")
    return next((part for part in reversed(parts) if part in KNOWN), parts[-1])


def width_of(model: nn.Module, name: str) -> int:
    """The features that the norm of that name acts on, from what stands around it."""
    parts = name.split(".")
    if "f" not in parts:
        return model.get_submodule("embedding").weight.shape[1]
    at = parts.index("f") + 1
    f: Any = model.get_submodule(".".join(parts[:at]))
    if isinstance(f, Attention):
        full = isinstance(model.get_submodule(".".join(parts[:-1])), AllHeads)
        return widths_inside(f, full)[parts[at]]
    return f.down.in_features


def widths_inside(attention: Attention, full: bool = False) -> dict[str, int]:
    """By site; `full` for a norm over all heads side by side."""
    heads = {"q": attention.query, "k": attention.key, "v": attention.value}
    sides = {site: linear.out_features for site, linear in heads.items()}
    context = attention.output.in_features
    one = dict.fromkeys([*sides, "head_norm"], attention.head_dim)
    return {**({**sides, "head_norm": context} if full else one), "ctx": context}
