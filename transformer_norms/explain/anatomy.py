"""The norms and the factors of each block: norms of the built model, which has no weights, and
factors of the placement's plan and the config."""

import re
from collections.abc import Iterator, Mapping
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
ATTENTION_SCALE = "attention scale"
HeadsAndFeatures = tuple[int, int]  # no heads where a factor is of the stream


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
    """The norms at a site: `count` of them, of `parameters` numbers each."""

    site: str
    module: str
    name: str
    width: int
    count: int
    parameters: int
    eps: str
    share: str


@dataclass(frozen=True)
class SubLayerParts:
    """An attention or an mlp: its plan, its norms by site, its factors that are not 1 by what they
    multiply (a, start, enter.x0, pre.scale), and the numbers of its block."""

    plan: SubLayerPlan
    norms: Mapping[str, NormAt]
    factors: Mapping[str, Factor]
    own: BlockChoices
    shares_kv: bool  # whether other blocks use its keys and values


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
            {
                name: self._sub_layer(name, plan, own)
                for name, plan in self.placement.plans(own.i, self.depth).items()
            }
            for own in self._assembly.blocks
        ]
        ends, how = self._found.get((None, ""), {}), config.architecture
        self.rows, self.embed, self.final = map(ends.get, ("rows", "embed", "final"))
        self.scales = {
            symbol: _factor(symbol, getattr(how, symbol), (0, size), self.values)
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
        parts = [part for block in self.blocks for part in block.values()]
        return any(stream in (*part.plan.adds, *part.plan.enters) for part in parts)

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
            for norms in (self.block_norms(i), *(part.norms for part in block.values()))
            for norm in norms.values()
        ]
        for norm, i in (*before, *enter, *inside, (self.final, None), *leave):
            if norm:
                yield norm, i

    def block_norms(self, i: int) -> Mapping[str, NormAt]:
        """The norms at the sites of block i as a whole."""
        return self._found.get((i, "block"), {})

    def norm_names(self) -> list[str]:
        """The names of the norms that the model has; `norm` is the run's norm."""
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
        found = self._found.get((own.i, name), {})
        return SubLayerParts(
            plan,
            {site: found[site] for site in sorted(found, key=_order)},
            self._factors(name, plan, own),
            own,
            self._assembly.shares_kv(own.i),
        )

    def _factors(self, name: str, plan: SubLayerPlan, own: BlockChoices) -> dict[str, Factor]:
        """Returns the factors of a sub-layer that are not 1, by what they multiply."""
        factors: dict[str, Factor] = {}
        for slot, spec, place in self._multiplied(name, plan, own):
            symbol = plan.names.get(slot, slot.removeprefix("enter.").replace(".scale", " scale"))
            if slot == "gate":
                symbol = f"{plan.names.get('hidden_scale', 'hidden_scale')} of the gate"
            if spec != REST_OF_B and (factor := _factor(symbol, spec, place, own.values)):
                factors[slot] = factor
        if plan.scale("a") == REST_OF_B and (b := factors.get("b")):
            rest = Factor("a", f"1 - {b.symbol}", 1 - b.value, rest_of=b.symbol)
            factors = {"a": rest, **factors}
        return factors

    def _multiplied(
        self, name: str, plan: SubLayerPlan, own: BlockChoices
    ) -> Iterator[tuple[str, Any, HeadsAndFeatures]]:
        """Yields what a sub-layer multiplies, by which coefficient, and how many heads and features
        it has there."""
        heads, stream = own.sizes.heads, (0, self.width)
        for slot in "ab":
            yield slot, plan.scale(slot), stream
        if name == "attention":
            yield "head_scale", plan.scale("head_scale"), (heads, own.value_dim)
            scale = self.config.architecture.attention_scale
            yield ATTENTION_SCALE, scale, (heads, own.sizes.head_dim)
        for slot in ("hidden_scale", "gate")[: 1 + self.gated] if name == "mlp" else ():
            yield slot, plan.scale("hidden_scale"), (0, own.sizes.mlp_width)
        for term, spec in plan.enters.items():
            yield f"enter.{term}", spec, stream
        for term, spec in plan.adds.items():
            yield term, spec, stream
        scaled = [slot.removesuffix(".scale") for slot in plan.scales if slot.endswith(".scale")]
        for site in sorted(scaled, key=_order):
            by_head = own.heads_at(site)
            place = by_head if by_head[0] else (0, own.width_at(site, plan.site(site).share))
            yield f"{site}.scale", plan.scale(f"{site}.scale"), place

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


def _factor(symbol: str, spec: Any, place: HeadsAndFeatures, values: Values) -> Factor | None:
    """The factor of a coefficient of the config; None if it is 1."""
    if isinstance(spec, (int, float)) and spec == 1 or spec == "none":
        return None
    formula = Formula(spec["init"] if isinstance(spec, Mapping) else spec)
    init, varies = float(formula(values)), bool(formula.names & {"i", "l"})
    if not isinstance(spec, Mapping):
        return Factor(symbol, formula.text, init, varies=varies)
    heads, features = place
    learned = {
        "scalar": "scalar",
        "head": f"one for each of {heads} heads",
        "vector": f"{heads} x {features}" if heads else f"vector of {features}",
        LOW_RANK: f"{MATRIX} {spec.get('rank')}",
    }
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
        learned[spec["learn"]],
        ", ".join(filter(None, (text, kept))),
        spec.get("share") == "block",
        varies,
    )


def first_paragraph(documented: Any) -> str:
    """The first paragraph of a docstring in one line, with a semicolon for a wide blank in one."""
    lines = (documented.__doc__ or "").split("\n\n")[0].split("\n")
    return re.sub(r" {3,}", "; ", " ".join(line.strip() for line in lines))


def _apply(norm: NormAt | None, text: str) -> str:
    return f"{norm.name}({text})" if norm else text


def _scale_text(spec: Any) -> str:
    return f"(learned from {spec['init']})" if isinstance(spec, Mapping) else str(spec)


def _cap_text(cap: float | str) -> str:
    return "" if cap == "none" else f"{cap:g}"


def _order(site: str) -> int:
    return _SITES.index(site) if site in _SITES else len(_SITES)
