"""An explanation as text of at most 80 columns: longer lines are wrapped, and nothing is cut."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_norms.explain.explanation import Cell, Explanation, Fact, Section
from transformer_norms.explain.layout import blocks_text, kinds_of_block
from transformer_norms.explain.painting import terminal_lines
from transformer_norms.text_tables import COLUMNS, printable, wrapped_table

Cells = tuple[Cell, ...]


def explanation_text(explanation: Explanation) -> str:
    choices = explanation.anatomy.config.choices
    title = " ".join(f"{axis}={choices[axis]}" for axis in ("placement", "norm", "model"))
    lines = wrap(title, "", "  ")
    first, *rest = explanation.sections
    lines += [*_section(first), *heading("Drawing")]
    for layout, blocks in kinds_of_block(explanation.anatomy, room=COLUMNS - 2).items():
        lines += [f"  {blocks_text(blocks)}", ""]
        lines += [f"  {line}".rstrip() for line in terminal_lines(layout)] + [""]
    lines.append("  [ ] a norm, ( ) a layer, * a factor; the names are those of the sites")
    lines += [line for section in rest if section.facts for line in _section(section)]
    return "\n".join(lines) + "\n"


def difference_text(one: Explanation, two: Explanation) -> str:
    """Returns where two explanations differ, with the words of the first (A) and the second (B)."""
    lines: list[str] = []
    for first, second in zip(one.sections, two.sections, strict=True):
        changes = _changes(first, second)
        if changes:
            lines += [*heading(first.title), *changes]
    return "\n".join(lines[1:] or ["there is no difference"]) + "\n"


def heading(title: str) -> list[str]:
    return ["", title, "-" * len(title)]


def wrap(line: str, indent: str, further: str | None = None) -> list[str]:
    return textwrap.wrap(
        printable(line),
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=indent if further is None else further,
        break_on_hyphens=False,
    )


# ------------------------------------------------------------------------------------ one section


@dataclass(frozen=True)
class Group:
    """A fact that several blocks share."""

    name: str
    cells: Cells
    blocks: tuple[int, ...]  # empty for the model as a whole


def grouped(facts: Iterable[Fact]) -> list[Group]:
    """Facts that differ in their block alone as one, in the order in which they first came."""
    blocks: dict[tuple[str, Cells], list[int]] = {}
    for fact in facts:
        of = blocks.setdefault((fact.name, fact.cells), [])
        if fact.block is not None:
            of.append(fact.block)
    return [Group(name, cells, tuple(of)) for (name, cells), of in blocks.items()]


def _section(section: Section) -> list[str]:
    groups = grouped(section.facts)
    lines = heading(section.title)
    if any(section.heads):
        lines += wrapped_table([section.heads, *(_row(group) for group in groups)])
    else:
        for group in groups:
            name = f"{blocks_text(group.blocks)} {group.name}".strip()
            content = ", ".join(str(cell) for cell in group.cells)
            lines += wrap(
                f"{name}:  {content}" if name else content, "  ", "      " if name else None
            )
    for remark in section.remarks:
        lines += wrap(remark, "  ")
    return lines


def _row(group: Group) -> list[str]:
    """Counts are added up over the blocks."""
    times = max(1, len(group.blocks))
    cells = (f"{cell * times:,}" if isinstance(cell, int) else cell for cell in group.cells)
    return [blocks_text(group.blocks), group.name, *cells]


# ------------------------------------------------------------------------------------ a difference


def _changes(first: Section, second: Section) -> list[str]:
    """The lines of what differs in a section; changes that several blocks share are said once."""
    ours, theirs = _by_key(first.facts), _by_key(second.facts)
    blocks: dict[tuple[Any, ...], list[int]] = {}
    for name, block in dict.fromkeys([*ours, *theirs]):
        before, after = ours.get((name, block), ()), theirs.get((name, block), ())
        if before != after:
            of = blocks.setdefault((name, before, after), [])
            of += [] if block is None else [block]
    lines = []
    for (name, before, after), of in blocks.items():
        lines += wrap(f"{blocks_text(of)} {name}".strip(), "  ")
        for letter, cells, others in (("A", before, after), ("B", after, before)):
            lines += wrap(_said(first.heads, cells, others), f"    {letter}  ", "         ")
    return lines


def _by_key(facts: Sequence[Fact]) -> dict[tuple[str, int | None], tuple[Cells, ...]]:
    """Everything that is said under one name, such as two warnings."""
    said: dict[tuple[str, int | None], tuple[Cells, ...]] = {}
    for fact in facts:
        key = fact.name, fact.block
        said[key] = (*said.get(key, ()), fact.cells)
    return said


def _said(heads: Sequence[str], several: tuple[Cells, ...], others: tuple[Cells, ...]) -> str:
    """Each cell under its heading; if both sides say one thing, only the cells that differ."""
    one = len(several) == len(others) == 1
    texts = []
    for cells in several:
        kept = [
            f"{head} {cell}".strip()
            for n, (head, cell) in enumerate(zip(heads[2:], cells, strict=True))
            if cell != "" and not (one and others[0][n] == cell)
        ]
        texts.append(", ".join(kept))
    return "; ".join(texts) or "-"
