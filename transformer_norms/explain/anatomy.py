"""One built block as names: what stands where, and what multiplies what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from transformer_norms.explain.reading import Factor, Reader, Standing, Values
from transformer_norms.explain.sites import widths_inside
from transformer_norms.model.attention import Attention
from transformer_norms.model.block import DualBlock, ParallelBlock, SubLayer
from transformer_norms.model.coefficient import Adding
from transformer_norms.model.sites import HEAD_SITES, SubLayerPlan
from transformer_norms.norms import nothing

STREAM_SITES = ("pre", "out", "post")


@dataclass(frozen=True)
class Anatomy:
    """A sub-layer: norms by site, factors by symbol, and what else its drawing wants."""

    name: str
    sites: Mapping[str, Standing]
    factors: Mapping[str, Factor]
    start: bool = False  # whether the block's input is added once more
    cap: float | None = None  # of attention's logits
    activation: str = ""
    gated: bool = False
    shared_b: bool = False  # whether b is the other sub-layer's as well


@dataclass(frozen=True)
class BlockAnatomy:
    topology: str
    parts: Mapping[str, Anatomy]
    sites: Mapping[str, Standing] = field(default_factory=dict)  # those of the block as a whole


def dissect(reader: Reader, i: int, block: nn.Module) -> BlockAnatomy:
    """Block i of a model as it is."""
    placement = reader.placement
    plans = placement.plans(i, reader.config["model"]["depth"])
    values = reader.inside(i)
    parts = {}
    for name, plan in plans.items():
        sub_layer = getattr(block, name)
        assert isinstance(sub_layer, SubLayer)
        parts[name] = _sub_layer(reader, name, sub_layer, plan, values)
    if parts["attention"].factors.get("b") and _same_branch(block):
        parts = {name: Anatomy(**{**vars(of), "shared_b": True}) for name, of in parts.items()}
    width = _width(block)
    whole = {
        site: reader.standing(site, getattr(block, site), width, plan.scale, values)
        for site, plan in placement.whole.sites.items()
    }
    kind = {ParallelBlock: "parallel", DualBlock: "dual"}.get(type(block), "serial")
    return BlockAnatomy(kind, parts, {k: v for k, v in whole.items() if v})


def _same_branch(block: Any) -> bool:
    return block.attention.branch is block.mlp.branch


def _width(block: Any) -> int:
    return block.attention.f.output.out_features


def _sub_layer(
    reader: Reader, name: str, sub_layer: SubLayer, plan: SubLayerPlan, values: Values
) -> Anatomy:
    f: Any = sub_layer.f
    writes = f.output if isinstance(f, Attention) else f.down
    widths = dict.fromkeys(STREAM_SITES, writes.out_features)
    places: dict[str, Any] = {site: getattr(sub_layer, site) for site in STREAM_SITES}
    multiplies: dict[str, tuple[Any, Any]] = {
        "a": (sub_layer.skip, plan.coefficient("a")),
        "b": (sub_layer.branch, plan.coefficient("b")),
    }
    more: dict[str, Any] = {}
    inner: tuple[str, ...]
    full: dict[str, int] = {}
    if isinstance(f, Attention):
        inner = (*HEAD_SITES, "head_norm", "ctx")
        widths, full = widths | widths_inside(f), widths_inside(f, full=True)
        multiplies["head_scale"] = (f.head_scale, plan.coefficient("head_scale"))
        written = reader.config["architecture"]["attention_scale"]
        multiplies["attention_scale"] = (f.scale, written)
        more["cap"] = cap_of(f)
    else:
        inner = ("mid",)
        widths["mid"] = writes.in_features
        multiplies["hidden_scale"] = (f.up_scale, plan.coefficient("hidden_scale"))
        if f.gated:
            multiplies["hidden_scale of the gate"] = (f.gate_scale, multiplies["hidden_scale"][1])
        more |= {"activation": _named(f.activation), "gated": f.gated}
    places |= {site: getattr(f, site) for site in inner}
    found = {
        site: reader.standing(
            site, module, widths[site], plan.site(site).scale, values, full.get(site, 0)
        )
        for site, module in places.items()
    }
    factors = {
        symbol: reader.factor(symbol, thing, spec, values)
        for symbol, (thing, spec) in multiplies.items()
    }
    return Anatomy(
        name,
        {site: standing for site, standing in found.items() if standing},
        {symbol: factor for symbol, factor in factors.items() if factor},
        start=isinstance(sub_layer.skip, Adding),
        **more,
    )


def _named(function: Any) -> str:
    return getattr(function, "__name__", str(function))


def cap_of(attention: Attention) -> float | None:
    return getattr(attention.attend, "cap", None)


def constant_scale(attention: Attention) -> float | None:
    """What q k^T is multiplied by inside `attend`; None where a learned scale stands before."""
    return getattr(attention.attend, "scale", None) if attention.scale is nothing else None
