"""The norms and the factors of each block, read from the placement's plan and the config.

No model is built. Each norm is built once, alone and at its width, to count its parameters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from transformer_norms.formula import Formula, formula_values
from transformer_norms.model.assembly import norm_of
from transformer_norms.model.coefficient import FUNCTIONS
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import Placement, qk_site
from transformer_norms.model.sites import HEAD_SITES, INSIDE, REST_OF_B, Site, SubLayerPlan

ADDED = ("learned", "sinusoidal")  # the positions that are added to the stream
Values = Mapping[str, float]
Shapes = Mapping[str, str]  # what may be learned at a place, in words


@dataclass(frozen=True)
class Factor:
    """A number that multiplies: its formula, and its value when training starts."""

    symbol: str
    formula: str
    value: float
    learned: str = ""  # what of it is learned, as "vector of 128"; empty for a constant
    stored: str = ""  # how the model keeps it, if not as it is used
    shared: bool = False  # whether one number serves both sub-layers of a block
    varies: bool = False  # whether blocks differ in it
    rest_of: str = ""  # the symbol of b, if this is the skip's 1 - b


@dataclass(frozen=True)
class NormAt:
    """The norm at a site. `count` norms stand there, of `parameters` numbers each. Its `name` is
    `none` where a scale stands without a norm."""

    site: str
    module: str
    name: str
    width: int
    count: int
    parameters: int
    eps: str
    share: str = "head"
    scale: Factor | None = None


@dataclass(frozen=True)
class SubLayer:
    """An attention or an mlp: norms by site, and factors by what they multiply."""

    name: str
    norms: Mapping[str, NormAt]
    factors: Mapping[str, Factor]
    adds: Mapping[str, Factor | None] = field(default_factory=dict)  # start, x0: their factor
    cap: str = ""  # of attention's logits
    gated: bool = False


@dataclass(frozen=True)
class Block:
    topology: str
    parts: Mapping[str, SubLayer]
    norms: Mapping[str, NormAt]  # at the sites of the block as a whole


class Anatomy:
    """The content of each block and of the two ends of the model, read from a composed config."""

    def __init__(self, config: Any, vocab_size: int = 256) -> None:
        self.config, self.placement = config, Placement(**config.placement)
        self.values: Values = formula_values(config.model)
        self._built: dict[tuple[str, int], Any] = {}
        self.depth, self.width = config.model.depth, config.model.width
        self.blocks = [self._block(i) for i in range(self.depth)]
        fixnorm = config.embed == "fixnorm"
        names = {
            "rows": "l2norm" if fixnorm else "none",
            "embed": "none" if fixnorm else config.embed,
            "final": config.final_norm,
        }
        self.rows, self.embed, self.final = (
            self._norm(site, Site(name), self.width, self.values) for site, name in names.items()
        )
        cap = config.architecture.logit_cap
        self.logit_cap = "" if cap == "none" else f"{cap:g}"
        scales = {"embed_scale": self.width, "logit_scale": vocab_size}
        self.scales = {
            symbol: self.factor(
                symbol, getattr(config.architecture, symbol), _shapes(size), self.values
            )
            for symbol, size in scales.items()
        }

    def equations(self, i: int) -> dict[str, str]:
        """The placement's equations for block i; what joins two streams is the model's end."""
        stated = self.placement.equation(i, self.depth)
        return {part: text for part, text in stated.items() if part != "end"}

    def ends(self) -> dict[str, str]:
        """How tokens become the stream, and the stream logits."""
        rows, dual = self.rows, self.placement.topology == "dual"
        x = self._times("embed_scale", self._applied(rows, "E[tokens]"))
        if self.config.position.type in ADDED:
            x += " + P[time]"
        streams = ["x", *(["r"] if dual else []), *(["x0"] if self.adds("x0") else [])]
        last = f"(x + {self._applied(self.final, 'r')})" if dual else self._applied(self.final, "x")
        head = self._applied(rows, "E" if self.config.architecture.tied else "W")
        logits, cap = self._times("logit_scale", f"{head} @ {last}"), self.logit_cap
        return {
            "start": f"{' = '.join(streams)} = {self._applied(self.embed, x)}",
            "end": f"logits = {f'{cap} * tanh({logits} / {cap})' if cap else logits}",
        }

    def adds(self, stream: str) -> bool:
        """Whether some block adds that earlier stream."""
        return any(stream in p.adds for block in self.blocks for p in block.parts.values())

    def norms(self) -> Iterator[tuple[NormAt, int | None]]:
        """Every norm of the model with its block, from the embedding to the head."""
        for norm in (self.rows, self.embed):
            if norm and norm.name != "none":
                yield norm, None
        for i, block in enumerate(self.blocks):
            for norms in (block.norms, *(part.norms for part in block.parts.values())):
                yield from ((norm, i) for norm in norms.values() if norm.name != "none")
        if self.final and self.final.name != "none":
            yield self.final, None

    def shown(self, name: str) -> str:
        """The name that the user knows: `norm` is the run's norm."""
        return self.config.choices.norm if name == "norm" else name

    def spec(self, name: str) -> Mapping[str, Any]:
        """The content of a norm's file."""
        return self.config.norm if name == "norm" else self.config.norms[name]

    def build_norm(self, name: str, width: int) -> Any:
        """The norm alone, as it starts."""
        if (name, width) not in self._built:
            self._built[name, width] = norm_of(self.config, name)(width)
        return self._built[name, width]

    def factor(self, symbol: str, spec: Any, shapes: Shapes, values: Values) -> Factor | None:
        """The factor that a coefficient of the config makes; None if it multiplies by nothing."""
        if isinstance(spec, (int, float)) and spec == 1 or spec == "none":
            return None
        formula = Formula(spec["init"] if isinstance(spec, Mapping) else spec)
        init, varies = float(formula(values)), bool(formula.names & {"i", "l"})
        if not isinstance(spec, Mapping):
            return Factor(symbol, formula.text, init, varies=varies)
        start = float(Formula(spec.get("stored", spec["init"]))(values))
        ratio = 1.0 if start == init else init / start
        function = spec.get("function", "same")
        inner = "stored" if ratio == 1 else f"{ratio:.4g} * stored"
        outer = inner if function == "same" else f"{function}({inner})"
        return Factor(
            symbol,
            formula.text,
            float(FUNCTIONS[function](torch.tensor(init, dtype=torch.float64))),
            shapes[spec["learn"]],
            "" if outer == "stored" else f"{outer}, stored from {start:.4g}",
            spec.get("share") == "block",
            varies,
        )

    def _applied(self, norm: NormAt | None, text: str) -> str:
        return f"{norm.name}({text})" if norm and norm.name != "none" else text

    def _times(self, symbol: str, text: str) -> str:
        factor = self.scales[symbol]
        if factor is None:
            return text
        return f"{symbol if factor.learned else factor.formula} * {text}"

    def _block(self, i: int) -> Block:
        values, whole = {**self.values, "i": i, "l": i + 1}, self.placement.block_plan
        plans = self.placement.plans(i, self.depth).items()
        norms = {site: self._norm(site, at, self.width, values) for site, at in whole.sites.items()}
        return Block(
            self.placement.topology,
            {name: self._sub_layer(name, plan, values) for name, plan in plans},
            _present(norms),
        )

    def _sub_layer(self, name: str, plan: SubLayerPlan, values: Values) -> SubLayer:
        if name == "attention" and self.config.qk_norm != "none":
            both = dict.fromkeys("qk", qk_site(self.config.qk_norm))
            plan = replace(plan, sites={**plan.sites, **both})
        cap, stream = self.config.architecture.attention_cap, _shapes(self.width)
        return SubLayer(
            name,
            _present(self._norms(name, plan, values)),
            _present(self._factors(name, plan, values)),
            {
                earlier: self.factor(plan.names.get(earlier, earlier), spec, stream, values)
                for earlier, spec in plan.adds.items()
            },
            cap="" if name != "attention" or cap == "none" else f"{cap:g}",
            gated=name == "mlp" and MLPS[self.config.mlp.type].gated,
        )

    def _norms(self, name: str, plan: SubLayerPlan, values: Values) -> dict[str, NormAt | None]:
        sizes, norms = self.config.model, {}
        heads = {"q": sizes.heads, "k": sizes.kv_heads, "v": sizes.kv_heads}
        heads["head_norm"] = sizes.heads
        widths = {"ctx": sizes.heads * sizes.head_dim, "mid": sizes.mlp_width}
        for site in ("pre", *INSIDE[name], "out", "post"):
            norms[site] = self._norm(
                site,
                plan.site(site),
                widths.get(site, self.width),
                values,
                f"{name}.f." if site in INSIDE[name] else f"{name}.",
                plan.names.get(f"{site}.scale", ""),
                heads.get(site, 0),
            )
        return norms

    def _factors(self, name: str, plan: SubLayerPlan, values: Values) -> dict[str, Factor | None]:
        sizes = self.config.model

        def factor(slot: str, shapes: Shapes) -> Factor | None:
            symbol = plan.names.get(slot, slot)
            return self.factor(symbol, plan.coefficient(slot), shapes, values)

        b = factor("b", _shapes(self.width))
        if plan.coefficient("a") == REST_OF_B and b:
            a: Factor | None = Factor("a", f"1 - {b.symbol}", 1 - b.value, rest_of=b.symbol)
        else:
            a = factor("a", _shapes(self.width))
        if name == "attention":
            shapes = _head_shapes(sizes.heads, sizes.head_dim)
            spec = self.config.architecture.attention_scale
            scale = self.factor("attention scale", spec, shapes, values)
            head_scale = factor("head_scale", shapes)
            return {"a": a, "b": b, "head_scale": head_scale, "attention_scale": scale}
        hidden = factor("hidden_scale", _shapes(sizes.mlp_width))
        gated = hidden and MLPS[self.config.mlp.type].gated
        gate = replace(hidden, symbol=f"{hidden.symbol} of the gate") if hidden and gated else None
        return {"a": a, "b": b, "hidden_scale": hidden, "gate": gate}

    def _norm(
        self,
        site: str,
        at: Site,
        width: int,
        values: Values,
        path: str = "",
        symbol: str = "",
        heads: int = 0,
    ) -> NormAt | None:
        """The norm at a site: on `width` features, or on `heads`, where it is one for all of them,
        one for each, or one over all side by side."""
        size = self.config.model.head_dim
        name = self.config.qkv if site in HEAD_SITES and at.norm == "norm" else at.norm
        count = heads if at.share == "per_head" else 1
        if heads:
            width = heads * size if at.share == "full" else size
        shapes = _head_shapes(heads, size) if heads else _shapes(width)
        scale = self.factor(symbol or f"{site} scale", at.scale, shapes, values)
        norm = self.build_norm(name, width)
        if isinstance(norm, nn.Module):
            parameters = sum(parameter.numel() for parameter in norm.parameters())
            eps = self.spec(name).get("eps")
            eps = "-" if eps is None else f"{eps:g}"
            return NormAt(site, path + site, name, width, count, parameters, eps, at.share, scale)
        if scale:
            return NormAt(site, path + site, "none", width, 0, 0, "-", at.share, scale)
        return None


def _present(things: Mapping[str, Any]) -> dict[str, Any]:
    return {key: thing for key, thing in things.items() if thing is not None}


def _shapes(width: int) -> Shapes:
    return {"scalar": "scalar", "vector": f"vector of {width}"}


def _head_shapes(heads: int, head_dim: int) -> Shapes:
    each = f"one for each of {heads} heads"
    return {"scalar": "scalar", "head": each, "vector": f"{heads} x {head_dim}"}
