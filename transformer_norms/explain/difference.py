"""Two explanations beside each other: what differs, and nothing else."""

from collections.abc import Sequence

from transformer_norms.explain.explanation import Explanation
from transformer_norms.explain.facts import Cell, Fact, Section, blocks_text
from transformer_norms.explain.text import heading, wrapped

Key = tuple[str, int | None]  # what a fact is of, and its block
Cells = tuple[Cell, ...]


def difference(one: Explanation, other: Explanation) -> str:
    """As text: where, what, then what the first says (A) and what the second (B)."""
    lines: list[str] = []
    for here, there in zip(one.sections, other.sections, strict=True):
        found = [line for change in _changes(here, there) for line in change]
        if found:
            lines += [*heading(here.title), *found]
    return "\n".join(lines[1:] or ["there is no difference"]) + "\n"


def _changes(here: Section, there: Section) -> list[list[str]]:
    """Alike changes of several blocks are one."""
    mine, theirs = _by_key(here.facts), _by_key(there.facts)
    blocks: dict[tuple[str, tuple[Cells, ...], tuple[Cells, ...]], list[int]] = {}
    for name, block in dict.fromkeys([*mine, *theirs]):
        before, after = mine.get((name, block), ()), theirs.get((name, block), ())
        if before != after:
            of = blocks.setdefault((name, before, after), [])
            of += [] if block is None else [block]
    changes = []
    for (name, before, after), of in blocks.items():
        title = f"{blocks_text(of)} {name}".strip()
        lines = wrapped(title, "  ")
        for mark, cells, others in (("A", before, after), ("B", after, before)):
            lines += wrapped(_said(here.heads, cells, others), f"    {mark}  ", "         ")
        changes.append(lines)
    return changes


def _by_key(facts: Sequence[Fact]) -> dict[Key, tuple[Cells, ...]]:
    """All that is said under one name: two warnings, norms that are one a head."""
    found: dict[Key, tuple[Cells, ...]] = {}
    for fact in facts:
        key = fact.name, fact.block
        found[key] = (*found.get(key, ()), fact.cells)
    return found


def _said(heads: Sequence[str], several: tuple[Cells, ...], others: tuple[Cells, ...]) -> str:
    """Each cell under its head; where both sides say one thing of it, the cells that differ."""
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
