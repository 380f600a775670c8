"""A block as boxes, words and lines with positions, which a terminal and an SVG paint alike.

Positions are the columns and lines of a terminal. The stream runs from line 0 on, and each
sub-layer is a stage of it: branches leave the stream, pass their boxes and are added back.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transformer_norms.explain.anatomy import Anatomy, Block, Factor, NormAt, SubLayer
from transformer_norms.model.equation import READ, WRITE
from transformer_norms.model.placement import CONNECTED
from transformer_norms.model.sites import EARLIER, NORMED

GAP = 2
Point = tuple[int, int]  # column, line


@dataclass(frozen=True)
class Mark:
    """A sign or words at a position. `kind` is norm or layer (boxes, centred there), factor
    (words to the right of a line that runs down), gain (words in a line that runs across, from
    there on), name (the letter of a stream), value (the letter of what a line carries) or sum."""

    kind: str
    label: str
    column: int = 0
    line: int = 0

    @property
    def size(self) -> int:
        """The columns of its words, the brackets of a box included."""
        return len(self.label) + 2 * (self.kind in ("norm", "layer"))

    @property
    def room(self) -> int:
        """The columns that are kept free for it: small boxes have one size."""
        return max(11, self.size) if self.kind in ("norm", "layer") else self.size

    @property
    def left(self) -> int:
        """The columns to the left of its line."""
        return 1 if self.kind == "factor" else self.room // 2

    @property
    def right(self) -> int:
        """The columns to the right of its line."""
        return self.size + 3 if self.kind == "factor" else -(-self.room // 2)


@dataclass(frozen=True)
class Wire:
    """A line of straight pieces through the points. If `arrow` is set, it ends in an arrow."""

    points: tuple[Point, ...]
    kind: str = "branch"
    arrow: bool = False


@dataclass(frozen=True)
class Layout:
    """The drawing of one kind of block: its marks and lines, with their positions."""

    marks: tuple[Mark, ...]
    wires: tuple[Wire, ...]

    @property
    def width(self) -> int:
        ends = [mark.column + mark.size + 2 for mark in self.marks if mark.kind == "factor"]
        ends += [mark.column + -(-mark.size // 2) for mark in self.marks]
        return max(ends)

    @property
    def height(self) -> int:
        return max(line for wire in self.wires for _, line in wire.points) + 2


@dataclass(frozen=True)
class Fork:
    """q, k and v, or an mlp's gate and its other half, side by side, each with its own chain."""

    chains: tuple[tuple[Mark, ...], ...]

    @property
    def slot(self) -> int:
        """The columns of each chain."""
        marks = [mark for chain in self.chains for mark in chain]
        return max(mark.right * 2 if mark.kind == "factor" else mark.room for mark in marks)

    @property
    def height(self) -> int:
        return 2 * max(len(chain) for chain in self.chains) - 1

    @property
    def before(self) -> int:
        """How many chains stand to the left of the one that is on the branch's line."""
        return (len(self.chains) - 1) // 2

    @property
    def left(self) -> int:
        return self.before * (self.slot + GAP) + self.slot // 2

    @property
    def right(self) -> int:
        after = len(self.chains) - 1 - self.before
        return after * (self.slot + GAP) + self.slot // 2 + 1


Marks = tuple[Mark, ...]


@dataclass(frozen=True)
class Tap:
    """A line from a branch back to the stream, into a sum there, and the factor on it."""

    factor: Marks
    left, right = 0, 0

    @property
    def reach(self) -> int:
        """The columns from the stream to the branch."""
        return 8 + sum(mark.size for mark in self.factor)


Chain = tuple[Mark | Fork | Tap, ...]  # the things on a branch, in their order


@dataclass(frozen=True)
class Stage:
    """Branches that leave the stream together, and the marks on their way back."""

    branches: tuple[Chain, ...]
    shared: Marks = ()  # before the branches part
    enter: Marks = ()  # on the stream, before the branches leave it
    mixes: tuple[tuple[str, Marks], ...] = ()  # earlier streams that are added there
    mixed: bool = True  # whether the stream itself is in that sum
    skip: Marks = ()
    carried: bool = True  # whether the stream passes the branches
    adds: tuple[tuple[str, Marks], ...] = ()  # earlier streams that are added as well
    post: Marks = ()
    write: Marks = ()  # the box of a connection in the place of the sum


def kinds_of_block(anatomy: Anatomy, room: int | None = None) -> dict[Layout, list[int]]:
    """Each different layout with the blocks that have it, in the order of the first block. A layout
    has short labels if the full ones need more columns than `room`."""
    topology = anatomy.placement.topology
    kinds: dict[Layout, list[int]] = {}
    for i, block in enumerate(anatomy.blocks):
        layout = _Positions(_Labels(anatomy).stages(block, i), topology).layout
        if room is not None and layout.width > room:
            layout = _Positions(_Labels(anatomy, short=True).stages(block, i), topology).layout
        kinds.setdefault(layout, []).append(i)
    return kinds


def blocks_text(blocks: Sequence[int]) -> str:
    """`block 0`, `blocks 1-3`, `blocks 0, 2-5`; an empty text for no blocks. A block that is there
    twice counts once."""
    runs: list[list[int]] = []
    for block in sorted(distinct := set(blocks)):
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"block{'s' * (len(distinct) > 1)} {', '.join(texts)}" if blocks else ""


class _Labels:
    """A block's stages, with the words of each box."""

    def __init__(self, anatomy: Anatomy, short: bool = False) -> None:
        self.anatomy, self.short = anatomy, short
        self.values: Marks = ()  # what is added to the values of the block

    def stages(self, block: Block, i: int) -> list[Stage]:
        terms = self.anatomy.value_terms(i)
        self.values = tuple(Mark("layer", "+ v1" if "v1" in text else "+ E_v") for text in terms)
        branches = {
            "attention": self.branch("attention", block, self.attention),
            "mlp": self.branch("mlp", block, self.mlp),
        }
        if self.anatomy.placement.topology == "parallel":
            return [Stage(tuple(branches.values()), self.norm(block.norms.get("pre")))]
        return [
            self.stage(part, branches[name], name in self.anatomy.joins)
            for name, part in block.parts.items()
        ]

    def stage(self, part: SubLayer, branch: Chain, joined: bool) -> Stage:
        a, of_sum = part.factors.get("a"), _common_factor(part)
        carried = not a or bool(a.learned) or a.value != 0
        return Stage(
            (branch,),
            enter=self.factor(part.enters.get("x")),
            mixes=self.sum(part.enters),
            mixed=not part.enters or "x" in part.enters,
            skip=self.factor(a) if carried and not of_sum else (),
            carried=carried,
            adds=self.sum(dict.fromkeys(part.adds) if of_sum else part.adds),
            post=(*self.factor(of_sum), *self.norm(part.norms.get("post"))),
            write=(Mark("layer", WRITE),) * joined,
        )

    def sum(self, factors: Mapping[str, Factor | None]) -> tuple[tuple[str, Marks], ...]:
        return tuple((stream, self.factor(factors[stream])) for stream in EARLIER
                     if stream in factors)  # fmt: skip

    def branch(self, name: str, block: Block, inside: Callable[[SubLayer], Chain]) -> Chain:
        part = block.parts[name]
        before, after = self.norm(part.norms.get("pre")), self.norm(part.norms.get("out"))
        read = (Mark("layer", READ),) * (name in self.anatomy.joins)
        b = () if _common_factor(part) else self.factor(part.factors.get("b"))
        tap = (Tap(self.factor(part.adds[NORMED])),) if NORMED in part.adds else ()
        return (*read, *before, *tap, *inside(part), *after, *b)

    def attention(self, part: SubLayer) -> Chain:
        """One box, unless a norm or a learned factor stands inside it."""
        norms, factors = part.norms, part.factors
        beside = f", cap {self.anatomy.attention_cap}" if self.anatomy.attention_cap else ""
        beside += ", ALiBi" if self.anatomy.alibi else ""
        beside += f", window {part.window}" if part.window else ""
        beside += f", chunk {part.chunk}" if part.chunk else ""
        beside += "" if part.source is None else f", k and v of block {part.source}"
        learned = factors.get("attention_scale")
        scale = self.factor(learned, short=True) if learned and learned.learned else ()
        chains = {site: self.norm(norms.get(site), short_factor=True) for site in "qkv"}
        chains["q"] = (*chains["q"], *scale)
        chains["v"] = (*self.values, *chains["v"])
        after = (
            *self.norm(norms.get("head_norm")),
            *self.factor(factors.get("head_scale")),
            *self.gate(),
            *self.norm(norms.get("ctx")),
        )
        latents = self.latents(part)
        kind = self.anatomy.config.attention.type
        if not (after or latents or any(chains.values())):
            named = "" if kind == "softmax" else f", {kind}"
            return (Mark("layer", f"attention{named}{beside}"),)
        sites = (chain or (Mark("value", site),) for site, chain in chains.items())
        fork = (Fork(tuple(sites)),) if any(chains.values()) else ()
        mixing = "softmax(q k') v" if kind == "softmax" else f"{kind}(q, k, v)"
        mix = Mark("layer", f"{mixing}{beside}")
        own = part.source is None
        weights = "W_q" + "  W_k" * own + "  W_v" * (own and not part.shared)
        weights += "  W_kr" * (own and bool(part.inner.rope_dim) and not latents)
        weights += "  W_g" * bool(self.gate())
        return (*latents, Mark("layer", weights), *fork, mix, *after, Mark("layer", "W_o"))

    def latents(self, part: SubLayer) -> Chain:
        """Returns the stages of what queries, keys and values are made of, where that is not x."""
        inner, norms, own = part.inner, part.norms, part.source is None
        ranks = {"q": inner.q_rank, **({"kv": inner.kv_rank} if own else {})}
        if not any(ranks.values()):
            return ()
        chains = {
            name: self.norm(norms.get(f"{name}_latent"), True)
            or (Mark("value", f"c_{name}" if rank else "x"),)
            for name, rank in ranks.items()
        }
        weights = [f"W_d{name}" for name, rank in ranks.items() if rank]
        if inner.rope_dim and own:
            weights, chains["kr"] = [*weights, "W_kr"], (Mark("value", "k_r"),)
        down = Mark("layer", "  ".join(weights))
        return (down, Fork(tuple(chains.values()))) if own else (down, *chains["q"])

    def gate(self) -> Marks:
        """What multiplies the heads, where attention has a gate."""
        kind = self.anatomy.config.architecture.attention_gate
        label = {"elementwise": "sigmoid(W_g x)", "per_head": "sigmoid(W_g x) by head"}
        return () if kind == "none" else (Mark("factor", f"* {label[kind]}"),)

    def mlp(self, part: SubLayer) -> Chain:
        mid, scale = self.norm(part.norms.get("mid")), self.factor(part.factors.get("hidden_scale"))
        halves = tuple(self.norm(part.norms.get(site)) for site in ("gate", "hidden"))
        hidden: Chain = (Fork(halves),) if all(halves) else halves[1]
        if not (hidden or mid or scale):
            return (Mark("layer", "mlp"),)
        weights, activation = "W_up", self.anatomy.config.mlp.activation
        if self.anatomy.gated:
            weights, activation = "W_gate  W_up", f"{activation}(gate) * up"
        layers = [Mark("layer", label) for label in (weights, activation, "W_down")]
        return (layers[0], *hidden, *scale, layers[1], *mid, layers[2])

    def norm(self, norm: NormAt | None, short_factor: bool = False) -> Marks:
        if norm is None:
            return ()
        scale = self.factor(norm.scale, short_factor)
        if norm.name == "none":
            return scale
        share = "" if norm.share == "head" else f"@{norm.share}"
        label = (
            norm.site if self.short else f"{norm.site} {self.anatomy.known_name(norm.name)}{share}"
        )
        return (Mark("norm", label), *scale)

    def factor(self, factor: Factor | None, short: bool = False) -> Marks:
        """A constant is labelled by its number, or by its formula if blocks differ in it."""
        if factor is None:
            return ()
        symbol = "s" if factor.symbol.endswith((" scale", "_scale")) else factor.symbol
        number = f"{factor.value:.4g}"
        if factor.rest_of:
            label = f"({factor.formula})"
        elif factor.symbol in EARLIER and not self._varies(factor):
            label = number  # its stream stands beside it
        elif short or self.short:
            label = symbol
        elif factor.matrix:
            label = f"{symbol}, learned {factor.learned}"
        elif factor.learned:
            label = f"{symbol}, learned" + ("" if self._varies(factor) else f" from {number}")
        else:
            label = factor.formula if self._varies(factor) else f"{symbol} = {number}"
        return (Mark("factor", f"* {label}"),)

    def _varies(self, factor: Factor) -> bool:
        return factor.varies and len(self.anatomy.blocks) > 1


def _common_factor(part: SubLayer) -> Factor | None:
    """Returns the learned number that multiplies every term of a sum, s * (x + f(x))."""
    first, *others = (part.factors.get("a"), part.factors.get("b"), *part.adds.values())
    same = first and first.learned and not first.matrix and all(one == first for one in others)
    return first if same else None


class _Positions:
    """The position of each box, word and line of a block."""

    def __init__(self, stages: Sequence[Stage], topology: str) -> None:
        self.stages, self.name = stages, "X" if topology in CONNECTED else "x"
        self.around = topology == "blocks"  # the connection is around all stages
        self.marks: dict[Mark, None] = {}  # an ordered set: two wires may end in one sum
        self.wires: list[Wire] = []
        self.gaps: list[tuple[int, int]] = []  # the lines between which there is no stream
        self.rails, left = self._rails()
        posts = [mark.left for stage in self.stages for mark in stage.post]
        beside = max(self.rails.values()) + 2 if self.rails else 0
        self.stream = max([6, left, *(beside + half for half in posts)])
        self.columns = [self._columns(stage) for stage in self.stages]
        if all(len(columns) == 1 for columns in self.columns):
            middle = max(columns[0] for columns in self.columns)
            self.columns = [[middle]] * len(self.stages)
        self.second = self._furthest() + 4 if topology == "dual" else 0
        self._place()
        self.layout = Layout(tuple(self.marks), tuple(self.wires))

    def _rails(self) -> tuple[dict[str, int], int]:
        """The column of each earlier stream that some stage adds, and the first one beyond."""
        rails, left = {}, 1
        if self.around:
            rails["X"], left = left, left + 9
        for stream in ("x0", "start"):
            factors = [
                chain
                for stage in self.stages
                for name, chain in (*stage.mixes, *stage.adds)
                if name == stream
            ]
            if factors:
                rails[stream] = left
                left += max([6, *(mark.right + 2 for chain in factors for mark in chain)])
        return rails, left

    def _columns(self, stage: Stage) -> list[int]:
        """The centre of each branch, beyond the marks beside the skip."""
        left, columns = self.stream + max([8, *(mark.right + 2 for mark in stage.skip)]), []
        for branch in stage.branches:
            reach = max(mark.reach if isinstance(mark, Tap) else 0 for mark in branch)
            columns.append(max(left + max(mark.left for mark in branch), self.stream + reach))
            left = columns[-1] + max(mark.right for mark in branch) + GAP
        return columns

    def _furthest(self) -> int:
        """The last column of all marks on branches and on the stream."""
        ends = [self.stream + mark.right for stage in self.stages for mark in stage.post]
        for stage, columns in zip(self.stages, self.columns, strict=True):
            for branch, column in zip(stage.branches, columns, strict=True):
                ends += [column + mark.right for mark in branch]
        return max(ends)

    def _place(self) -> None:
        ends = {self.stream: self.name, **({self.second: "r"} if self.second else {})}
        starts = {**ends, **({self.rails["x0"]: "x0"} if "x0" in self.rails else {})}
        for column, name in starts.items():
            self.mark("name", name, column, 0)
        line = 2 * self.around
        for stage, columns in zip(self.stages, self.columns, strict=True):
            line = self._stage(stage, columns, line + 2)
        if self.around:
            self.mark("layer", READ, self.stream, 2)
            line += 2
            self._wire_rail("X", line)
            self.mark("layer", WRITE, self.stream, line)
        for column, name in ends.items():
            above = 0
            for before, behind in self.gaps:  # two streams have none
                self.wire((column, above), (column, before), kind="stream")
                above = behind
            self.wire((column, above), (column, line + 1), kind="stream", arrow=True)
            self.mark("name", name, column, line + 2)

    def _stage(self, stage: Stage, columns: Sequence[int], split: int) -> int:
        """Places a stage whose branches leave the stream at `split`. Returns its last line."""
        line = self._chain(stage.enter, self.stream, split - 2)
        if not stage.mixed:
            self.gaps.append((line, line + 2))
        for number, (name, factor) in enumerate(stage.mixes):
            line += 2
            self._add(name, factor, line, summed=stage.mixed or number > 0)
        split = line + 2
        fork = self.stream, split
        if stage.shared:
            middle = (columns[0] + columns[-1]) // 2
            self.wire(fork, (middle, split), (middle, split + 2 * len(stage.shared) + 2))
            fork = middle, self._chain(stage.shared, middle, split) + 2
        chains = zip(stage.branches, columns, strict=True)
        join = max(self._chain(branch, column, fork[1]) for branch, column in chains) + 2
        summed = stage.carried or bool(stage.adds)
        if not stage.carried:
            self.gaps.append((split, join))
        for column in columns:
            self.wire(fork, (column, fork[1]), (column, join), (self.stream, join), arrow=summed)
            if self.second:
                self.wire((column, join - 1), (column, join), (self.second, join), arrow=True)
        self._chain(stage.skip, self.stream, split)
        for column in (self.stream, *([self.second] if self.second else [])):
            for mark in stage.write or (Mark("sum", "+"),) * summed:
                self.mark(mark.kind, mark.label, column, join)
        for number, (name, factor) in enumerate(stage.adds):
            join += 2 * (number > 0)
            self._add(name, factor, join)
        return self._chain(stage.post, self.stream, join)

    def _add(self, name: str, factor: Marks, join: int, summed: bool = True) -> None:
        """Places an earlier stream: down its rail, then across to the sum at `join`."""
        rail = self._wire_rail(name, join, summed)
        for mark in factor:
            self.mark("gain", mark.label, rail + 2, join)
        if summed:
            self.mark("sum", "+", self.stream, join)

    def _wire_rail(self, name: str, join: int, arrow: bool = True) -> int:
        """Draws the line of an earlier stream. `start` leaves what the block reads."""
        rail = self.rails[name]
        leaves = 3 if self.around and name == "start" else 1
        top = [(rail, 0)] if name == "x0" else [(self.stream, leaves), (rail, leaves)]
        self.wire(*top, (rail, join), (self.stream, join), arrow=arrow)
        return rail

    def _chain(self, chain: Chain, column: int, line: int) -> int:
        """Places boxes one below another after `line`. Returns the line of the last."""
        for mark in chain:
            line += 2
            if isinstance(mark, Fork):
                line = self._fork(mark, column, line)
            elif isinstance(mark, Tap):
                self._tap(mark, column, line)
            else:
                self.mark(mark.kind, mark.label, column, line)
        return line

    def _tap(self, tap: Tap, column: int, line: int) -> None:
        """Places the line back to the stream, and the sum there."""
        self.wire((column, line), (self.stream, line), arrow=True)
        for mark in tap.factor:
            self.mark("gain", mark.label, self.stream + 4, line)
        self.mark("sum", "+", self.stream, line)

    def _fork(self, fork: Fork, column: int, line: int) -> int:
        """Places the chains side by side, joined above and below. Returns the last line."""
        step, last = fork.slot + GAP, line + fork.height + 1
        for number, chain in enumerate(fork.chains):
            place = step * (number - fork.before)
            if place:
                side = column + place
                self.wire((column, line), (side, line), (side, last), (column, last))
            self._chain(chain, column + place, line - 1)
        return last

    def mark(self, kind: str, label: str, column: int, line: int) -> None:
        self.marks[Mark(kind, label, column, line)] = None

    def wire(self, *points: Point, kind: str = "branch", arrow: bool = False) -> None:
        self.wires.append(Wire(points, kind, arrow))
