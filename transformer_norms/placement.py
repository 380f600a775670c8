"""Which norm stands where: a placement's YAML, read into what each block needs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer_norms.formula import Formula
from transformer_norms.kinds import Text
from transformer_norms.names import unknown

SITES = {
    "attention": ("pre", "q", "k", "v", "head_norm", "head_scale", "ctx", "out", "post"),
    "mlp": ("pre", "mid", "out", "post"),
}  # the other two of the twelve, embed and final, belong to the model
HEAD_SITES = ("q", "k", "v")
SHARES = ("head", "full")  # a q, k or v norm acts on each head, or on all heads side by side
COEFFICIENTS = ("a", "b")
TOPOLOGIES = ("serial",)  # those of block.py, named here so that a name is checked without torch


@dataclass(frozen=True)
class Site:
    """`norm` is the run's norm, any other word a norm's YAML; `@full` spans all heads."""

    norm: str
    share: str = "head"

    @classmethod
    def parse(cls, where: str, text: Any) -> "Site":
        if not isinstance(text, str):
            raise ValueError(f"{where}: {text!r} is no norm; write norm, NAME or NAME@full")
        norm, at, share = text.partition("@")
        if at and share not in SHARES:
            raise ValueError(f"{where}: {unknown('share', share, SHARES)}")
        return cls(norm, share or "head")


@dataclass(frozen=True)
class SubLayerPlan:
    """What one sub-layer of one block holds: its norms, its head scale, a and b."""

    sites: Mapping[str, Site] = field(default_factory=dict)
    head_scale: Any = None
    a: Any = 1
    b: Any = 1


class Placement:
    """A published placement. `both` holds for attention and mlp, `attention` and `mlp` add to it;
    in the first entry of `schedule` whose `blocks` (a condition on i, l, N) is true, a sub-layer
    that is named replaces the one above. `equation` is what the sites make, as the paper has it.
    `brings` are choices that go with it where neither the user nor a preset chose.
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
        schedule: Sequence[Mapping[str, Any]] = (),
        brings: Mapping[str, Any] = {},
    ) -> None:
        if topology not in TOPOLOGIES:
            raise ValueError(f"topology: {unknown('topology', topology, TOPOLOGIES)}")
        self.source, self.equation, self.topology = source, equation, topology
        self.brings = brings
        self.usual = _plans("", both, attention, mlp)
        self.schedule = [_entry(index, entry) for index, entry in enumerate(schedule)]

    def block(self, i: int, depth: int) -> Mapping[str, SubLayerPlan]:
        """The plans of `attention` and `mlp` in block i of depth N."""
        values = {"i": i, "l": i + 1, "N": depth}
        for blocks, plans in self.schedule:
            if blocks(values):
                return {**self.usual, **plans}
        return self.usual

    def sites(self) -> Iterator[tuple[str, Site]]:
        """Every (site, norm) that some block may hold."""
        for plans in (self.usual, *(plans for _, plans in self.schedule)):
            for plan in plans.values():
                yield from plan.sites.items()

    def ends_normed(self, depth: int) -> bool:
        """Whether the stream that leaves the last block is itself the output of a norm."""
        return "post" in self.block(depth - 1, depth)["mlp"].sites


def _plans(
    where: str, both: Mapping[str, Any], attention: Mapping[str, Any], mlp: Mapping[str, Any]
) -> dict[str, SubLayerPlan]:
    common = [site for site in SITES["attention"] if site in SITES["mlp"]]
    _check_sites(f"{where}both", both, common)
    return {
        "attention": _plan(f"{where}attention", {**both, **attention}, SITES["attention"]),
        "mlp": _plan(f"{where}mlp", {**both, **mlp}, SITES["mlp"]),
    }


def _plan(where: str, spec: Mapping[str, Any], allowed: Sequence[str]) -> SubLayerPlan:
    _check_sites(where, spec, allowed)
    sites = {
        name: Site.parse(f"{where}.{name}", value)
        for name, value in spec.items()
        if name in allowed and name != "head_scale"
    }
    coefficients = {name: spec[name] for name in COEFFICIENTS if name in spec}
    return SubLayerPlan(sites, spec.get("head_scale"), **coefficients)


def _entry(index: int, entry: Mapping[str, Any]) -> tuple[Formula, dict[str, SubLayerPlan]]:
    where = f"schedule[{index}]"
    keys = ("blocks", "both", *SITES)
    for key in entry:
        if key not in keys:
            raise ValueError(f"{where}: {unknown('key', key, keys)}")
    if "blocks" not in entry:
        raise ValueError(f"{where}: blocks is missing, e.g. blocks: i == 0")
    named = SITES if "both" in entry else [name for name in SITES if name in entry]
    plans = _plans(
        f"{where}.", entry.get("both", {}), entry.get("attention", {}), entry.get("mlp", {})
    )
    return Formula(entry["blocks"]), {name: plans[name] for name in named}


def _check_sites(where: str, spec: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for name in spec:
        if name not in allowed and name not in COEFFICIENTS:
            raise ValueError(f"{where}: {unknown('site', name, (*allowed, *COEFFICIENTS))}")
