"""The table of every norm in a model, wherever it stands."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from transformer_norms.explain.facts import Fact, Section
from transformer_norms.explain.reading import Reader
from transformer_norms.model.attention import AllHeads, Attention
from transformer_norms.model.sites import INSIDE
from transformer_norms.norms import NORMS

KNOWN = {site for sites in INSIDE.values() for site in sites}
KNOWN |= {"pre", "out", "post", "embed", "final", "rows"}
HEADS = ("where", "module", "site", "norm", "width", "eps", "norms", "parameters")


def norms(reader: Reader, model: nn.Module) -> Section:
    """One fact for each norm, or for those of one site that are one a head."""
    found: Counter[tuple[Any, ...]] = Counter()
    for name, module in norms_in(model):
        width = width_of(model, name)
        inside = re.match(r"blocks\.(\d+)\.", name)
        pattern = re.sub(r"^blocks\.\d+\.", "", _module(name))
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


def _module(name: str) -> str:
    """What stands at the site: the norm, or what scales it or spreads it over heads."""
    parts = name.split(".")
    sites = [n for n, part in enumerate(parts) if part in KNOWN]
    return ".".join(parts[: sites[-1] + 1]) if sites else name


def _site(name: str) -> str:
    """A place that no placement knows is named as it is."""
    return _module(name).rpartition(".")[2]


def width_of(model: nn.Module, name: str) -> int:
    """The features that the norm of that name acts on, from what stands around it."""
    parts = name.split(".")
    if "f" not in parts:
        embedding: Any = model.get_submodule("embedding")
        return embedding.weight.shape[1]
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


def epsilon(norm: nn.Module) -> str:
    """A norm's eps, where it has one: its own or that of the length which it divides by."""
    length = getattr(norm, "length", None)
    eps = getattr(norm, "eps", None)
    if eps is None and length is not None:
        eps = length.eps or math.sqrt(length.floor)
    return "" if eps is None else f"{eps:g}"


def norms_in(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every norm of the model with the name of its module, whatever site it stands at."""
    kinds = tuple(kind for kind in NORMS.values() if isinstance(kind, type))
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kinds))
