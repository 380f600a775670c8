"""A block as boxes, words and lines with positions, which a terminal and an SVG paint alike.

Positions are the columns and lines of a terminal. The stream runs from line 0 on, and each
sub-layer is a stage of it: branches leave the stream, pass their boxes and are added back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_norms.explain.anatomy import Anatomy, Block, Factor, NormAt, SubLayer
from transformer_norms.model.sites import EARLIER

GAP = 2
Point = tuple[int, int]  # column, line


@dataclass(frozen=True)
class Mark:
    """Something that stands at a position. `kind` is norm or layer (boxes, centred there), factor
    (words to the right of a line that runs down), gain (words in a line that runs across, from
    there on), name (the letter of a stream) or sum."""

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
        """The columns that are kept free for it: small boxes are drawn alike."""
        return max(11, self.size) if self.kind in ("norm", "layer") else self.size


@dataclass(frozen=True)
class Wire:
    """A line through some points, with straight pieces; `arrow` says whether it ends in one."""

    points: tuple[Point, ...]
    kind: str = "branch"
    arrow: bool = False


@dataclass(frozen=True)
class Layout:
    """Everything that is drawn of one kind of block."""

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
    """q, k and v beside each other, each with a chain of its own."""

    chains: tuple[tuple[Mark, ...], ...]

    @property
    def slot(self) -> int:
        marks = [mark for chain in self.chains for mark in chain]
        return max(_reach(mark) * 2 if mark.kind == "factor" else mark.room for mark in marks)

    @property
    def tall(self) -> int:
        return 2 * max(len(chain) for chain in self.chains) - 1


Marks = tuple[Mark, ...]
Chain = tuple[Mark | Fork, ...]  # what a branch passes, in its order


@dataclass(frozen=True)
class Stage:
    """Branches that leave the stream together, and what they meet on the way back."""

    branches: tuple[Chain, ...]
    shared: Marks = ()  # before the branches part
    skip: Marks = ()
    adds: tuple[tuple[str, Marks], ...] = ()  # earlier streams that are added as well
    post: Marks = ()


def block_layout(anatomy: Anatomy, block: Block, room: int | None = None) -> Layout:
    """The layout of a block; with short labels if the full ones need more columns than `room`."""
    layout = _Placing(_Labels(anatomy, short=False), block).layout
    if room is None or layout.width <= room:
        return layout
    return _Placing(_Labels(anatomy, short=True), block).layout


def kinds_of_block(anatomy: Anatomy, room: int | None = None) -> dict[Layout, list[int]]:
    """Each layout that some block has, with the blocks that have it, in the order of the first."""
    kinds: dict[Layout, list[int]] = {}
    for i, block in enumerate(anatomy.blocks):
        kinds.setdefault(block_layout(anatomy, block, room), []).append(i)
    return kinds


def blocks_text(blocks: Sequence[int]) -> str:
    """`block 0`, `blocks 1-3`, `blocks 0, 2-5`; nothing for none."""
    runs: list[list[int]] = []
    for block in sorted(blocks):
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"block{'s' * (len(blocks) > 1)} {', '.join(texts)}" if blocks else ""


class _Labels:
    """A block's stages, with the words of each box."""

    def __init__(self, anatomy: Anatomy, short: bool) -> None:
        self.anatomy, self.short = anatomy, short

    def stages(self, block: Block) -> list[Stage]:
        parts = list(block.parts.values())
        if block.topology == "parallel":
            shared = self.norm(block.norms.get("pre"))
            return [Stage(tuple(self.branch(part) for part in parts), shared)]
        return [
            Stage(
                (self.branch(part),),
                skip=self.factor(part.factors.get("a")),
                adds=tuple((name, self.factor(c)) for name, c in part.adds.items()),
                post=self.norm(part.norms.get("post")),
            )
            for part in parts
        ]

    def branch(self, part: SubLayer) -> Chain:
        inside = self.attention(part) if part.name == "attention" else self.mlp(part)
        before, after = self.norm(part.norms.get("pre")), self.norm(part.norms.get("out"))
        return (*before, *inside, *after, *self.factor(part.factors.get("b")))

    def attention(self, part: SubLayer) -> Chain:
        """Its inside is shown only if something stands there."""
        cap = f", cap {part.cap}" if part.cap else ""
        norms, factors = part.norms, part.factors
        learned = factors.get("attention_scale")
        scale = self.factor(learned, short=True) if learned and learned.learned else ()
        chains = {site: self.norm(norms.get(site), short_factor=True) for site in "qkv"}
        chains["q"] = (*chains["q"], *scale)
        after = (
            *self.norm(norms.get("head_norm")),
            *self.factor(factors.get("head_scale")),
            *self.norm(norms.get("ctx")),
        )
        if not (after or any(chains.values())):
            return (Mark("layer", f"attention{cap}"),)
        named = (chain or (Mark("name", site),) for site, chain in chains.items())
        fork = (Fork(tuple(named)),) if any(chains.values()) else ()
        kind = self.anatomy.config.attention.type
        mixing = "softmax(q k') v" if kind == "softmax" else f"{kind}(q, k, v)"
        mix = Mark("layer", f"{mixing}{cap}")
        return (Mark("layer", "W_q  W_k  W_v"), *fork, mix, *after, Mark("layer", "W_o"))

    def mlp(self, part: SubLayer) -> Chain:
        mid, scale = self.norm(part.norms.get("mid")), self.factor(part.factors.get("hidden_scale"))
        if not (mid or scale):
            return (Mark("layer", "mlp"),)
        reads = "W_gate  W_up" if part.gated else "W_up"
        activation = self.anatomy.config.mlp.activation
        bent = f"{activation}(gate) * up" if part.gated else activation
        return (Mark("layer", reads), *scale, Mark("layer", bent), *mid, Mark("layer", "W_down"))

    def norm(self, norm: NormAt | None, short_factor: bool = False) -> Marks:
        if norm is None:
            return ()
        scale = self.factor(norm.scale, short_factor)
        if norm.name == "none":
            return scale
        share = "" if norm.share == "head" else f"@{norm.share}"
        label = norm.site if self.short else f"{norm.site} {self.anatomy.shown(norm.name)}{share}"
        return (Mark("norm", label), *scale)

    def factor(self, factor: Factor | None, short: bool = False) -> Marks:
        """A constant is labelled by its number, or by its formula if blocks differ in it."""
        if factor is None:
            return ()
        symbol = "s" if factor.symbol.endswith((" scale", "_scale")) else factor.symbol
        number = f"{factor.value:.4g}"
        if factor.rest_of:
            label = f"({factor.formula})"
        elif factor.learned:
            label = symbol if self.short or short else f"{symbol}, learned from {number}"
        elif factor.varies and len(self.anatomy.blocks) > 1:
            label = symbol if self.short or short else factor.formula
        elif factor.symbol in EARLIER:  # its stream stands beside it
            label = number
        else:
            label = symbol if self.short or short else f"{symbol} = {number}"
        return (Mark("factor", f"* {label}"),)


class _Placing:
    """Gives each box, word and line of a block its position."""

    def __init__(self, labels: _Labels, block: Block) -> None:
        self.stages = labels.stages(block)
        self.marks: dict[Mark, None] = {}  # two wires may end in one sum
        self.wires: list[Wire] = []
        self.rails, left = self._rails()
        posts = [_half(mark) for stage in self.stages for mark in stage.post]
        beside = max(self.rails.values()) + 2 if self.rails else 0
        self.stream = max([6, left, *(beside + half for half in posts)])
        self.columns = [self._columns(stage) for stage in self.stages]
        if all(len(columns) == 1 for columns in self.columns):
            middle = max(columns[0] for columns in self.columns)
            self.columns = [[middle]] * len(self.stages)
        self.second = self._furthest() + 4 if block.topology == "dual" else 0
        self._place()
        self.layout = Layout(tuple(self.marks), tuple(self.wires))

    def _rails(self) -> tuple[dict[str, int], int]:
        """The column of each earlier stream that some stage adds, and the first one beyond."""
        rails, left = {}, 1
        for stream in ("x0", "start"):
            factors = [
                chain for stage in self.stages for name, chain in stage.adds if name == stream
            ]
            if factors:
                rails[stream] = left
                left += max([6, *(_reach(mark) + 2 for chain in factors for mark in chain)])
        return rails, left

    def _columns(self, stage: Stage) -> list[int]:
        """The centre of each branch, beyond what stands beside the skip."""
        left, columns = self.stream + max([8, *(_reach(mark) + 2 for mark in stage.skip)]), []
        for branch in stage.branches:
            columns.append(left + max(_half(mark) for mark in branch))
            left = columns[-1] + max(_reach(mark) for mark in branch) + GAP
        return columns

    def _furthest(self) -> int:
        """The last column of what stands on branches and on the stream."""
        ends = [self.stream + _reach(mark) for stage in self.stages for mark in stage.post]
        for stage, columns in zip(self.stages, self.columns, strict=True):
            for branch, column in zip(stage.branches, columns, strict=True):
                ends += [column + _reach(mark) for mark in branch]
        return max(ends)

    def _place(self) -> None:
        ends = {self.stream: "x", **({self.second: "r"} if self.second else {})}
        starts = {**ends, **({self.rails["x0"]: "x0"} if "x0" in self.rails else {})}
        for column, name in starts.items():
            self.mark("name", name, column, 0)
        line = 0
        for stage, columns in zip(self.stages, self.columns, strict=True):
            line = self._stage(stage, columns, line + 2)
        for column, name in ends.items():
            self.wire((column, 0), (column, line + 1), kind="stream", arrow=True)
            self.mark("name", name, column, line + 2)

    def _stage(self, stage: Stage, columns: Sequence[int], split: int) -> int:
        """Places a stage whose branches leave the stream at `split`; its last line."""
        fork = self.stream, split
        if stage.shared:
            middle = (columns[0] + columns[-1]) // 2
            self.wire(fork, (middle, split), (middle, split + 2 * len(stage.shared) + 2))
            fork = middle, self._chain(stage.shared, middle, split) + 2
        chains = zip(stage.branches, columns, strict=True)
        join = max(self._chain(branch, column, fork[1]) for branch, column in chains) + 2
        for column in columns:
            self.wire(fork, (column, fork[1]), (column, join), (self.stream, join), arrow=True)
            if self.second:
                self.wire((column, join - 1), (column, join), (self.second, join), arrow=True)
        self._chain(stage.skip, self.stream, split)
        for column in (self.stream, *([self.second] if self.second else [])):
            self.mark("sum", "+", column, join)
        for number, (name, factor) in enumerate(stage.adds):
            join += 2 * (number > 0)
            self._add(name, factor, join)
        return self._chain(stage.post, self.stream, join)

    def _add(self, name: str, factor: Marks, join: int) -> None:
        """An earlier stream comes down its rail, and is added at `join`, after its factor."""
        rail = self.rails[name]
        top = [(rail, 0)] if name == "x0" else [(self.stream, 1), (rail, 1)]
        self.wire(*top, (rail, join), (self.stream, join), arrow=True)
        for mark in factor:
            self.mark("gain", mark.label, rail + 2, join)
        self.mark("sum", "+", self.stream, join)

    def _chain(self, chain: Chain, column: int, line: int) -> int:
        """Places boxes one below the other after `line`; the line of the last."""
        for mark in chain:
            line += 2
            if isinstance(mark, Fork):
                line = self._fork(mark, column, line)
            else:
                self.mark(mark.kind, mark.label, column, line)
        return line

    def _fork(self, fork: Fork, column: int, line: int) -> int:
        """q, k and v part, each meets its own, and they come together; the last line."""
        step, last = fork.slot + GAP, line + fork.tall + 1
        for place, chain in zip((-step, 0, step), fork.chains, strict=True):
            if place:
                side = column + place
                self.wire((column, line), (side, line), (side, last), (column, last))
            self._chain(chain, column + place, line - 1)
        return last

    def mark(self, kind: str, label: str, column: int, line: int) -> None:
        self.marks[Mark(kind, label, column, line)] = None

    def wire(self, *points: Point, kind: str = "branch", arrow: bool = False) -> None:
        self.wires.append(Wire(points, kind, arrow))


def _half(mark: Mark | Fork) -> int:
    """How far something reaches to the left of its line."""
    if isinstance(mark, Fork):
        return (3 * mark.slot + 2 * GAP) // 2
    return 1 if mark.kind == "factor" else mark.room // 2


def _reach(mark: Mark | Fork) -> int:
    """How far something reaches to the right of its line."""
    if isinstance(mark, Fork):
        return _half(mark) + 1
    return mark.size + 3 if mark.kind == "factor" else -(-mark.room // 2)
