"""The names and layouts of their tensors, and the copying both ways."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, product, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer_norms.model.connections import MOST_STREAMS
from transformer_norms.model.settings import ModelConfig
from transformer_norms.storage.reading import read_yaml

_WORDS = re.compile(r"\{([^{}]*,[^{}]*)\}")
# Ours: theirs. A line may name a parameter itself.
LEAVES = {"": "", "weight": "weight", "gain": "weight", "offset": "weight", "bias": "bias"}


# ------------------------------------------------------------ layouts: one tensor of several

Layout = Callable[..., Tensor]  # (config, *ours) -> their tensor


def same(config: ModelConfig, ours: Tensor) -> Tensor:
    return ours


def stacked(config: ModelConfig, *ours: Tensor) -> Tensor:
    """One under the other: GLM-4's gate and up."""
    return torch.cat(ours)


def columns(config: ModelConfig, *ours: Tensor) -> Tensor:
    """Side by side, [in, out]: GPT-2's Conv1D. The transpose of a bias is itself."""
    return torch.cat(ours).t()


def by_head(config: ModelConfig, *ours: Tensor) -> Tensor:
    """Query, key and value of one head, then those of the next: GPT-NeoX. They may differ in
    size."""
    each = [tensor.unflatten(0, (config.model.heads, -1)) for tensor in ours]
    return torch.cat(each, 1).flatten(0, 1)


def turned_last(config: ModelConfig, query: Tensor) -> Tensor:
    """Puts the dimensions that rope turns last in each head, as DeepSeek's queries have them."""
    rows = query.unflatten(0, (config.model.heads, -1))
    return rows.roll(-config.blocks[0].rope_dim, 1).flatten(0, 1)


def turned_back(config: ModelConfig, ours: Tensor) -> Tensor:
    """The two halves of each head change places, since nanochat turns by the negative angle."""
    halves = ours.unflatten(0, (-1, 2, config.blocks[0].sizes.head_dim // 2))
    return halves.flip(1).flatten(0, 2)


def heads(config: ModelConfig, *gains: Tensor) -> Tensor:
    """A vector for each head, as the rows of a matrix: Cohere's norms of queries and keys."""
    return torch.stack(gains)


def after_two(config: ModelConfig, positions: Tensor) -> Tensor:
    """OPT's table of positions begins with two rows that no token reads."""
    return torch.cat((torch.zeros_like(positions[:2]), positions))


LAYOUTS: dict[str, Layout] = {
    layout.__name__: layout
    for layout in (same, stacked, columns, by_head, turned_last, turned_back, heads, after_two)
}


# --------------------------------------------------------------- names: a table for each family


class Line(NamedTuple):
    """A parameter of theirs, and those of ours that it is made of."""

    theirs: str
    ours: Sequence[str]
    layout: Layout


def parameters(model_type: str, ours: Collection[str], depth: int) -> list[Line]:
    """The parameters of a family's model. Every parameter of ours is in exactly one.

    A line of tensors.yaml is `theirs [layout] ours ... where module`; the layout `same` is left
    out. {h} counts heads, of which one module of theirs takes all. A line that names nothing of a
    model is left out, and so is one whose module `where` a model lacks, or has, if that is `!` and
    its name.
    """
    rows = []
    for text in _expanded(model_type, depth):
        text, _, where = text.partition(" where ")
        if where and (f"{where.removeprefix('!')}.weight" in ours) == where.startswith("!"):
            continue
        theirs, *names = text.split()
        layout = names.pop(0).strip("[]") if names[0].startswith("[") else "same"
        modules = [module for name in names for module in _modules(name, ours)]
        for leaf, their_leaf in LEAVES.items():
            parts = [f"{module}.{leaf}".rstrip(".") for module in modules]
            if parts and parts[0] in ours:
                rows.append(Line(f"{theirs}.{their_leaf}".rstrip("."), parts, LAYOUTS[layout]))
    used = [name for line in rows for name in line.ours]
    assert sorted(used) == sorted(ours), sorted({*used} ^ {*ours})
    return rows


def _expanded(model_type: str, depth: int) -> Iterator[str]:
    """Yields the lines of a family. A name that begins with a point is inside a block, which theirs
    call `block`. Words in brackets, {q,k} .. {query,key}, mean as many lines, and so does {n}, for
    streams."""
    tables = read_yaml(Path(__file__).parent / "tensors.yaml")
    family = tables["families"].get(model_type, {"of": "ends attention mlp pre"})
    groups = [tables["groups"][name] for name in family.get("of", "").split()]
    block = family.get("block", tables["block"])
    for line in "".join([*groups, family.get("names", "")]).splitlines():
        blocks = range(depth if line.startswith(".") else 1)
        streams = range(MOST_STREAMS - 1 if "{n}" in line else 1)
        for i, n in product(blocks, streams):
            text = re.sub(r"^\.", f"{block.format(i=i)}.", line.replace("{n}", str(n)))
            text = re.sub(r"(?<=[ !])\.", f"blocks.{i}.", text)
            parts = _WORDS.split(text)  # every second is a list of words
            words = [part.split(",") for part in parts[1::2]]
            for each in zip(*words, strict=True) if words else [()]:
                parts[1::2] = each
                yield "".join(parts)


def _modules(name: str, ours: Collection[str]) -> list[str]:
    if "{h}" not in name:
        return [name]
    heads = (name.format(h=h) for h in count())
    return list(takewhile(lambda head: f"{head}.gain" in ours, heads))


def tensors_of(their_model: Any) -> dict[str, Tensor]:
    """Returns a model's parameters by name, and the buffers that are saved with them."""
    saved = their_model.state_dict().keys()
    buffers = {name: own for name, own in their_model.named_buffers() if name in saved}
    return dict(their_model.named_parameters()) | buffers


def their_tensors(
    model_type: str, ours: Mapping[str, Tensor], config: ModelConfig
) -> Iterator[tuple[str, Tensor]]:
    """Yields their tensors one at a time: all of them would be a second model in memory."""
    for line in parameters(model_type, ours, config.model.depth):
        yield line.theirs, line.layout(config, *(ours[name] for name in line.ours))


def our_tensors(
    model_type: str, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], config: ModelConfig
) -> dict[str, Tensor]:
    """Our tensors, made of theirs. `ours` are tensors of our shapes.

    A layout only moves numbers, so that its transpose moves them back; autograd has it. Raises
    ValueError if a tensor of theirs has no place here, is missing, or has another shape.
    """
    tensors: dict[str, Tensor] = {}
    left = dict(theirs)
    for name, names, layout in parameters(model_type, ours, config.model.depth):
        if name not in left:
            raise ValueError(f"the model has no parameter {name}")
        tensor, like = left.pop(name), [ours[own] for own in names]
        made, transpose = torch.func.vjp(partial(layout, config), *like)  # type: ignore[misc]
        if tensor.shape != made.shape:
            given, wanted = list(tensor.shape), list(made.shape)
            raise ValueError(f"{name} is {given} where its config makes it {wanted}")
        tensors |= zip(names, transpose(tensor.to(made.dtype)), strict=True)
    if left:
        raise ValueError(f"the parameter {min(left)} has no counterpart here")
    return tensors
