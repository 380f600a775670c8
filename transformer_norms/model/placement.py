"""Which norm stands where: a placement's YAML, read into what each block needs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from transformer_norms.formula import Formula
from transformer_norms.kinds import Text
from transformer_norms.names import unknown

SITES = {
    "attention": ("pre", "q", "k", "v", "head_norm", "head_scale", "ctx", "out", "post"),
    "mlp": ("pre", "mid", "out", "post"),
}  # the other two of the twelve, embed and final, belong to the model
HEAD_SITES = ("q", "k", "v")
# A norm at q, k or v acts on each head with one gain, on each with a gain of its own, or on all
# heads side by side.
SHARES = ("head", "per_head", "full")
# What multiplies: the skip, the branch, each head before W_o, the mlp before its activation.
COEFFICIENTS = {"attention": ("a", "b", "head_scale"), "mlp": ("a", "b", "hidden_scale")}
SKIPS = ("sub_layer", "block")  # `block` adds the stream as it entered the block


@dataclass(frozen=True)
class Topology:
    """How a block's sub-layers are joined: the equations that say it, the sites of the block as a
    whole, and what its sub-layers cannot have. The classes are in block.py."""

    equations: tuple[str, ...]
    sites: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


TOPOLOGIES = {
    "serial": Topology(("attention", "mlp")),
    "parallel": Topology(("block",), sites=("pre",), without=("a", "skip", "post")),
    "dual": Topology(("attention", "mlp", "end"), without=("a", "skip")),
}


@dataclass(frozen=True)
class Site:
    """`norm` is the run's norm, any other word a norm's YAML; `@full` spans all heads. `scale` is
    a coefficient that multiplies the norm's output."""

    norm: str
    share: str = "head"
    scale: Any = 1

    @classmethod
    def parse(cls, where: str, spec: Any) -> "Site":
        scale = 1
        if isinstance(spec, Mapping) and set(spec) == {"norm", "scale"}:
            spec, scale = spec["norm"], spec["scale"]
        if not isinstance(spec, str):
            raise ValueError(
                f"{where}: {spec!r} is no norm; write norm, NAME, NAME@SHARE, "
                "or {norm: NAME, scale: NUMBER}"
            )
        norm, at, share = spec.partition("@")
        if at and share not in SHARES:
            raise ValueError(f"{where}: {unknown('share', share, SHARES)}")
        return cls(norm, share or "head", scale)


def qk_site(word: str) -> Site:
    """What `qk_norm=word` puts at q and at k."""
    return Site("l2norm") if word == "l2" else Site("norm", word)


@dataclass(frozen=True)
class SubLayerPlan:
    """What one sub-layer of one block holds: its norms, its coefficients, where its skip begins."""

    sites: Mapping[str, Site] = field(default_factory=dict)
    coefficients: Mapping[str, Any] = field(default_factory=dict)
    skip: str = "sub_layer"

    def site(self, name: str) -> Site:
        return self.sites.get(name, Site("none"))

    def coefficient(self, name: str) -> Any:
        return self.coefficients.get(name, 1)


class Placement:
    """A published placement. `both` holds for attention and mlp, `attention` and `mlp` add to it;
    in the first entry of `schedule` whose `blocks` (a condition on i, l, N) is true, a sub-layer
    that is named replaces the one above. `block` holds the sites of a parallel block as a whole.

    `equation` is what all this makes, as the paper has it: Python's arithmetic on x (the stream),
    norm, f or attention and mlp, the coefficients by their names, and what formulas may name. What
    stands inside f is an argument of it: f(x, q=norm). `brings` are choices that go with the
    placement where neither the user nor a preset chose. `unverified` says what could not be read
    in the paper or its code.
    """

    def __init__(
        self,
        *,
        source: Text,
        equation: Mapping[str, str],
        topology: Text = "serial",
        both: Mapping[str, Any] = {},
        attention: Mapping[str, Any] = {},
        mlp: Mapping[str, Any] = {},
        block: Mapping[str, Any] = {},
        schedule: Sequence[Mapping[str, Any]] = (),
        weight_constraint: Literal["none", "unit_length"] = "none",
        brings: Mapping[str, Any] = {},
        unverified: Text = "",
    ) -> None:
        if topology not in TOPOLOGIES:
            raise ValueError(f"topology: {unknown('topology', topology, TOPOLOGIES)}")
        self.source, self.topology, self.unverified = source, topology, unverified
        self.weight_constraint, self.brings = weight_constraint, brings
        self.usual = _plans("", topology, both, attention, mlp)
        self.usual_equation = _equation("equation", equation, topology)
        _check_keys("block", block, TOPOLOGIES[topology].sites, "site")
        self.whole = SubLayerPlan({k: Site.parse(f"block.{k}", v) for k, v in block.items()})
        entries = [_Entry.parse(f"schedule[{n}]", topology, e) for n, e in enumerate(schedule)]
        self.schedule = entries

    def plans(self, i: int, depth: int) -> Mapping[str, SubLayerPlan]:
        """The plans of `attention` and `mlp` in block i of depth N."""
        entry = self._entry(i, depth)
        return self.usual if entry is None else {**self.usual, **entry.plans}

    def equation(self, i: int, depth: int) -> Mapping[str, str]:
        """What block i of depth N computes, part by part."""
        entry = self._entry(i, depth)
        return self.usual_equation if entry is None else {**self.usual_equation, **entry.equation}

    def _entry(self, i: int, depth: int) -> "_Entry | None":
        values = {"i": i, "l": i + 1, "N": depth}
        return next((entry for entry in self.schedule if entry.blocks(values)), None)

    def everywhere(self) -> Iterator[tuple[str, SubLayerPlan]]:
        """Every plan that some block may hold."""
        yield from self.usual.items()
        yield "block", self.whole
        for entry in self.schedule:
            yield from entry.plans.items()

    def sites(self) -> Iterator[tuple[str, Site]]:
        """Every (site, norm) that some block may hold."""
        for _, plan in self.everywhere():
            yield from plan.sites.items()

    def ends_normed(self, depth: int) -> bool:
        """Whether the stream that leaves the last block is itself the output of a norm."""
        last = self.plans(depth - 1, depth)["mlp"]
        return self.topology == "serial" and "post" in last.sites


@dataclass(frozen=True)
class _Entry:
    blocks: Formula
    plans: Mapping[str, SubLayerPlan]
    equation: Mapping[str, str]

    @classmethod
    def parse(cls, where: str, topology: str, entry: Mapping[str, Any]) -> "_Entry":
        _check_keys(where, entry, ("blocks", "equation", "both", *SITES), "key")
        if "blocks" not in entry:
            raise ValueError(f"{where}: blocks is missing, e.g. blocks: i == 0")
        named = [name for name in SITES if name in entry or "both" in entry]
        both, attention, mlp = (entry.get(key, {}) for key in ("both", *SITES))
        plans = _plans(f"{where}.", topology, both, attention, mlp)
        equation = _equation(f"{where}.equation", entry.get("equation", {}), topology, named)
        return cls(Formula(entry["blocks"]), {name: plans[name] for name in named}, equation)


def _plans(
    where: str,
    topology: str,
    both: Mapping[str, Any],
    attention: Mapping[str, Any],
    mlp: Mapping[str, Any],
) -> dict[str, SubLayerPlan]:
    here, there = (_keys(name, topology) for name in SITES)
    _check_keys(f"{where}both", both, [key for key in here if key in there], "site")
    return {
        "attention": _plan(f"{where}attention", "attention", {**both, **attention}, here),
        "mlp": _plan(f"{where}mlp", "mlp", {**both, **mlp}, there),
    }


def _keys(name: str, topology: str) -> list[str]:
    keys = dict.fromkeys([*SITES[name], *COEFFICIENTS[name], "skip"])
    return [key for key in keys if key not in TOPOLOGIES[topology].without]


def _plan(where: str, name: str, spec: Mapping[str, Any], allowed: Sequence[str]) -> SubLayerPlan:
    _check_keys(where, spec, allowed, "site")
    coefficients = {key: spec[key] for key in COEFFICIENTS[name] if key in spec}
    sites = {
        key: Site.parse(f"{where}.{key}", spec[key])
        for key in SITES[name]
        if key in spec and key not in coefficients
    }
    skip = spec.get("skip", "sub_layer")
    if skip not in SKIPS:
        raise ValueError(f"{where}.skip: {unknown('skip', skip, SKIPS)}")
    if "pre" in sites and sites["pre"].scale != 1 and "out" in sites:
        raise ValueError(f"{where}.pre: its scale has no effect beside {where}.out, a norm")
    if sites.keys() & {"ctx", "mid"} and "post" in sites and coefficients.get("a", 1) != 1:
        raise ValueError(
            f"{where}.a: Sub-LN ({', '.join(sites)}) goes with pre, a scaled skip (DeepNorm) with "
            "post: they exclude each other"
        )
    return SubLayerPlan(sites, coefficients, skip)


def _equation(
    where: str, equation: Mapping[str, str], topology: str, named: Sequence[str] | None = None
) -> Mapping[str, str]:
    """Every part of a topology is stated; in a schedule, those of the sub-layers that it names."""
    parts = TOPOLOGIES[topology].equations
    _check_keys(where, equation, parts, "part")
    for part in parts if named is None else [part for part in parts if part in named]:
        if part not in equation:
            raise ValueError(f"{where}: {part} is missing; wanted are {', '.join(parts)}")
    return equation


def _check_keys(where: str, spec: Mapping[str, Any], allowed: Sequence[str], kind: str) -> None:
    for key in spec:
        if key not in allowed:
            raise ValueError(f"{where}: {unknown(kind, key, allowed)}")
