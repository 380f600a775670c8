"""A block as a column of boxes next to the residual stream, which a terminal and an SVG paint.

A drawing is a list of rows. A row holds what is on the stream at one height and, between the row
where branches leave the stream and the row where they return, one box of each branch.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from transformer_norms.explain.anatomy import (
    ATTENTION_SCALE,
    Anatomy,
    Factor,
    NormAt,
    SubLayerParts,
)
from transformer_norms.model.equation import READ, WRITE
from transformer_norms.model.sites import EARLIER, NORMED

GAP = 2  # columns between boxes


@dataclass(frozen=True)
class Box:
    """`kind` is norm, layer, factor or name; sum for an addition, line for the stream itself, and
    turn where the stream bends from one line to another."""

    kind: str
    label: str = ""

    @property
    def size(self) -> int:
        """The columns that it takes in a terminal, brackets included."""
        return max(1, len(self.label) + 2 * (self.kind in ("norm", "layer")))

    @property
    def left(self) -> int:
        """The columns to the left of its line. A factor is written to the right of it."""
        return 0 if self.kind == "factor" else self.size // 2

    @property
    def right(self) -> int:
        return self.size - self.left


LINE, SUM, TURN = Box("line"), Box("sum"), Box("turn")
Chain = tuple[Box, ...]  # the boxes of a branch, in their order


@dataclass(frozen=True)
class Row:
    """A row is the part of a drawing at one height. `stream` is None where there is none. `term`
    is an earlier stream that enters from the left. Branches `leave` or `join` the stream at an
    `edge`, through a box that they `share`."""

    stream: Box | None = LINE
    branches: tuple[Box | None, ...] = ()
    edge: str = ""
    term: str = ""
    share: Box | None = None


@dataclass(frozen=True)
class Layout:
    """The drawing of one kind of block: its rows, the columns of the stream and of each branch, in
    letters, and the name of a second stream that branches are added to."""

    rows: tuple[Row, ...]
    stream: int
    branches: tuple[int, ...]
    second: str
    width: int

    def shared(self, box: Box) -> int:
        """The column of the box that branches share."""
        return self.stream + 3 + box.size // 2


def kinds_of_block(anatomy: Anatomy, room: int | None = None) -> dict[Layout, list[int]]:
    """Each different layout with the blocks that have it, in the order of the first block. A layout
    has short labels if the full ones need more columns than `room`."""
    kinds: dict[Layout, list[int]] = {}
    for i in range(anatomy.depth):
        layout = _layout(_Rows(anatomy, i))
        if room is not None and layout.width > room:
            layout = _layout(_Rows(anatomy, i, short=True))
        kinds.setdefault(layout, []).append(i)
    return kinds


def _layout(reader: "_Rows") -> Layout:
    """Gives the stream and each branch a column that holds their widest box."""
    topology, rows = reader.anatomy.placement.topology, [*reader.rows()]
    name = Box("name", "X" if reader.anatomy.joins else "x")
    if topology == "blocks":
        rows = [Row(Box("layer", READ)), *rows, Row(Box("layer", WRITE), term="X")]
    rows = [Row(name), *rows, Row(name)]
    boxes = [(row.stream or LINE, row.term) for row in rows]
    stream = max(box.left + (len(term) + 3 if term else 0) for box, term in boxes)
    inside = [row for row in rows if row.branches or row.edge]
    end = stream + max((row.stream or LINE).right for row in inside) + GAP
    end += max(row.share.size + GAP if row.share else 0 for row in inside)
    columns = []
    for n in range(max(len(row.branches) for row in inside)):
        own = [row.branches[n] or LINE for row in inside if row.branches]
        columns.append(end + max(box.left for box in own))
        end = columns[-1] + max(box.right for box in own) + GAP
    second = "r" if topology == "dual" else ""
    width = max(end - GAP + 4 * bool(second), stream + max(box.right for box, _ in boxes))
    return Layout(tuple(rows), stream, tuple(columns), second, width)


def blocks_text(blocks: Sequence[int]) -> str:
    """`block 0`, `blocks 1-3`, `blocks 0, 2-5`; an empty text for no blocks. A block that is there
    twice counts once."""
    return f"block{'s' * (len({*blocks}) > 1)} {ranges(blocks)}" if blocks else ""


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as `0, 2-5`."""
    runs: list[list[int]] = []
    for number in sorted({*numbers}):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


class _Rows:
    """The rows of block i, with the words of each box."""

    def __init__(self, anatomy: Anatomy, i: int, short: bool = False) -> None:
        self.anatomy, self.i, self.short = anatomy, i, short

    def rows(self) -> Iterator[Row]:
        block = self.anatomy.blocks[self.i]
        branches = {name: self.branch(name, part) for name, part in block.items()}
        if self.anatomy.placement.topology == "parallel":
            shared = self.anatomy.block_norms(self.i).get("pre")
            yield Row(edge="leave", share=self.norm(shared) if shared else None)
            yield from side_by_side(branches.values())
            yield Row(SUM, edge="join")
            return
        for name, part in block.items():
            yield from self.sub_layer(part, branches[name], name in self.anatomy.joins)

    def sub_layer(self, part: SubLayerParts, branch: Chain, joined: bool) -> Iterator[Row]:
        a, of_sum = part.factors.get("a"), _common_factor(part)
        carried = not a or bool(a.learned) or a.value != 0
        skip = self.factor(a) if carried and not of_sum else ()
        enters, adds = part.plan.enters, part.plan.adds
        yield from map(Row, self.factor(part.factors.get("enter.x")))
        if enters and "x" not in enters:
            yield Row(None)
        for n, term in enumerate(self.terms(part, enters, "enter.")):
            yield Row(SUM if n or "x" in enters else TURN, term=term)
        yield Row(LINE if carried else TURN, edge="leave")
        for row in side_by_side([branch]):
            yield Row(next(iter(skip), LINE) if carried else None, row.branches)
            skip = ()
        first, *more = self.terms(part, adds, alone=bool(of_sum)) or [""]
        summed = Box("layer", WRITE) if joined else SUM if carried or adds else TURN
        yield Row(summed, edge="join", term=first)
        yield from (Row(SUM, term=term) for term in more)
        yield from map(Row, (*self.factor(of_sum), *self.site(part, "post")))

    def terms(
        self, part: SubLayerParts, streams: Container[str], prefix: str = "", alone: bool = False
    ) -> list[str]:
        """Each earlier stream, or what the sub-layer reads, with its factor, or `alone`."""
        names = {**{stream: stream for stream in EARLIER}, NORMED: "pre(x)"}
        factors = {} if alone else part.factors
        return [
            " ".join((word, *(box.label for box in self.factor(factors.get(prefix + stream)))))
            for stream, word in names.items()
            if stream in streams
        ]

    def branch(self, name: str, part: SubLayerParts) -> Chain:
        inside = self.attention(part) if name == "attention" else self.mlp(part)
        read = (Box("layer", READ),) * (name in self.anatomy.joins)
        b = () if _common_factor(part) else self.factor(part.factors.get("b"))
        return (*read, *self.site(part, "pre"), *inside, *self.site(part, "out"), *b)

    def attention(self, part: SubLayerParts) -> Chain:
        """One box, unless a norm or a learned factor is inside it."""
        more = f", cap {self.anatomy.attention_cap}" if self.anatomy.attention_cap else ""
        more += ", ALiBi" if self.anatomy.alibi else ""
        limits = {"window": part.own.sliding_window, "chunk": part.own.attention_chunk}
        more += "".join(f", {name} {tokens}" for name, tokens in limits.items() if tokens)
        more += "" if part.own.source is None else f", k and v of block {part.own.source}"
        learned = part.factors.get(ATTENTION_SCALE)
        scale = self.factor(learned, short=True) if learned and learned.learned else ()
        chains = {site: self.site(part, site, short_factor=True) for site in "qkv"}
        chains["q"] = (*chains["q"], *scale)
        terms = self.anatomy.value_terms(self.i)
        added = (Box("layer", "+ v1" if "v1" in text else "+ E_v") for text in terms)
        chains["v"] = (*added, *chains["v"])
        after = (
            *self.site(part, "head_norm"),
            *self.factor(part.factors.get("head_scale")),
            *self.gate(),
            *self.site(part, "ctx"),
        )
        latents = self.latents(part)
        kind = self.anatomy.config.attention.type
        if not (after or latents or any(chains.values())):
            named = "" if kind == "softmax" else f", {kind}"
            return (Box("layer", f"attention{named}{more}"),)
        mixing = "softmax(q k') v" if kind == "softmax" else f"{kind}(q, k, v)"
        own = part.own.source is None
        weights = "W_q" + "  W_k" * own + "  W_v" * (own and not part.own.values_from_keys)
        weights += "  W_kr" * (own and bool(part.own.rope_dim) and not latents)
        weights += "  W_g" * bool(self.gate())
        layers = [Box("layer", label) for label in (weights, f"{mixing}{more}", "W_o")]
        return (*latents, layers[0], *abreast(chains), layers[1], *after, layers[2])

    def latents(self, part: SubLayerParts) -> Chain:
        """Returns the boxes of what queries, keys and values are made of, where that is not x."""
        inner, own = part.own, part.own.source is None
        ranks = {"q": inner.q_rank, **({"kv": inner.kv_rank} if own else {})}
        if not any(ranks.values()):
            return ()
        chains = {
            f"c_{name}" if rank else "x": self.site(part, f"{name}_latent", short_factor=True)
            for name, rank in ranks.items()
        }
        weights = [f"W_d{name}" for name, rank in ranks.items() if rank]
        if inner.rope_dim and own:
            weights, chains["k_r"] = [*weights, "W_kr"], ()
        return (Box("layer", "  ".join(weights)), *abreast(chains, always=True))

    def gate(self) -> Chain:
        """The factor of the heads, where attention has a gate."""
        kind = self.anatomy.config.architecture.attention_gate
        label = {"elementwise": "sigmoid(W_g x)", "per_head": "sigmoid(W_g x) by head"}
        return () if kind == "none" else (Box("factor", f"* {label[kind]}"),)

    def mlp(self, part: SubLayerParts) -> Chain:
        mid, scale = self.site(part, "mid"), self.factor(part.factors.get("hidden_scale"))
        halves = {site: self.site(part, site) for site in ("gate", "hidden")}
        hidden = abreast(halves) if all(halves.values()) else halves["hidden"]
        if not (hidden or mid or scale):
            return (Box("layer", "mlp"),)
        weights, activation = "W_up", self.anatomy.config.mlp.activation
        if self.anatomy.gated:
            weights, activation = "W_gate  W_up", f"{activation}(gate) * up"
        layers = [Box("layer", label) for label in (weights, activation, "W_down")]
        return (layers[0], *hidden, *scale, layers[1], *mid, layers[2])

    def site(self, part: SubLayerParts, site: str, short_factor: bool = False) -> Chain:
        """The norm at a site, and the factor on it."""
        norm, factor = part.norms.get(site), part.factors.get(f"{site}.scale")
        return (*([self.norm(norm)] if norm else []), *self.factor(factor, short_factor))

    def norm(self, norm: NormAt) -> Box:
        share = "" if norm.share == "head" else f"@{norm.share}"
        name = f" {self.anatomy.known_name(norm.name)}{share}"
        return Box("norm", norm.site if self.short else f"{norm.site}{name}")

    def factor(self, factor: Factor | None, short: bool = False) -> Chain:
        """A constant is labelled by its number, or by its formula if blocks differ in it."""
        if factor is None:
            return ()
        symbol = "s" if factor.symbol.endswith((" scale", "_scale")) else factor.symbol
        number = f"{factor.value:.4g}"
        if factor.rest_of:
            label = f"({factor.formula})"
        elif factor.symbol in EARLIER and not self._varies(factor):
            label = number  # its stream is next to it
        elif short or self.short:
            label = symbol
        elif factor.matrix:
            label = f"{symbol}, learned {factor.learned}"
        elif factor.learned:
            label = f"{symbol}, learned" + ("" if self._varies(factor) else f" from {number}")
        else:
            label = factor.formula if self._varies(factor) else f"{symbol} = {number}"
        return (Box("factor", f"* {label}"),)

    def _varies(self, factor: Factor) -> bool:
        return factor.varies and len(self.anatomy.blocks) > 1


def side_by_side(branches: Iterable[Chain]) -> Iterator[Row]:
    """The rows of branches, one box of each in a row."""
    return (Row(branches=boxes) for boxes in zip_longest(*branches))


def abreast(chains: Mapping[str, Chain], always: bool = False) -> Chain:
    """One box for chains that run side by side, as q, k and v do: `q rmsnorm * s | k rmsnorm | v`.
    There is none where all chains are empty, unless `always`."""
    if not (any(chains.values()) or always):
        return ()
    words = [" ".join(box.label for box in chain) or name for name, chain in chains.items()]
    normed = any(box.kind == "norm" for chain in chains.values() for box in chain)
    return (Box("norm" if normed else "layer", " | ".join(words)),)


def _common_factor(part: SubLayerParts) -> Factor | None:
    """Returns the learned number that multiplies every term of a sum, s * (x + f(x))."""
    first, *others = map(part.factors.get, ("a", "b", *part.plan.adds))
    same = first and first.learned and not first.matrix and all(one == first for one in others)
    return first if same else None
