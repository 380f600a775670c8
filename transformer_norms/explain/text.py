"""An explanation as text of at most 80 columns: longer lines are wrapped, and nothing is cut."""

from collections.abc import Sequence
from dataclasses import replace

from transformer_norms.explain.explanation import Cell, Explanation, Section
from transformer_norms.explain.layout import blocks_text, kinds_of_block
from transformer_norms.explain.painting import terminal_lines, wrap
from transformer_norms.text_tables import COLUMNS, wrapped_table

Cells = tuple[Cell, ...]


def explanation_text(explanation: Explanation) -> str:
    choices = explanation.anatomy.config.choices
    title = " ".join(f"{axis}={choices[axis]}" for axis in ("placement", "norm", "model"))
    lines = wrap(title, "", "  ")
    first, *rest = explanation.sections
    lines += [*heading(first.title), *_body(first), *heading("Drawing")]
    for layout, blocks in kinds_of_block(explanation.anatomy, room=COLUMNS - 2).items():
        lines += [f"  {blocks_text(blocks)}", ""]
        lines += [f"  {line}".rstrip() for line in terminal_lines(layout)] + [""]
    lines.append("  [ ] a norm, ( ) a layer, * a factor; the names are those of the sites")
    for section in rest:
        lines += [*heading(section.title), *_body(section)] if section.facts else []
    return "\n".join(lines) + "\n"


def difference_text(one: Explanation, two: Explanation) -> str:
    """Returns the facts that only the first explanation (A) or only the second (B) has."""
    lines: list[str] = []
    for a, b in zip(one.sections, two.sections, strict=True):
        if a.facts != b.facts:
            lines += heading(a.title)
            for letter, own, opposite in (("A", a, b.facts), ("B", b, a.facts)):
                facts = [fact for fact in own.facts if fact not in opposite]
                lines += [letter, *_body(replace(own, facts=facts, remarks=()))] if facts else []
    return "\n".join(lines[1:] or ["there is no difference"]) + "\n"


def heading(title: str) -> list[str]:
    return ["", title, "-" * len(title)]


# ------------------------------------------------------------------------------------ one section


def _body(section: Section) -> list[str]:
    """The lines of a section: a table if it has headings, else `blocks name:  cells`."""
    facts: dict[tuple[str, Cells], list[int]] = {}  # the blocks that share a name and its cells
    for fact in section.facts:
        facts.setdefault((fact.name, fact.cells), []).extend(
            [] if fact.block is None else [fact.block]
        )
    lines: list[str] = []
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


def _row(name: str, cells: Cells, blocks: Sequence[int]) -> list[str]:
    """A table's row. Counts are added up over the blocks."""
    times = max(1, len(blocks))
    texts = (f"{cell * times:,}" if isinstance(cell, int) else cell for cell in cells)
    return [blocks_text(blocks), name, *texts]
