"""An explanation as data: sections of facts, each of one block or of the whole model.

What is printed and what is compared is this and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Cell = str | int  # a whole number is a count: where blocks are alike, it adds up


@dataclass(frozen=True)
class Fact:
    """`name` says what of, `cells` say it; `block` is None for what no block holds."""

    name: str
    cells: tuple[Cell, ...]
    block: int | None = None


@dataclass(frozen=True)
class Section:
    """`heads` are those of where, name and cells; a head that is empty has no column."""

    title: str
    heads: tuple[str, ...]
    facts: Sequence[Fact]
    remarks: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class Group:
    """A fact that holds of several blocks alike."""

    name: str
    cells: tuple[Cell, ...]
    blocks: tuple[int, ...]  # empty for the model as a whole

    @property
    def where(self) -> str:
        return blocks_text(self.blocks)

    @property
    def summed(self) -> tuple[Cell, ...]:
        """The cells with their counts added up over the blocks."""
        times = max(1, len(self.blocks))
        return tuple(cell * times if isinstance(cell, int) else cell for cell in self.cells)


def grouped(facts: Iterable[Fact]) -> list[Group]:
    """Facts that differ in their block alone as one, in the order in which they first came."""
    blocks: dict[tuple[str, tuple[Cell, ...]], list[int]] = {}
    for fact in facts:
        of = blocks.setdefault((fact.name, fact.cells), [])
        if fact.block is not None:
            of.append(fact.block)
    return [Group(name, cells, tuple(of)) for (name, cells), of in blocks.items()]


def blocks_text(blocks: Sequence[int]) -> str:
    """`block 0`, `blocks 1-3`, `blocks 0, 2-5`; nothing for none."""
    if not blocks:
        return ""
    runs: list[list[int]] = []
    for block in sorted(blocks):
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"block{'s' * (len(blocks) > 1)} {', '.join(texts)}"
