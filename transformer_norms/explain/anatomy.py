"""The norms and the factors of each block: norms of the built model, which has no weights, and
factors of the placement's plan and the config."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from transformer_norms.config.building import build_uninitialized
from transformer_norms.formula import Formula
from transformer_norms.model.architecture import BlockChoices
from transformer_norms.model.assembly import Assembly
from transformer_norms.model.coefficient import FUNCTIONS, LOW_RANK
from transformer_norms.model.connections import CONNECTIONS
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import CONNECTED, Placement
from transformer_norms.model.position import NoPosition
from transformer_norms.model.sites import REST_OF_B, SubLayerPlan, place_of
from transformer_norms.model.sizes import formula_values

ADDED = ("learned", "sinusoidal")  # the positions that are added to the stream
Values = Mapping[str, float]
MATRIX = "matrix of rank"
_SHORT = re.compile(r"\.norm(?=\.|$)|\.heads\.\d+$")  # what a path says twice
_BLOCK = re.compile(r"^blocks\.\d+\.")
_OF_ENDS = {"enter": "enter", "leave": "final"}  # what a connection's ends are called
_SITES = (
    "rows embed pre q_latent kv_latent q k v head_norm ctx hidden mid out post gate final".split()
)
Shapes = Mapping[str, str]  # the shapes that may be learned at a place, in words
Factors = Callable[..., "Factor | None"]  # of one sub-layer, by what they multiply


@dataclass(frozen=True)
class Factor:
    """A number that multiplies: its formula, and its value when training starts."""

    symbol: str
    formula: str
    value: float
    learned: str = ""  # its learned shape, as "vector of 128"; empty for a constant
    stored: str = ""  # how the model keeps it, if not as it is used
    shared: bool = False  # whether one number serves both sub-layers of a block
    varies: bool = False  # whether blocks differ in it
    rest_of: str = ""  # the symbol of b, if this is the skip's 1 - b

    @property
    def matrix(self) -> bool:
        return self.learned.startswith(MATRIX)


@dataclass(frozen=True)
class NormAt:
    """The norms at a site: `count` of them, of `parameters` numbers each. `name` is `none` where
    there is a scale without a norm."""

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
class SubLayerParts:
    """An attention or an mlp: norms by site, factors by what they multiply, and its block's own
    numbers."""

    norms: Mapping[str, NormAt]
    factors: Mapping[str, Factor]
    adds: Mapping[str, Factor | None]  # start, x0: their factor
    enters: Mapping[str, Factor | None]  # of the sum that it reads
    own: BlockChoices
    shares_kv: bool  # whether other blocks use its keys and values


@dataclass(frozen=True)
class BlockParts:
    parts: Mapping[str, SubLayerParts]
    norms: Mapping[str, NormAt]  # at the sites of the block as a whole


class Anatomy:
    """The content of each block and of the two ends of the model, read from a composed config."""

    def __init__(self, config: Any, vocab_size: int = 256) -> None:
        self.config, self.placement = config, Placement(**config.placement)
        with torch.device("meta"):  # shapes without weights: the largest model needs no memory
            self.model = build_uninitialized(config, vocab_size)
        self._found = self._norms_by_place()
        self.values: Values = formula_values(config.model)
        self.depth, self.width = config.model.depth, config.model.width
        self.gated = MLPS[config.mlp.type].gated
        self.attention_cap = _cap_text(config.architecture.attention_cap)
        self.alibi = config.position.type == "alibi"
        self.logit_cap = _cap_text(config.architecture.logit_cap)
        self.joins = self.placement.joins if self.placement.topology in CONNECTED else ()
        self._assembly = Assembly(config, NoPosition())
        self.blocks = [
            BlockParts(
                {name: self._sub_layer(name, plan, own) for name, plan in plans.items()},
                self._found.get((own.i, "block"), {}),
            )
            for own in self._assembly.blocks
            for plans in [self.placement.plans(own.i, self.depth)]
        ]
        ends, how = self._found.get((None, ""), {}), config.architecture
        self.rows, self.embed, self.final = map(ends.get, ("rows", "embed", "final"))
        self.scales = {
            symbol: _factor(symbol, getattr(how, symbol), _shapes(size), self.values)
            for symbol, size in (("embed_scale", self.width), ("logit_scale", vocab_size))
        }

    def equations(self, i: int) -> dict[str, str]:
        """The placement's equations for block i, without the `end` that joins two streams."""
        stated = self.placement.equation(i, self.depth)
        return {part: text for part, text in stated.items() if part != "end"}

    def ends(self) -> dict[str, str]:
        """The equations by which tokens become the stream, and the stream becomes logits."""
        rows, dual = self.rows, self.placement.topology == "dual"
        x = _apply(rows, "E[tokens]")
        positions = " + P[time]" if self.config.position.type in ADDED else ""
        if self.config.architecture.embed_scale_order == "before":
            x = self._times("embed_scale", x) + positions
        else:
            x = self._times("embed_scale", f"({x}{positions})" if positions else x)
        last = f"(x + {_apply(self.final, 'r')})" if dual else _apply(self.final, "x")
        streams = ["x", *(["r"] if dual else []), *(["x0"] if self.adds("x0") else [])]
        if self.joins:
            last, streams = "leave(X)", ["x0"]
        head = _apply(rows, "E" if self.config.architecture.tied else "W")
        logits, cap = self._times("logit_scale", f"{head} @ {last}"), self.logit_cap
        channels, smeared = self.config.architecture.smear, ""
        if channels != "none":
            smeared = (
                f"; then x0_t + s * sigmoid(W x0_t[:{channels}]) * x0_(t-1), s learned from 0 on"
            )
        return {
            "start": f"{' = '.join(streams)} = {_apply(self.embed, x)}{smeared}",
            "end": f"logits = {f'{cap} * tanh({logits} / {cap})' if cap else logits}",
        }

    def connection(self) -> dict[str, str]:
        """The formulas of the connection, if the streams have one that the equations name."""
        if not self.joins:
            return {}
        kind = CONNECTIONS[self.placement.connection["type"]]
        parts = {"enter": kind.enter, "read(X)": kind.read, "write(X, u)": kind.write}
        formulas = {"X": kind, **parts, "leave(X)": kind.leave}
        final = f"{self.final.name}(" if self.final else "("
        return {
            name: first_paragraph(part).replace("final(", final) for name, part in formulas.items()
        }

    def _times(self, symbol: str, text: str) -> str:
        factor = self.scales[symbol]
        if factor is None:
            return text
        return f"{symbol if factor.learned else factor.formula} * {text}"

    def adds(self, stream: str) -> bool:
        """Returns whether some block adds the earlier stream, start or x0."""
        parts = [part for block in self.blocks for part in block.parts.values()]
        return any(stream in (*part.adds, *part.enters) for part in parts)

    def value_terms(self, i: int) -> Iterator[str]:
        """Yields what other keys make of the values W_v x of block i, before a norm at v."""
        how, own = self.config.architecture, self._assembly.blocks[i]
        if own.source is not None:
            return
        if how.value_residual != "none" and i:
            value, first = (_scale_text(spec) for spec in (how.value_scale, how.value_residual))
            yield (
                f"v = {value} * v + {first} * v1, v1 the values of the first block "
                "(architecture.value_residual)"
            )
        if factor := own.value_embedding:
            gate = how.value_gate
            channels = "" if gate == "none" else f"sigmoid(W x[:{gate}]) * "
            yield (
                f"v = v + {factor:.4g} * {channels}E_v[tokens], a table of this block "
                "(architecture.value_embedding)"
            )

    def norms(self) -> Iterator[tuple[NormAt, int | None]]:
        """Yields every norm of the model with its block, from the embedding to the head."""
        before = [(norm, None) for norm in (self.rows, self.embed)]
        enter, leave = (
            [(norm, None) for norm in self._found.get((None, part), {}).values()]
            for part in ("enter", "leave")
        )
        inside = [
            (norm, i)
            for i, block in enumerate(self.blocks)
            for norms in (block.norms, *(part.norms for part in block.parts.values()))
            for norm in norms.values()
        ]
        for norm, i in (*before, *enter, *inside, (self.final, None), *leave):
            if norm and norm.name != "none":
                yield norm, i

    def norm_names(self) -> list[str]:
        """The names of the norms that stand somewhere; `norm` is the run's norm."""
        used = {norm.name for norm, _ in self.norms()}
        return [name for name in ("norm", *self.config.norms) if name in used]

    def known_name(self, name: str) -> str:
        """The name that the user knows: instead of `norm`, the norm that was chosen."""
        return self.config.choices.norm if name == "norm" else name

    def norm_file(self, name: str) -> Mapping[str, Any]:
        """The content of a norm's file."""
        return self.config.norm if name == "norm" else self.config.norms[name]

    def _sub_layer(self, name: str, plan: SubLayerPlan, own: BlockChoices) -> SubLayerParts:
        if name == "attention":
            plan = replace(plan, sites=self._assembly.sites(plan, own))
            inside = {"head_scale": _head_shapes(own.sizes.heads, own.value_dim)}
        else:
            inside = {"hidden_scale": _shapes(own.sizes.mlp_width)}

        def factor(slot: str, spec: Any, shapes: Shapes, unnamed: str = "") -> Factor | None:
            return _factor(plan.names.get(slot, unnamed or slot), spec, shapes, own.values)

        stream = _shapes(self.width)
        factors = {
            slot: factor(slot, plan.scale(slot), shapes)
            for slot, shapes in {"a": stream, "b": stream, **inside}.items()
            if plan.scale(slot) != REST_OF_B
        }
        if plan.scale("a") == REST_OF_B and (b := factors["b"]):
            rest = Factor("a", f"1 - {b.symbol}", 1 - b.value, rest_of=b.symbol)
            factors = {"a": rest, **factors}
        if name == "attention":
            factors["attention_scale"] = factor(
                "attention scale",
                self.config.architecture.attention_scale,
                _head_shapes(own.sizes.heads, own.sizes.head_dim),
            )
        elif self.gated and (hidden := factors["hidden_scale"]):
            factors["gate"] = replace(hidden, symbol=f"{hidden.symbol} of the gate")
        return SubLayerParts(
            self._norms(name, plan, own, factor),
            {key: one for key, one in factors.items() if one is not None},
            {of: factor(of, spec, stream) for of, spec in plan.adds.items()},
            {of: factor(f"enter.{of}", spec, stream, of) for of, spec in plan.enters.items()},
            own,
            self._assembly.shares_kv(own.i),
        )

    def _norms(
        self, part: str, plan: SubLayerPlan, own: BlockChoices, factor: Factors
    ) -> dict[str, NormAt]:
        """Returns the norms of a sub-layer in the order of its sites, and the scales on them, some
        without a norm."""
        norms = dict(self._found.get((own.i, part), {}))
        scaled = [slot for slot in plan.scales if slot.endswith(".scale")]
        for slot in scaled:
            site = slot.removesuffix(".scale")
            at, (count, dimensions) = plan.site(site), own.heads_at(site)
            width = own.width_at(site, at.share)
            shapes = _head_shapes(count, dimensions) if count else _shapes(width)
            if scale := factor(slot, plan.scale(slot), shapes, f"{site} scale"):
                absent = NormAt(site, "", "none", 0, 0, 0, "-", at.share)
                norms[site] = replace(norms.get(site, absent), scale=scale)
        order = {site: number for number, site in enumerate(_SITES)}
        return dict(sorted(norms.items(), key=lambda pair: order.get(pair[0], len(order))))

    def _norms_by_place(self) -> dict[tuple[int | None, str], dict[str, NormAt]]:
        """Returns the norms of the model: for each block and sub-layer by site, and inside
        connections and learned matrices by module."""
        found: dict[tuple[int | None, str], dict[str, NormAt]] = {}
        for path, norm in self.model.norms():
            at = place_of(norm)
            module = _SHORT.sub("", _BLOCK.sub("", path))
            gate = at.site == "hidden" and module.endswith("gate_norm")
            site = "gate" if gate else _OF_ENDS.get(at.sub_layer, at.site)
            at_site = at.site in _SITES
            # A norm that a connection's formula fixes has no file.
            from_file = at_site or at.norm == "norm"
            eps = (
                self.norm_file(at.norm).get("eps")
                if from_file
                else getattr(norm, "length", norm).eps
            )
            text = "-" if eps is None else f"{eps:g}"
            size = sum(parameter.numel() for parameter in norm.parameters())
            one = NormAt(site, module, at.norm, at.width, 1, size, text, at.share)
            here = found.setdefault((at.block, at.sub_layer), {})
            key = site if at_site else module
            here[key] = replace(one, count=here[key].count + 1) if key in here else one
        return found


def _factor(symbol: str, spec: Any, shapes: Shapes, values: Values) -> Factor | None:
    """The factor that a coefficient of the config stands for; None if it is 1."""
    if isinstance(spec, (int, float)) and spec == 1 or spec == "none":
        return None
    formula = Formula(spec["init"] if isinstance(spec, Mapping) else spec)
    init, varies = float(formula(values)), bool(formula.names & {"i", "l"})
    if not isinstance(spec, Mapping):
        return Factor(symbol, formula.text, init, varies=varies)
    start = float(Formula(spec.get("stored", spec["init"]))(values))
    kept = "" if spec.get("gradient", "scaled") == "scaled" else "gradient unscaled"
    ratio = 1.0 if start == init else init / start
    function = spec.get("function", "same")
    inner = "stored" if ratio == 1 else f"{ratio:.4g} * stored"
    outer = inner if function == "same" else f"{function}({inner})"
    text = "" if outer == "stored" else f"{outer}, stored from {start:.4g}"
    return Factor(
        symbol,
        formula.text,
        float(FUNCTIONS[function](torch.tensor(init, dtype=torch.float64))),
        " ".join(map(str, filter(None, (shapes[spec["learn"]], spec.get("rank"))))),
        ", ".join(filter(None, (text, kept))),
        spec.get("share") == "block",
        varies,
    )


def first_paragraph(documented: Any) -> str:
    """The first paragraph of a docstring in one line, with a semicolon for a wide blank in one."""
    lines = (documented.__doc__ or "").split("\n\n")[0].split("\n")
    return re.sub(r" {3,}", "; ", " ".join(line.strip() for line in lines))


def _apply(norm: NormAt | None, text: str) -> str:
    return f"{norm.name}({text})" if norm and norm.name != "none" else text


def _scale_text(spec: Any) -> str:
    return f"(learned from {spec['init']})" if isinstance(spec, Mapping) else str(spec)


def _cap_text(cap: float | str) -> str:
    return "" if cap == "none" else f"{cap:g}"


def _shapes(width: int) -> Shapes:
    return {"scalar": "scalar", "vector": f"vector of {width}", LOW_RANK: MATRIX}


def _head_shapes(heads: int, head_dim: int) -> Shapes:
    each = f"one for each of {heads} heads"
    return {"scalar": "scalar", "head": each, "vector": f"{heads} x {head_dim}"}
