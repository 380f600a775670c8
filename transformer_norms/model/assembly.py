"""Builds the blocks of a config: each site of a placement's plan gets a norm, each factor a number.

A `Placement` (placement.py) has read its equation into a plan. `Assembly.sub_layer` turns the plan
into the arguments of a `SubLayer` (block.py), whose `forward` computes the equation.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from transformer_norms.model.architecture import BlockChoices
from transformer_norms.model.attention import Attention
from transformer_norms.model.attentions.heads import AllHeads, PerHead
from transformer_norms.model.attentions.options import attention_options
from transformer_norms.model.block import BLOCKS, SubLayer
from transformer_norms.model.coefficient import (
    OneMinusBranch,
    Scaled,
    ScaledNorm,
    WeightedSum,
    coefficient,
    head_shapes,
    stream_shapes,
)
from transformer_norms.model.connections import CONNECTIONS, build_part
from transformer_norms.model.initialization import biased
from transformer_norms.model.mlp import ACTIVATIONS, MLPS, SparseActivation
from transformer_norms.model.placement import PARTS, attention_sites, read_placement
from transformer_norms.model.position import ORDERS, NoPosition
from transformer_norms.model.settings import ModelConfig
from transformer_norms.model.sites import (
    HEAD_SITES,
    INSIDE,
    KV_SITES,
    NORMED,
    REST_OF_B,
    NormPlace,
    Site,
    SubLayerPlan,
)
from transformer_norms.norms import NORMS, Place, nothing

Module = Any  # an nn.Module, or the function `nothing`
assert set(BLOCKS) == set(PARTS)


class Assembly:
    """assembly(i) is block i of the model that a composed config describes. `norm`, if
    given, replaces the run's norm: anything that is called as norm(width). In the methods, `kind`
    is attention, mlp or block, and `own` has the choices of one block."""

    def __init__(
        self,
        config: ModelConfig,
        position: NoPosition,
        norm: Callable[[int], nn.Module] | None = None,
        vocab_size: int = 0,
    ) -> None:
        self.config, self.position, self.run_norm = config, position, norm
        self.vocab_size = vocab_size
        self.placement = read_placement(config.placement)
        self.sizes, self.blocks = config.model, config.blocks
        self.biased = biased(config.architecture.bias)

    def __call__(self, i: int) -> nn.Module:
        own, plans = self.blocks[i], self.placement.plans(i, self.sizes.depth)
        functions = {
            "attention": self.attention(plans["attention"], own),
            "mlp": self.mlp(plans["mlp"], own),
        }
        shared: dict[str, Module] = {}
        parts = {
            name: self.sub_layer(plan, name, functions[name], own, shared)
            for name, plan in plans.items()
        }
        block_plan = self.placement.block_plan(i, self.sizes.depth)
        for name in block_plan.sites:
            parts[name] = self.site(block_plan, name, "attention", own, "block")
        if self.placement.topology == "blocks":
            parts["connection"] = self.connection("block", i)
        return BLOCKS[self.placement.topology](**parts)

    def sub_layer(
        self,
        plan: SubLayerPlan,
        kind: Place,
        f: nn.Module,
        own: BlockChoices,
        shared: dict[str, Any],
    ) -> SubLayer:
        """Builds a sub-layer from its plan. `shared` has the coefficients that both sub-layers of a
        block have in common."""
        alone: dict[str, Module] = {}

        def scale(slot: str) -> Module:
            """All uses of one name in the equation are one parameter."""
            spec, name = plan.scale(slot), plan.names.get(slot)
            norm = self.norm(kind, NormPlace(own.i, kind, f"inside {name}"))
            made = coefficient(spec, stream_shapes(self.sizes.width), own.values, norm)
            if name is None:
                return made
            return (shared if spec.get("share") == "block" else alone).setdefault(name, made)

        sites = {name: self.site(plan, name, kind, own) for name in ("pre", "out", "post")}
        a, branch = plan.scale("a"), scale("b")
        adds = {name: scale(name) for name in plan.adds}
        if NORMED in adds:
            adds[NORMED] = ScaledNorm(sites["pre"], adds[NORMED])
        skip = OneMinusBranch(branch) if a == REST_OF_B else scale("a")
        enters = {name: scale(f"enter.{name}") for name in plan.enters} or {"x": nothing}
        return SubLayer(
            f,
            **sites,
            enter=_sum(enters.pop("x", None), enters),
            skip=_sum(None if a == 0 and adds else skip, adds),
            branch=branch,
            dropout=dropout_of(self.sizes.dropout),
            connect=partial(self.connection, kind, own.i) if kind in self.placement.joins else None,
        )

    def attention(self, plan: SubLayerPlan, own: BlockChoices) -> Attention:
        plan = replace(plan, sites=self.sites(plan, own))
        order, heads = self.config.architecture.qk_norm_order, own.heads_at("head_norm")
        return Attention(
            own,
            bias=self.biased,
            shares_kv=self.shares_kv(own.i),
            turn=partial(ORDERS[order], self.position.rotation(own.i)),
            head_scale=coefficient(plan.scale("head_scale"), head_shapes(*heads), own.values),
            norms={name: self.site(plan, name, "attention", own) for name in INSIDE["attention"]},
            **attention_options(self.config, own, self.position, self.vocab_size),
        )

    def sites(self, plan: SubLayerPlan, own: BlockChoices) -> dict[str, Site]:
        """The norms inside an attention. Only the block that makes keys and values norms them."""
        sites = attention_sites(plan, self.config)
        absent = () if own.source is None else KV_SITES
        return {name: site for name, site in sites.items() if name not in absent}

    def shares_kv(self, i: int) -> bool:
        """Returns whether other blocks use the keys and values of block i."""
        return sum(own.kv_from_block == i for own in self.blocks) > 1

    def mlp(self, plan: SubLayerPlan, own: BlockChoices) -> nn.Module:
        kind, width = MLPS[self.config.mlp.type], self.sizes.mlp_width
        activation, share = ACTIVATIONS[self.config.mlp.activation], own.activation_sparsity
        matrices = ("up", "gate") if kind.gated else ("up",)
        spec, shapes = plan.scale("hidden_scale"), stream_shapes(width)
        norms = {f"{name}_norm": self.site(plan, "hidden", "mlp", own)
                 for name in matrices if "hidden" in plan.sites}  # fmt: skip
        return MLPS.maker(self.config.mlp)(
            width=self.sizes.width,
            mlp_width=width,
            bias=self.biased,
            activation=SparseActivation(activation, share) if share else activation,
            mid=self.site(plan, "mid", "mlp", own),
            **norms,
            **{f"{name}_scale": coefficient(spec, shapes, own.values) for name in matrices},
        )

    def site(
        self, plan: SubLayerPlan, name: str, kind: Place, own: BlockChoices, sub_layer: str = ""
    ) -> Module:
        """Returns the norm at a site of the sub-layer `kind`, with its factor. The key `qkv` names
        another norm for q, k and v, where not every norm can act."""
        at, (heads, head_dim) = plan.site(name), own.heads_at(name)
        chosen = self.config.qkv if at.norm == "norm" and name in HEAD_SITES else at.norm
        make = self.norm(kind, NormPlace(own.i, sub_layer or kind, name, chosen, share=at.share))
        width = own.width_at(name, at.share)
        norm = make(width)
        if norm is not nothing and at.share == "full":
            norm = AllHeads(norm)
        elif norm is not nothing and at.share == "per_head":
            norm = PerHead([make(width) for _ in range(heads)])
        if (scale := plan.scale(f"{name}.scale")) == 1:
            return norm
        shapes = head_shapes(heads, head_dim) if heads else stream_shapes(width)
        return Scaled(norm, coefficient(scale, shapes, own.values))

    def norm(self, word: Place, at: NormPlace) -> Callable[[int], Module]:
        """Returns a function of the width that builds the norm and stores its place. A class that
        takes `place` gets the `word`: embed, attention, mlp, block or final."""
        make = (self.run_norm if at.norm == "norm" else None) or norm_of(self.config, at.norm, word)
        return lambda width: put(make(width), replace(at, width=width))

    # ----------------------------------------------------------- what is around blocks: connections

    def end_norm(self, site: str, name: str) -> Module:
        """Returns the norm at rows, embed or final, outside of the blocks."""
        place = "final" if site == "final" else "embed"
        return self.norm(place, NormPlace(None, "", site, name))(self.sizes.width)

    def ends(self, final: Module) -> tuple[Module, Module]:
        """Returns what is between the embedded tokens and the first block, and between the last
        block and the head, of which `final` is the norm."""
        if not self.placement.connection:
            return nothing, final
        kind = CONNECTIONS[self.placement.connection["type"]]
        enter, leave = (NormPlace(None, end, "connection") for end in ("enter", "leave"))
        return self.connected(kind.enter, "embed", enter), self.connected(
            kind.leave, "final", leave, final=final
        )

    def connection(self, kind: Place, i: int, sub_layer: Any = None) -> Any:
        """The connection of the sub-layer `kind` of block i, or of the block itself."""
        connection, kinds = CONNECTIONS[self.placement.connection["type"]], self.placement.joins
        index = len(kinds) * i + kinds.index(kind)
        at = NormPlace(i, kind, "connection")
        return self.connected(connection, kind, at, sub_layer=sub_layer, index=index, l=i + 1)

    def connected(self, part: Any, word: Place, at: NormPlace, **given: Any) -> Module:
        """Returns a connection, or one of its ends, built from its class with its settings."""
        sizes = self.sizes
        built = build_part(
            part,
            width=sizes.width,
            count=len(self.placement.joins) * sizes.depth,
            depth=sizes.depth,
            norm=self.norm(word, at),
            activation=ACTIVATIONS[self.config.mlp.activation],
            vocab_size=self.vocab_size,
            **self.placement.connection,
            **given,
        )
        place_fixed_norms(built, replace(at, width=sizes.width))
        return built


def norm_of(config: ModelConfig, name: str, place: Place) -> Callable[[int], Module]:
    """`norm(width)` for the norm that a site names: norm, none, or a norm's file. A class that
    takes `place` is told where it is."""
    if name == "none":
        return NORMS["none"]
    spec = config.norm if name == "norm" else config.norms[name]
    return NORMS.maker({**spec, "place": place})


def put(norm: Module, place: NormPlace) -> Module:
    """Stores its place on a norm. `nothing` is a function, and has none."""
    if isinstance(norm, nn.Module):
        norm.norm_place = place  # type: ignore[assignment]
    return norm


def place_fixed_norms(part: Module, place: NormPlace) -> None:
    """Stores a place on each norm that is part of a connection's formula."""
    names = {kind: name for name, kind in NORMS.items()}
    for module in part.modules() if isinstance(part, nn.Module) else ():
        if type(module) in names and not hasattr(module, "norm_place"):
            widths = {parameter.shape[-1] for parameter in module.parameters()} - {1}
            width = widths.pop() if len(widths) == 1 else place.width
            put(module, replace(place, norm=names[type(module)], width=width))


def _sum(x: Module | None, others: Mapping[str, Module]) -> Module:
    """Returns the module that adds x's term and the others, or x's term alone."""
    return WeightedSum(x, others) if others else x


def dropout_of(share: float) -> Module:
    return nn.Dropout(share) if share else nothing
