"""Which tensor of theirs is which of ours: lines of names, and the copying both ways."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from torch import Tensor

from transformer_norms.hf.layouts import SAME, Layout, Sizes

LEAVES = {"weight": "weight", "gain": "weight", "offset": "weight", "bias": "bias"}  # ours: theirs


@dataclass(frozen=True)
class Line:
    """Their module and the modules of ours that it is made of. {i} counts blocks, and {h} heads,
    of which one module of theirs takes all. A line of which ours has nothing says nothing."""

    theirs: str
    ours: Sequence[str]
    layout: Layout = SAME


@dataclass(frozen=True)
class Match:
    """Their parameter and the parameters of ours that it is made of."""

    theirs: str
    ours: Sequence[str]
    layout: Layout


def lines(*tables: Mapping[str, str]) -> tuple[Line, ...]:
    """One line for each pair of names."""
    return tuple(Line(theirs, [ours]) for table in tables for theirs, ours in table.items())


def matches(table: Sequence[Line], ours: Collection[str], depth: int) -> list[Match]:
    """Every parameter of ours in exactly one match."""
    found = []
    for line in table:
        for i in range(depth if "{i}" in line.theirs else 1):
            modules = [name for each in line.ours for name in _modules(each, i, ours)]
            for leaf, theirs in LEAVES.items():
                names = [f"{module}.{leaf}" for module in modules]
                if names and names[0] in ours:
                    found.append(Match(f"{line.theirs.format(i=i)}.{theirs}", names, line.layout))
    used = [name for match in found for name in match.ours]
    assert sorted(used) == sorted(ours), sorted({*used} ^ {*ours})
    return found


def _modules(name: str, i: int, ours: Collection[str]) -> list[str]:
    if "{h}" not in name:
        return [name.format(i=i)]
    heads = (name.format(i=i, h=h) for h in count())
    return list(takewhile(lambda head: f"{head}.gain" in ours, heads))


def made(table: Sequence[Line], ours: Mapping[str, Tensor], sizes: Sizes) -> dict[str, Tensor]:
    """Their tensors of ours."""
    return {
        match.theirs: match.layout.there([ours[name] for name in match.ours], sizes)
        for match in matches(table, ours, sizes["depth"])
    }


def taken(
    table: Sequence[Line], theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], sizes: Sizes
) -> dict[str, Tensor]:
    """Our tensors of theirs; ValueError where one of theirs has no place, or is missing. `ours`
    are tensors of our shapes."""
    found, left = {}, set(theirs)
    for match in matches(table, ours, sizes["depth"]):
        if match.theirs not in theirs:
            raise ValueError(f"the model has no parameter {match.theirs}")
        like = [ours[name] for name in match.ours]
        parts = match.layout.here(theirs[match.theirs], like, sizes)
        for name, shaped, part in zip(match.ours, like, parts, strict=True):
            if part.shape != shaped.shape:
                raise ValueError(
                    f"{match.theirs} is {list(part.shape)} where its config makes it "
                    f"{list(shaped.shape)}"
                )
            found[name] = part
        left.discard(match.theirs)
    if left:
        raise ValueError(f"the parameter {min(left)} has no counterpart here")
    return found
