"""A block as a small list of things to draw, which text and SVG share.

A block is stages one after another. In a stage the stream splits: branches go through their boxes
and are added back, the skip carries the rest, and norms may stand on the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from transformer_norms.explain.anatomy import Anatomy, BlockAnatomy
from transformer_norms.explain.facts import blocks_text
from transformer_norms.explain.numbers import number
from transformer_norms.explain.reading import Factor, Reader, Standing
from transformer_norms.model.sites import REST_OF_B


@dataclass(frozen=True)
class Norm:
    site: str
    label: str
    share: str = ""


@dataclass(frozen=True)
class Layer:
    label: str


@dataclass(frozen=True)
class Times:
    label: str
    symbol: str  # the label where there is no room


Box = Norm | Layer | Times


@dataclass(frozen=True)
class Row:
    """Boxes side by side, each slot a short chain of its own: what happens to q, k and v."""

    slots: tuple[tuple[str, tuple[Box, ...]], ...]


Branch = tuple[Box | Row, ...]


@dataclass(frozen=True)
class Stage:
    branches: tuple[Branch, ...]
    shared: tuple[Box, ...] = ()  # before the branches part
    skip: tuple[Times, ...] = ()
    start: bool = False  # the block's input is added once more
    post: tuple[Box, ...] = ()
    second: bool = False  # the branch is added to a second stream r as well


@dataclass(frozen=True)
class Drawing:
    """One kind of block, and the blocks that are of it."""

    stages: tuple[Stage, ...]
    blocks: tuple[int, ...]

    @property
    def title(self) -> str:
        return blocks_text(self.blocks)

    @property
    def norms(self) -> list[Norm]:
        """Every norm that is drawn."""
        found: list[Norm] = []
        for stage in self.stages:
            for box in (*stage.shared, *(b for branch in stage.branches for b in branch)):
                inside = [b for _, s in box.slots for b in s] if isinstance(box, Row) else [box]
                found += [b for b in inside if isinstance(b, Norm)]
            found += [box for box in stage.post if isinstance(box, Norm)]
        return found


def drawings(reader: Reader, blocks: list[BlockAnatomy]) -> list[Drawing]:
    """One for each kind of block that there is, in the order of the first of each."""
    kinds: dict[tuple[Stage, ...], list[int]] = {}
    draw = _Draw(reader, blocks)
    for i, block in enumerate(blocks):
        kinds.setdefault(draw.stages(block), []).append(i)
    return [Drawing(stages, tuple(of)) for stages, of in kinds.items()]


class _Draw:
    def __init__(self, reader: Reader, blocks: list[BlockAnatomy]) -> None:
        self.reader, self.several = reader, len(blocks) > 1

    def stages(self, block: BlockAnatomy) -> tuple[Stage, ...]:
        parts = block.parts
        if block.topology == "parallel":
            branches = tuple(self.branch(of) for of in parts.values())
            return (Stage(branches, shared=self.norm(block.sites.get("pre"))),)
        return tuple(self.stage(of, second=block.topology == "dual") for of in parts.values())

    def stage(self, of: Anatomy, second: bool) -> Stage:
        skip = () if second else self.times(of.factors.get("a"))
        post = self.norm(of.sites.get("post"))
        return Stage((self.branch(of),), (), skip, of.start and not second, post, second)

    def branch(self, of: Anatomy) -> Branch:
        sites, factors = of.sites, of.factors
        inside = self.attention(of) if of.name == "attention" else self.mlp(of)
        return (
            *self.norm(sites.get("pre")),
            *inside,
            *self.norm(sites.get("out")),
            *self.times(factors.get("b")),
        )

    def attention(self, of: Anatomy) -> Branch:
        """Opened only where something stands inside."""
        cap = "" if of.cap is None else f", cap {of.cap:g}"
        sites, factors = of.sites, of.factors
        heads = self.slots(sites, factors)
        after = (
            *self.norm(sites.get("head_norm")),
            *self.times(factors.get("head_scale")),
            *self.norm(sites.get("ctx")),
        )
        opened = any(chain for _, chain in heads)
        if not (after or opened):
            return (Layer(f"attention{cap}"),)
        row = (Row(heads),) if opened else ()
        return (Layer("W_q  W_k  W_v"), *row, Layer(f"softmax(q k') v{cap}"), *after, Layer("W_o"))

    def slots(
        self, sites: Mapping[str, Standing], factors: Mapping[str, Factor]
    ) -> tuple[tuple[str, tuple[Box, ...]], ...]:
        scale = self.times(factors.get("attention_scale"))
        return tuple(
            (name, (*self.norm(sites.get(name)), *(scale if name == "q" else ()))) for name in "qkv"
        )

    def mlp(self, of: Anatomy) -> Branch:
        mid, scale = self.norm(of.sites.get("mid")), self.times(of.factors.get("hidden_scale"))
        if not (mid or scale):
            return (Layer("mlp"),)
        reads = "W_gate  W_up" if of.gated else "W_up"
        bent = f"{of.activation}(gate) * up" if of.gated else of.activation
        return (Layer(reads), *scale, Layer(bent), *mid, Layer("W_down"))

    def norm(self, standing: Standing | None) -> tuple[Box, ...]:
        if standing is None:
            return ()
        label = self.reader.shown(standing.name)
        return (Norm(standing.site, label, standing.share), *self.times(standing.scale))

    def times(self, factor: Factor | None) -> tuple[Times, ...]:
        """A constant as its number, one of depth as its formula, a learned one by its name."""
        if factor is None:
            return ()
        symbol = "s" if "scale" in factor.symbol else factor.symbol
        if factor.learned:
            return (Times(f"{symbol}, learned from {number(factor.value)}", symbol),)
        if factor.formula == REST_OF_B:
            return (Times(f"({REST_OF_B})", f"({REST_OF_B})"),)
        if factor.varies and self.several:
            return (Times(factor.formula, symbol),)
        return (Times(f"{symbol} = {number(factor.value)}", symbol),)
