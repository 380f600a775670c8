"""A placement: its equations, read into a plan for each block.

The form of an equation determines the `topology` of a block: how its sub-layers are joined. A
`Reader` (equation.py) reads each part of that form. `plans(i, depth)` are the plans of block i.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from transformer_norms.formula import Formula
from transformer_norms.kinds import Flag, Groups, Mark, Number, Text, plain
from transformer_norms.model.equation import READ, RESERVED, WRITE, Reader, called, canonical
from transformer_norms.model.sites import INSIDE, LATENT_SITES, SHARES, Site, SubLayerPlan
from transformer_norms.names import unknown
from transformer_norms.validation import check

Plans = Mapping[str, SubLayerPlan]
SUB_LAYERS = tuple(INSIDE)
# The parts that an equation may have, by how the sub-layers of a block are joined.
PARTS = {
    "serial": SUB_LAYERS,
    "parallel": ("block",),
    "dual": ("x", "r", "end"),
    "streams": SUB_LAYERS,
    "blocks": (*SUB_LAYERS, "block"),
}
CONNECTED = ("streams", "blocks")  # by a connection around each sub-layer, or around each block
# The parts that a connection wraps.
JOINS = {"dual": SUB_LAYERS, "streams": SUB_LAYERS, "blocks": ("block",)}
AROUND = f"{WRITE}(X, f({READ}(X)))"  # the equation of a connection around a block


def head_sites(qk_norm: str, v_norm: str) -> dict[str, Site]:
    """Returns the norms that the keys qk_norm and v_norm put on q, k and v: a share of the run's
    norm, l2, or a norm by its name."""
    words = {"q": qk_norm, "k": qk_norm, "v": v_norm}
    shares = {share: Site("norm", share) for share in SHARES} | {"l2": Site("l2norm")}
    return {name: shares.get(word, Site(word)) for name, word in words.items() if word != "none"}


def attention_sites(plan: SubLayerPlan, config: Any) -> dict[str, Site]:
    """Returns all norms inside an attention: the run's on each latent, unless the plan names
    another, those of the plan, and those of qk_norm and v_norm."""
    how, keys = config.architecture, LATENT_SITES.items()
    latents = {name: Site("norm") for name, key in keys if getattr(how, key) != "none"}
    return {**latents, **plan.sites, **head_sites(config.qk_norm, config.v_norm)}


class Placement:
    """A published placement, or one from the command line.

    `equation` is one of
        "x + f(norm(x))"                                             for attention and mlp
        {attention: "...", mlp: "..."}                               one for each
        "x + f(h := norm(x)) + c * h"                                the input of f is a term too
        "x + attention(h := norm(x)) + mlp(h)"                       side by side
        {x: "norm(x + f(x))", r: "r + f(x)", end: "x + norm(r)"}     two streams
        "write(X, f(norm(read(X))))"              streams that a `connection` reads and writes
        {attention: "...", mlp: "...", block: "write(X, f(read(X)))"}      the same, around a block
    It may name x (the stream), f (the sub-layer), norm or any norm's name, the coefficients of
    `learned`, start (the stream as it entered the block), x0 (the embedded tokens), and what
    formulas may name. A site inside f is an argument of it: f(x, q=norm). `where` holds
    equations for some blocks. The first entry applies whose condition `blocks`, on i, l and N, is
    true.

    `connection` names a registered connection and its settings (connections/).
    `brings` has values for keys that are still `auto`.
    `unverified` says what could not be read in the paper or its code.
    """

    def __init__(
        self,
        *,
        source: Annotated[Text, Mark.NOT_IN_IDENTITY] = "",
        equation: Text | Mapping[str, str],
        where: Groups = (),
        learned: Mapping[str, Mapping[str, Any]] = {},
        connection: Mapping[str, Any] = {},
        weight_constraint: Literal["none", "unit_length"] = "none",
        brings: Annotated[Mapping[str, Any], Mark.NOT_IN_IDENTITY] = {},
        unverified: Annotated[Text, Mark.NOT_IN_IDENTITY] = "",
    ) -> None:
        self.source, self.unverified, self.weight_constraint = source, unverified, weight_constraint
        self.learned = learned
        for name in learned:
            if not str(name).isidentifier() or name in RESERVED:
                raise ValueError(f"learned.{name}: the name is taken; choose another")
        self.topology = topology_of("equation", equation)
        self.connection = _connection_of(self.topology, connection)
        self.joins: tuple[str, ...] = JOINS.get(self.topology, ())
        self.default = self._read("", equation)
        self.where = [self._read_entry(f"where[{n}]", entry) for n, entry in enumerate(where)]
        ends = {} if self.default.end is None else {"final_norm": self.default.end.norm}
        self.brings = {**ends, **brings}
        used = {name for _, plan in self.everywhere() for name in plan.names.values()}
        for name in learned:
            if name not in used:
                raise ValueError(f"learned.{name}: no equation names it")

    def plans(self, i: int, depth: int) -> Plans:
        """The plans of `attention` and `mlp` in block i of depth N."""
        plans = self._equations_of(i, depth).plans
        return {name: plans[name] for name in SUB_LAYERS}

    def block_plan(self, i: int, depth: int) -> SubLayerPlan:
        """The plan of block i itself: the norm that both sub-layers of a parallel block read."""
        return self._equations_of(i, depth).plans.get("block", SubLayerPlan())

    def equation(self, i: int, depth: int) -> Mapping[str, str]:
        """The equation of each part of block i of depth N, as it is written."""
        return self._equations_of(i, depth).text

    def everywhere(self) -> Iterator[tuple[str, SubLayerPlan]]:
        """Every plan that some block may hold."""
        for entry in (self.default, *self.where):
            yield from entry.plans.items()

    def sites(self) -> Iterator[tuple[str, Site]]:
        """Every (site, norm) that some block may hold."""
        for _, plan in self.everywhere():
            yield from plan.sites.items()

    def ends_normed(self, depth: int) -> bool:
        """Whether the stream that leaves the last block is itself the output of a norm."""
        last = self.plans(depth - 1, depth)["mlp"]
        return self.topology == "serial" and last.site("post").norm != "none"

    def _equations_of(self, i: int, depth: int) -> "Equations":
        values = {"i": i, "l": i + 1, "N": depth}
        return next((own for own in self.where if own.blocks(values)), self.default)

    def _read_entry(self, key: str, entry: Mapping[str, Any]) -> "Equations":
        """Reads an entry of `where`. Parts that it lacks are those of all blocks."""
        own = self._read(f"{key}.", **check(key, entry, _entry))
        first = self.default
        if own.end != first.end:
            raise ValueError(f"{key}.equation: end is the end of the model, one for all blocks")
        return replace(own, text={**first.text, **own.text}, plans={**first.plans, **own.plans})

    def _read(self, prefix: str, equation: Any, blocks: Formula | None = None) -> "Equations":
        """Returns what the texts of a placement, or of an entry of `where`, say. Raises ValueError,
        which begins with the key, where the block cannot compute an equation."""
        text = _parts(f"{prefix}equation", equation, self.topology, everywhere=blocks is None)
        end, plans = None, dict[str, SubLayerPlan]()
        try:
            if self.topology == "parallel":
                for kind in ("block", *SUB_LAYERS):
                    plans[kind] = Reader(text["block"], self.learned, kind).read_parallel()
            elif self.topology == "dual":
                for kind in SUB_LAYERS:
                    reader = Reader(text["x"], self.learned, kind, SUB_LAYERS)
                    plans[kind], end = reader.read_dual(text["r"], text["end"])
            else:
                kinds = SUB_LAYERS if isinstance(equation, str) else ()
                read = Reader.read_streams if self.topology == "streams" else Reader.read_serial
                for kind in filter(text.__contains__, SUB_LAYERS):
                    plans[kind] = read(Reader(text[kind], self.learned, kind, kinds))
                if canonical(text.get("block", AROUND)) != AROUND:
                    raise ValueError(f"block: a connection around a block computes {AROUND}")
            for kind, plan in plans.items():
                _check(kind, plan)
        except ValueError as error:
            raise ValueError(f"{prefix}equation: {error}") from None
        return Equations(blocks or Formula(1), text, plans, end)


def read_placement(node: Mapping[str, Any]) -> Placement:
    """Returns the placement that a config's node states. An equation is read once: the check of a
    config and the model built from it share what was read."""
    return _read_placement(json.dumps(plain(node), default=str))


@lru_cache(maxsize=256)
def _read_placement(node: str) -> Placement:
    return Placement(**json.loads(node))


@dataclass(frozen=True)
class Equations:
    """The equations of the blocks that meet a condition, and the plans that they state. `end` is
    the norm before the head, where they state one."""

    blocks: Formula
    text: Mapping[str, str]
    plans: Plans
    end: Site | None = None


def _condition(spec: str | float) -> Formula:
    """Reads the condition of an entry of `where`, on i, l and N."""
    condition = Formula(spec)
    for name in sorted(condition.names - {"i", "l", "N"}):
        raise ValueError(unknown("name", name, ("i", "l", "N")))
    return condition


Condition = Annotated[Flag | Number | Text, AfterValidator(_condition)]


def _entry(*, blocks: Condition, equation: Any) -> None:
    """Declares the keys of an entry of `where`."""


def topology_of(key: str, equation: Any) -> str:
    """serial, parallel (side by side), dual (two streams), streams (a connection around each
    sub-layer) or blocks (a connection around each block), from an equation's form."""
    if isinstance(equation, Mapping):
        for name in equation:
            if name not in (known := [*PARTS["blocks"], *PARTS["dual"]]):
                raise ValueError(f"{key}: {unknown('part', name, known)}")
        if "block" in equation:
            return "blocks"
        if set(equation) & set(PARTS["dual"]):
            return "dual"
    parts = [*equation.values()] if isinstance(equation, Mapping) else [equation]
    names = {name for part in parts for name in called(part)}
    if names & {READ, WRITE}:
        return "streams"
    return "parallel" if parts == [equation] and names & set(SUB_LAYERS) else "serial"


def _connection_of(topology: str, connection: Mapping[str, Any]) -> Mapping[str, Any]:
    """The connection of a placement. Equations of x, r and end have the connection `dual`."""
    if topology in CONNECTED and "type" not in connection:
        raise ValueError(
            "connection.type is missing; read(X) and write(X, u) are those of a connection, as "
            "{type: hyper_connection, streams: 4}"
        )
    if connection and topology not in CONNECTED:
        raise ValueError("connection: no equation has read(X) and write(X, f(..))")
    return {"type": "dual"} if topology == "dual" else connection


def _parts(key: str, equation: Any, topology: str, everywhere: bool) -> dict[str, str]:
    """The equation's text for each part of its topology. An entry of `where` may lack parts."""
    if topology_of(key, equation) != topology:
        raise ValueError(f"{key}: all blocks of a model have one form, here {topology}")
    if not isinstance(equation, Mapping):
        return dict.fromkeys(PARTS[topology], equation)
    for part in PARTS[topology]:
        if part not in equation and (everywhere or topology == "dual"):
            raise ValueError(f"{key}: {part} is missing; wanted are {', '.join(PARTS[topology])}")
    return {part: equation[part] for part in PARTS[topology] if part in equation}


def _check(kind: str, plan: SubLayerPlan) -> None:
    """Refuses two combinations that can be computed but contradict themselves."""
    if "pre.scale" in plan.scales and "out" in plan.sites:
        raise ValueError(f"a factor on the pre of {kind} and a norm at out exclude each other")
    subln = [name for name in ("ctx", "mid") if name in plan.sites]
    if subln and "post" in plan.sites and plan.scale("a") != 1:
        raise ValueError(
            f"Sub-LN ({', '.join(subln)}) goes with a norm at pre, a scaled skip (DeepNorm) with "
            "one at post: they exclude each other"
        )
