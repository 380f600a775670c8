"""One block of a config, put together from its placement's plan: names become modules here."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from transformer_norms.formula import Formula
from transformer_norms.model.attention import (
    ATTENTIONS,
    AllHeads,
    Attention,
    PerHead,
    Temperature,
    ValueMix,
)
from transformer_norms.model.block import BLOCKS, SubLayer
from transformer_norms.model.coefficient import (
    LOW_RANK,
    SCALAR,
    Gate,
    OneMinusBranch,
    Scaled,
    ScaledNorm,
    WeightedSum,
    coefficient,
)
from transformer_norms.model.connections import CONNECTIONS, build_part
from transformer_norms.model.initialization import Embedding, biased
from transformer_norms.model.mlp import ACTIVATIONS, MLPS, SparseActivation
from transformer_norms.model.placement import PARTS, attention_sites, read_placement
from transformer_norms.model.position import ORDERS, NoPosition
from transformer_norms.model.settings import ModelConfig, block_values, site_width, value_factor
from transformer_norms.model.sites import (
    HEAD_SITES,
    KV_SITES,
    LATENT_SITES,
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
        self.heads = [(own.sizes, own.inner) for own in self.blocks]
        self.sources = [own.kv_from_block for own in self.blocks]
        self.biased = biased(self.architecture.bias)

    def __call__(self, i: int) -> nn.Module:
        values = block_values(self.sizes, i)
        plans = self.placement.plans(i, self.sizes.depth)
        functions = {
            "attention": self.attention(plans["attention"], values),
            "mlp": self.mlp(plans["mlp"], values),
        }
        shared: dict[str, Module] = {}
        layers = {
            name: self.sub_layer(plan, name, functions[name], values, shared)
            for name, plan in plans.items()
        }
        block_plan = self.placement.block_plan
        own = {
            name: self.site(block_plan, name, "attention", values, "block")
            for name in block_plan.sites
        }
        if self.placement.topology == "blocks":
            own["connection"] = self.connection("block", i)
        return BLOCKS[self.placement.topology](**layers, **own)

    def end_norm(self, site: str, name: str) -> Module:
        """Returns the norm at rows, embed or final, outside of the blocks."""
        place = "final" if site == "final" else "embed"
        return self.norm(name, place, None, "", site)(self.sizes.width)

    def ends(self, final: Module) -> tuple[Module, Module]:
        """Returns what is between the embedded tokens and the first block, and between the last
        block and the head, of which `final` is the norm."""
        if not self.placement.connection:
            return nothing, final
        kind = CONNECTIONS[self.placement.connection["type"]]
        enter = self.connected(kind.enter, "embed", (None, "enter", "connection"))
        return enter, self.connected(
            kind.leave, "final", (None, "leave", "connection"), final=final
        )

    def connection(self, kind: Place, i: int, sub_layer: Any = None) -> Any:
        """The connection of the sub-layer `kind` of block i, or of the block itself."""
        connection, kinds = CONNECTIONS[self.placement.connection["type"]], self.placement.joins
        index = len(kinds) * i + kinds.index(kind)
        where = (i, kind, "connection")
        return self.connected(connection, kind, where, sub_layer=sub_layer, index=index, l=i + 1)

    def connected(
        self, part: Any, place: Place, where: tuple[int | None, str, str], **given: Any
    ) -> Module:
        """Returns a connection, or one of its ends, built from its class with its settings."""
        sizes = self.sizes
        built = build_part(
            part,
            width=sizes.width,
            count=len(self.placement.joins) * sizes.depth,
            depth=sizes.depth,
            norm=self.norm("norm", place, *where),
            activation=ACTIVATIONS[self.config.mlp.activation],
            vocab_size=self.vocab_size,
            **self.placement.connection,
            **given,
        )
        place_fixed_norms(built, NormPlace(*where, "", sizes.width))
        return built

    def sub_layer(
        self,
        plan: SubLayerPlan,
        kind: Place,
        f: nn.Module,
        values: Mapping[str, float],
        shared: dict[str, Any],
    ) -> SubLayer:
        """`shared` holds the coefficients that both sub-layers of a block have in common."""
        own: dict[str, Module] = {}

        def scale(slot: str, spec: Any) -> Module:
            """A learned coefficient is one parameter wherever its name stands in the equation."""
            name = plan.names.get(slot)
            norm = self.norm("norm", kind, int(values["i"]), kind, f"inside {name}")
            if name is None:
                return scale_of(spec, self.sizes.width, values, norm)
            held = shared if spec.get("share") == "block" else own
            if name not in held:
                held[name] = scale_of(spec, self.sizes.width, values, norm)
            return held[name]

        sites = {name: self.site(plan, name, kind, values) for name in ("pre", "out", "post")}

        def mixing(x: Module | None, earlier: Mapping[str, Any], prefix: str = "") -> Module:
            adds = {name: scale(prefix + name, spec) for name, spec in earlier.items()}
            if NORMED in adds:
                adds[NORMED] = ScaledNorm(sites["pre"], adds[NORMED])
            return WeightedSum(x, adds) if adds else x

        connect = partial(self.connection, kind, int(values["i"]))
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

    def attention(self, plan: SubLayerPlan, values: Mapping[str, float]) -> Attention:
        i, order = int(values["i"]), self.architecture.qk_norm_order
        sizes, inner = self.heads[i]
        heads = {"q": sizes.heads, "k": sizes.kv_heads, "v": sizes.kv_heads}
        source, plan = self.sources[i], replace(plan, sites=self.sites(plan, i))
        attend, scale = self.attend(values)
        return Attention(
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            **asdict(inner),
            bias=self.biased,
            attend=attend,
            scale=scale,
            values_from_keys=self.blocks[i].values_from_keys,
            index=i,
            source=None if source == i else source,
            shares_kv=self.sources.count(i) > 1,
            temperature=self.temperature(i),
            turn=partial(ORDERS[order], self.position.rotation(i)),
            **{name: self.site(plan, name, "attention", values) for name in LATENT_SITES},
            **{name: self.head_site(plan, name, heads[name], values) for name in HEAD_SITES},
            head_norm=self.head_site(plan, "head_norm", sizes.heads, values),
            head_scale=coefficient(
                plan.coefficient("head_scale"),
                self.head_shapes(sizes.heads, inner.value_dim),
                values,
            ),
            values=self.value_mix(values) if source == i else nothing,
            attention_gate=self.attention_gate(values),
            ctx=self.site(plan, "ctx", "attention", values),
        )

    def sites(self, plan: SubLayerPlan, i: int) -> dict[str, Site]:
        """The norms inside the attention of block i. Keys and values of another block have its."""
        sites = attention_sites(plan, self.config)
        absent = () if self.sources[i] == i else KV_SITES
        return {name: site for name, site in sites.items() if name not in absent}

    def temperature(self, i: int) -> Module:
        floor, scale = self.blocks[i].temperature_floor, self.architecture.temperature_scale
        return Temperature(floor, scale) if floor else nothing

    def attention_gate(self, values: Mapping[str, float]) -> Module:
        (sizes, inner), gate = self.heads[int(values["i"])], self.architecture.attention_gate
        each = {"elementwise": inner.value_dim, "per_head": 1}
        if gate == "none":
            return nothing
        return Gate(sizes.width, sizes.heads, each[gate], "attention_gate" in self.biased)

    def value_mix(self, values: Mapping[str, float]) -> Module:
        """What values are besides W_v x: a share of the first block's, and rows of a table."""
        (sizes, inner), how, i = self.heads[int(values["i"])], self.architecture, int(values["i"])
        parts: dict[str, Any] = {}
        if how.value_residual != "none":
            shapes = self.head_shapes(sizes.kv_heads, inner.value_dim)
            own, first = (
                coefficient(spec, shapes, values) for spec in (how.value_scale, how.value_residual)
            )
            parts = {"own": own, "first": first} if i else {"shares_kv": True}
        if factor := value_factor(how.value_embedding, values):
            table = Embedding(self.vocab_size, sizes.kv_heads * inner.value_dim)
            parts |= {"value_embedding": table, "embedded": coefficient(factor, {}, values)}
            if how.value_gate != "none":
                parts["value_gate"] = Gate(how.value_gate, sizes.kv_heads)
        return ValueMix(**parts) if parts else nothing

    def attend(self, values: Mapping[str, float]) -> tuple[nn.Module, Module]:
        """The chosen attention; and the scale that multiplies q, where it is learned."""
        (sizes, _), scale = self.heads[int(values["i"])], self.architecture.attention_scale
        cap, choice = self.architecture.attention_cap, self.config.attention
        learned, i = isinstance(scale, Mapping), int(values["i"])
        # An attention that has no use for one of these need not name it.
        offered = {
            "sliding_window": self.blocks[i].sliding_window or None,
            "attention_chunk": self.blocks[i].attention_chunk or None,
            "position_bias": self.position.bias(i, sizes.heads),
        }
        attend = ATTENTIONS.maker(choice)(
            scale=1.0 if learned else float(Formula(scale)(values)),
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
        return attend, coefficient(scale, self.head_shapes(sizes.heads, sizes.head_dim), values)

    def mlp(self, plan: SubLayerPlan, values: Mapping[str, float]) -> nn.Module:
        kind, width = MLPS[self.config.mlp.type], self.sizes.mlp_width
        matrices = ("up", "gate") if kind.gated else ("up",)
        spec, hidden = plan.coefficient("hidden_scale"), "hidden" in plan.sites
        norms = {f"{name}_norm": self.site(plan, "hidden", "mlp", values)
                 for name in matrices if hidden}  # fmt: skip
        return MLPS.maker(self.config.mlp)(
            width=self.sizes.width,
            mlp_width=width,
            bias=self.biased,
            activation=self.activation(int(values["i"])),
            mid=self.site(plan, "mid", "mlp", values),
            **norms,
            **{f"{name}_scale": scale_of(spec, width, values) for name in matrices},
        )

    def activation(self, i: int) -> Callable[[Tensor], Tensor]:
        activation = ACTIVATIONS[self.config.mlp.activation]
        share = self.blocks[i].activation_sparsity
        return SparseActivation(activation, share) if share else activation

    def site(
        self,
        plan: SubLayerPlan,
        name: str,
        kind: Place,
        values: Mapping[str, float],
        sub_layer: str = "",
    ) -> Module:
        """Returns the norm at a site of the sub-layer `kind`."""
        at, i = plan.site(name), int(values["i"])
        width = site_width(name, "head", *self.heads[i])
        norm = self.norm(at.norm, kind, i, sub_layer or kind, name)(width)
        return norm if at.scale == 1 else Scaled(norm, scale_of(at.scale, width, values))

    def head_site(
        self, plan: SubLayerPlan, name: str, heads: int, values: Mapping[str, float]
    ) -> Module:
        """Returns the norm on heads. At q, k or v not every norm of the stream can act (`qkv`)."""
        site, i = plan.site(name), int(values["i"])
        head_dim = site_width(name, "head", *self.heads[i])
        stand_in = site.norm == "norm" and name in HEAD_SITES
        chosen = self.config.qkv if stand_in else site.norm
        make = self.norm(chosen, "attention", i, "attention", name, site.share)
        norm = make(heads * head_dim if site.share == "full" else head_dim)
        if norm is not nothing and site.share == "full":
            norm = AllHeads(norm)
        elif norm is not nothing and site.share == "per_head":
            norm = PerHead([make(head_dim) for _ in range(heads)])
        if site.scale == 1:
            return norm
        return Scaled(norm, coefficient(site.scale, self.head_shapes(heads, head_dim), values))

    def norm(
        self,
        name: str,
        place: Place,
        block: int | None,
        sub_layer: str,
        site: str,
        share: str = "head",
    ) -> Callable[[int], Module]:
        """Returns `norm(width)` for the norm that a site names. The norm knows its place."""
        make = (self.own_norm if name == "norm" else None) or norm_of(self.config, name, place)

        def placed(width: int) -> Module:
            return put(make(width), NormPlace(block, sub_layer, site, name, width, share))

        return placed

    def head_shapes(self, heads: int, dimensions: int) -> dict[str, tuple[int, ...]]:
        return {"scalar": SCALAR, "head": (heads, 1), "vector": (heads, dimensions)}


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
    shapes = {"scalar": SCALAR, "vector": (width,)}
    if norm is not None:
        return coefficient(spec, {**shapes, LOW_RANK: (width,)}, values, norm)
    return coefficient(1 if spec == "none" else spec, shapes, values)


def dropout_of(share: float) -> Module:
    return nn.Dropout(share) if share else nothing
