"""An explanation as text of at most 80 columns: longer lines are wrapped, and nothing is cut."""

from collections.abc import Iterable, Sequence
from typing import Any

from transformer_norms.explain.explanation import Cell, Explanation, Fact, Section
from transformer_norms.explain.layout import blocks_text, kinds_of_block
from transformer_norms.explain.painting import terminal_lines, wrap_line
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
    return wrap_line(printable(line), COLUMNS, indent, indent if further is None else further)


# ------------------------------------------------------------------------------------ one section


def _section(section: Section) -> list[str]:
    """The lines of a section: a table if it has headings, else `blocks name:  cells`."""
    facts = _by_content(section.facts)
    lines = heading(section.title)
    if any(section.heads):
        rows = [_row(name, cells, blocks) for (name, cells), blocks in facts.items()]
        lines += wrapped_table([section.heads, *rows])
    else:
        for (name, cells), blocks in facts.items():
            label = f"{blocks_text(blocks)} {name}".strip()
            content = ", ".join(map(str, cells))
            if label:
                lines += wrap(f"{label}:  {content}", "  ", "      ")
            else:
                lines += wrap(content, "  ")
    for remark in section.remarks:
        lines += wrap(remark, "  ")
    return lines


def _by_content(facts: Iterable[Fact]) -> dict[tuple[str, Cells], list[int]]:
    """The blocks that share a name and its cells, in the order in which the facts came."""
    blocks: dict[tuple[str, Cells], list[int]] = {}
    for fact in facts:
        sharing = blocks.setdefault((fact.name, fact.cells), [])
        if fact.block is not None:
            sharing.append(fact.block)
    return blocks


def _row(name: str, cells: Cells, blocks: Sequence[int]) -> list[str]:
    """A table's row. Counts are added up over the blocks."""
    times = max(1, len(blocks))
    texts = (f"{cell * times:,}" if isinstance(cell, int) else cell for cell in cells)
    return [blocks_text(blocks), name, *texts]


# ------------------------------------------------------------------------------------ a difference


def _changes(first: Section, second: Section) -> list[str]:
    """The lines of what differs in a section. A change that several blocks share stands once."""
    facts_a, facts_b = _by_place(first.facts), _by_place(second.facts)
    changed: dict[tuple[Any, ...], list[int]] = {}
    for name, block in dict.fromkeys([*facts_a, *facts_b]):
        a, b = facts_a.get((name, block), ()), facts_b.get((name, block), ())
        if a != b:
            blocks = changed.setdefault((name, a, b), [])
            blocks += [] if block is None else [block]
    lines = []
    for (name, a, b), blocks in changed.items():
        lines += wrap(f"{blocks_text(blocks)} {name}".strip(), "  ")
        for letter, own, opposite in (("A", a, b), ("B", b, a)):
            lines += wrap(_side(first.heads, own, opposite), f"    {letter}  ", "         ")
    return lines


def _by_place(facts: Sequence[Fact]) -> dict[tuple[str, int | None], tuple[Cells, ...]]:
    """The cells by name and block. One name may have several facts, such as warnings."""
    content: dict[tuple[str, int | None], tuple[Cells, ...]] = {}
    for fact in facts:
        key = fact.name, fact.block
        content[key] = (*content.get(key, ()), fact.cells)
    return content


def _side(heads: Sequence[str], own: tuple[Cells, ...], opposite: tuple[Cells, ...]) -> str:
    """Each cell under its heading. Where both sides have one fact, only the cells that differ."""
    single = len(own) == len(opposite) == 1
    texts = []
    for cells in own:
        kept = [
            f"{head} {cell}".strip()
            for n, (head, cell) in enumerate(zip(heads[2:], cells, strict=True))
            if cell != "" and not (single and opposite[0][n] == cell)
        ]
        texts.append(", ".join(kept))
    return "; ".join(texts) or "-"
