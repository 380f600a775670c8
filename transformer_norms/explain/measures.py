"""How much room the boxes of a figure take."""

from collections.abc import Sequence

from transformer_norms.explain.drawing import Box, Norm, Row, Times

HEIGHT, BETWEEN, SIDE = 30.0, 16.0, 8.0  # of a box, from one to the next, a factor's radius
LETTER, BOLD = 7.3, 7.9  # widths


def wide(box: Box | Row) -> float:
    if isinstance(box, Row):
        return 3 * slot(box) + 2 * 8
    return max(104.0, len(box.label) * LETTER + 22)


def slot(row: Row) -> float:
    norms = [box for _, chain in row.slots for box in chain if isinstance(box, Norm)]
    return max([44.0, *(len(f"{box.site} {box.label}") * BOLD + 16 for box in norms)])


def span(branch: Sequence[Box | Row]) -> float:
    """The room of a branch, with the words beside its boxes."""
    factors = [2 * (len(box.label) * 6.5 + SIDE + 8) for box in branch if isinstance(box, Times)]
    sites = [wide(box) + 2 * 34 for box in branch if isinstance(box, Norm)]
    boxes = [wide(box) for box in branch if not isinstance(box, Times)]
    return max([*factors, *sites, *boxes])


def high(box: Box | Row) -> float:
    if isinstance(box, Row):
        return 34 + sum(max(high(b) for b in level) + 6 for level in levels(box))
    return 2 * SIDE if isinstance(box, Times) else HEIGHT


def levels(row: Row) -> list[list[Box]]:
    chains = [chain for _, chain in row.slots]
    return [[c[n] for c in chains if n < len(c)] for n in range(max(len(c) for c in chains))]


def tall(branch: Sequence[Box | Row]) -> float:
    return sum(high(box) + BETWEEN for box in branch)
