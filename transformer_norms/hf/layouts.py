"""How one tensor of theirs is made of ours, and ours of it: each layout with its inverse."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Sizes = Mapping[str, int]  # a config's `model`
Ours = Sequence[Tensor]


class Layout(NamedTuple):
    """`there` makes theirs, `here` takes it apart again; `like` are tensors of our shapes."""

    there: Callable[[Ours, Sizes], Tensor]
    here: Callable[[Tensor, Ours, Sizes], Sequence[Tensor]]


def _rows(tensor: Tensor, like: Ours, sizes: Sizes) -> Sequence[Tensor]:
    return tensor.split([len(each) for each in like])


def _by_head(ours: Ours, sizes: Sizes) -> Tensor:
    return torch.stack([each.unflatten(0, (sizes["heads"], -1)) for each in ours], 1).flatten(0, 2)


def _of_each_head(tensor: Tensor, like: Ours, sizes: Sizes) -> Sequence[Tensor]:
    heads = tensor.unflatten(0, (sizes["heads"], len(like), -1))
    return [each.flatten(0, 1) for each in heads.unbind(1)]


def _after_two(ours: Ours, sizes: Sizes) -> Tensor:
    return torch.cat((torch.zeros_like(ours[0][:2]), ours[0]))


SAME = Layout(lambda ours, sizes: ours[0], lambda tensor, like, sizes: [tensor])
# One under the other: GLM-4's gate and up.
STACKED = Layout(lambda ours, sizes: torch.cat(list(ours)), _rows)
# Side by side, [in, out]: GPT-2's Conv1D. The transpose of a bias is itself.
COLUMNS = Layout(
    lambda ours, sizes: torch.cat(list(ours)).t(),
    lambda tensor, like, sizes: _rows(tensor.t(), like, sizes),
)
# Query, key and value of one head, then those of the next: GPT-NeoX.
BY_HEAD = Layout(_by_head, _of_each_head)
# A vector for each head, as the rows of a matrix: Cohere's norms of queries and keys.
HEADS = Layout(
    lambda ours, sizes: torch.stack(list(ours)), lambda tensor, like, sizes: tensor.unbind()
)
# OPT's table of positions begins with two rows that no token reads.
AFTER_TWO = Layout(_after_two, lambda tensor, like, sizes: [tensor[2:]])
