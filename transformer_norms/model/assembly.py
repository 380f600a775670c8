"""One block of a config, put together from its placement's plan: names become modules here."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from transformer_norms.formula import Formula
from transformer_norms.model.attention import ATTENTIONS, Attention
from transformer_norms.model.attentions.heads import AllHeads, PerHead, Temperature, ValueMix
from transformer_norms.model.block import BLOCKS, SubLayer
from transformer_norms.model.coefficient import (
    LOW_RANK,
    SCALAR,
    Gate,
    OneMinusBranch,
    Scaled,
    ScaledNorm,
    Shapes,
    WeightedSum,
    coefficient,
)
from transformer_norms.model.connections import CONNECTIONS, build_part
from transformer_norms.model.initialization import Embedding, biased
from transformer_norms.model.mlp import ACTIVATIONS, MLPS, SparseActivation
from transformer_norms.model.placement import PARTS, attention_sites, read_placement
from transformer_norms.model.position import ORDERS, NoPosition
from transformer_norms.model.settings import BlockChoices, ModelConfig
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
    """assembly(i) is block i of the model that a composed config describes. `norm` may stand for
    the run's norm, as anything that is called as norm(width)."""

    def __init__(
        self,
        config: ModelConfig,
        position: NoPosition,
        norm: Callable[[int], nn.Module] | None = None,
        vocab_size: int = 0,
    ) -> None:
        self.config, self.position, self.own_norm = config, position, norm
        self.vocab_size = vocab_size
        self.placement = read_placement(config.placement)
        self.sizes, self.architecture = config.model, config.architecture
        self.blocks = config.blocks
        self.biased = biased(self.architecture.bias)

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
        block_plan = self.placement.block_plan
        for name in block_plan.sites:
            parts[name] = self.site(block_plan, name, "attention", own, "block")
        if self.placement.topology == "blocks":
            parts["connection"] = self.connection("block", i)
        return BLOCKS[self.placement.topology](**parts)

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

    def sub_layer(
        self,
        plan: SubLayerPlan,
        kind: Place,
        f: nn.Module,
        own: BlockChoices,
        shared: dict[str, Any],
    ) -> SubLayer:
        """`shared` holds the coefficients that both sub-layers of a block have in common."""
        alone: dict[str, Module] = {}

        def scale(slot: str, spec: Any) -> Module:
            """A learned coefficient is one parameter wherever its name stands in the equation."""
            name = plan.names.get(slot)
            norm = self.norm(kind, NormPlace(own.i, kind, f"inside {name}"))
            if name is None:
                return scale_of(spec, self.sizes.width, own.values, norm)
            held = shared if spec.get("share") == "block" else alone
            if name not in held:
                held[name] = scale_of(spec, self.sizes.width, own.values, norm)
            return held[name]

        sites = {name: self.site(plan, name, kind, own) for name in ("pre", "out", "post")}

        def mixing(x: Module | None, earlier: Mapping[str, Any], prefix: str = "") -> Module:
            adds = {name: scale(prefix + name, spec) for name, spec in earlier.items()}
            if NORMED in adds:
                adds[NORMED] = ScaledNorm(sites["pre"], adds[NORMED])
            return WeightedSum(x, adds) if adds else x

        connect = partial(self.connection, kind, own.i)
        branch = scale("b", plan.coefficient("b"))
        a, enters = plan.coefficient("a"), dict(plan.enters or {"x": 1})
        skip = OneMinusBranch(branch) if a == REST_OF_B else scale("a", a)
        x = scale("enter.x", enters.pop("x")) if "x" in enters else None
        return SubLayer(
            f,
            **sites,
            enter=mixing(x, enters, "enter."),
            skip=mixing(None if a == 0 and plan.adds else skip, plan.adds),
            branch=branch,
            dropout=dropout_of(self.sizes.dropout),
            connect=connect if kind in self.placement.joins else None,
        )

    def attention(self, plan: SubLayerPlan, own: BlockChoices) -> Attention:
        sizes, order = own.sizes, self.architecture.qk_norm_order
        plan = replace(plan, sites=self.sites(plan, own))
        attend, scale = self.attend(own)
        head_scale = plan.coefficient("head_scale")
        return Attention(
            own,
            bias=self.biased,
            attend=attend,
            scale=scale,
            shares_kv=self.shares_kv(own.i),
            temperature=self.temperature(own),
            turn=partial(ORDERS[order], self.position.rotation(own.i)),
            **{name: self.site(plan, name, "attention", own) for name in INSIDE["attention"]},
            head_scale=coefficient(head_scale, head_shapes(sizes.heads, own.value_dim), own.values),
            values=self.value_mix(own) if own.source is None else nothing,
            attention_gate=self.attention_gate(own),
        )

    def sites(self, plan: SubLayerPlan, own: BlockChoices) -> dict[str, Site]:
        """The norms inside the attention of a block. Keys and values of another block have its."""
        sites = attention_sites(plan, self.config)
        absent = () if own.source is None else KV_SITES
        return {name: site for name, site in sites.items() if name not in absent}

    def shares_kv(self, i: int) -> bool:
        """Returns whether other blocks use the keys and values of block i."""
        return sum(own.kv_from_block == i for own in self.blocks) > 1

    def temperature(self, own: BlockChoices) -> Module:
        floor, scale = own.temperature_floor, self.architecture.temperature_scale
        return Temperature(floor, scale) if floor else nothing

    def attention_gate(self, own: BlockChoices) -> Module:
        gate, sizes = self.architecture.attention_gate, own.sizes
        each = {"elementwise": own.value_dim, "per_head": 1}
        if gate == "none":
            return nothing
        return Gate(sizes.width, sizes.heads, each[gate], "attention_gate" in self.biased)

    def value_mix(self, own: BlockChoices) -> Module:
        """What values are besides W_v x: a share of the first block's, and rows of a table."""
        how, (heads, value_dim), parts = self.architecture, own.heads_at("v"), dict[str, Any]()
        if how.value_residual != "none":
            value, first = (
                coefficient(spec, head_shapes(heads, value_dim), own.values)
                for spec in (how.value_scale, how.value_residual)
            )
            parts = {"own": value, "first": first} if own.i else {"shares_kv": True}
        if factor := own.value_embedding:
            table = Embedding(self.vocab_size, heads * value_dim)
            parts |= {"value_embedding": table, "embedded": coefficient(factor, {}, own.values)}
            if how.value_gate != "none":
                parts["value_gate"] = Gate(how.value_gate, heads)
        return ValueMix(**parts) if parts else nothing

    def attend(self, own: BlockChoices) -> tuple[nn.Module, Module]:
        """The chosen attention; and the scale that multiplies q, where it is learned."""
        sizes, scale = own.sizes, self.architecture.attention_scale
        cap, learned = self.architecture.attention_cap, isinstance(scale, Mapping)
        # An attention that has no use for one of these need not name it.
        offered = {
            "sliding_window": own.sliding_window or None,
            "attention_chunk": own.attention_chunk or None,
            "position_bias": self.position.bias(own.i, sizes.heads),
        }
        attend = ATTENTIONS.maker(self.config.attention)(
            scale=1.0 if learned else float(Formula(scale)(own.values)),
            cap=None if cap == "none" else float(cap),
            width=sizes.width,
            heads=sizes.heads,
            head_dim=sizes.head_dim,
            context=sizes.context,
            dropout=sizes.dropout,
            **{key: value for key, value in offered.items() if value is not None},
        )
        if not learned:
            return attend, nothing
        return attend, coefficient(scale, head_shapes(sizes.heads, sizes.head_dim), own.values)

    def mlp(self, plan: SubLayerPlan, own: BlockChoices) -> nn.Module:
        kind, width = MLPS[self.config.mlp.type], self.sizes.mlp_width
        activation, share = ACTIVATIONS[self.config.mlp.activation], own.activation_sparsity
        matrices = ("up", "gate") if kind.gated else ("up",)
        spec, hidden = plan.coefficient("hidden_scale"), "hidden" in plan.sites
        norms = {f"{name}_norm": self.site(plan, "hidden", "mlp", own)
                 for name in matrices if hidden}  # fmt: skip
        return MLPS.maker(self.config.mlp)(
            width=self.sizes.width,
            mlp_width=width,
            bias=self.biased,
            activation=SparseActivation(activation, share) if share else activation,
            mid=self.site(plan, "mid", "mlp", own),
            **norms,
            **{f"{name}_scale": scale_of(spec, width, own.values) for name in matrices},
        )

    def site(
        self,
        plan: SubLayerPlan,
        name: str,
        kind: Place,
        own: BlockChoices,
        sub_layer: str = "",
    ) -> Module:
        """Returns the norm at a site of the sub-layer `kind`, with its factor. At q, k or v not
        every norm of the stream can act (`qkv`)."""
        at, (heads, head_dim) = plan.site(name), own.heads_at(name)
        chosen = self.config.qkv if at.norm == "norm" and name in HEAD_SITES else at.norm
        place = NormPlace(own.i, sub_layer or kind, name, chosen, share=at.share)
        make = self.norm(kind, place)
        width = own.width_at(name, at.share)
        norm = make(width)
        if norm is not nothing and at.share == "full":
            norm = AllHeads(norm)
        elif norm is not nothing and at.share == "per_head":
            norm = PerHead([make(width) for _ in range(heads)])
        if at.scale == 1:
            return norm
        shapes = head_shapes(heads, head_dim) if heads else stream_shapes(width)
        return Scaled(norm, coefficient(at.scale, shapes, own.values))

    def norm(self, word: Place, at: NormPlace) -> Callable[[int], Module]:
        """Returns `norm(width)` for the norm at a place, which it knows. A class that takes `place`
        is told the `word`."""
        make = (self.own_norm if at.norm == "norm" else None) or norm_of(self.config, at.norm, word)
        return lambda width: put(make(width), replace(at, width=width))


def norm_of(config: ModelConfig, name: str, place: Place) -> Callable[[int], Module]:
    """`norm(width)` for the norm that a site names: norm, none, or a norm's file. A class that
    takes `place` is told where it stands."""
    if name == "none":
        return NORMS["none"]
    spec = config.norm if name == "norm" else config.norms[name]
    return NORMS.maker({**spec, "place": place})


def put(norm: Module, place: NormPlace) -> Module:
    """Tells a norm its place, where there is a norm."""
    if isinstance(norm, nn.Module):
        norm.norm_place = place  # type: ignore[assignment]
    return norm


def place_fixed_norms(part: Module, place: NormPlace) -> None:
    """Tells the norms inside a connection their place: those that its formula fixes."""
    names = {kind: name for name, kind in NORMS.items()}
    for module in part.modules() if isinstance(part, nn.Module) else ():
        if type(module) in names and not hasattr(module, "norm_place"):
            widths = {parameter.shape[-1] for parameter in module.parameters()} - {1}
            width = widths.pop() if len(widths) == 1 else place.width
            put(module, replace(place, norm=names[type(module)], width=width))


def scale_of(
    spec: Any,
    width: int,
    values: Mapping[str, float],
    norm: Callable[[int], Module] | None = None,
) -> Module:
    """A coefficient of `width` features, or nothing. Where there is a `norm`, for one of low rank,
    it may have a low rank."""
    shapes = stream_shapes(width)
    if norm is not None:
        return coefficient(spec, {**shapes, LOW_RANK: (width,)}, values, norm)
    return coefficient(1 if spec == "none" else spec, shapes, values)


def stream_shapes(width: int) -> Shapes:
    return {"scalar": SCALAR, "vector": (width,)}


def head_shapes(heads: int, dimensions: int) -> Shapes:
    return {"scalar": SCALAR, "head": (heads, 1), "vector": (heads, dimensions)}


def dropout_of(share: float) -> Module:
    return nn.Dropout(share) if share else nothing
