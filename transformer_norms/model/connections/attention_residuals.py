"""All that sub-layers have added, over which a sub-layer attends."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from transformer_norms.kinds import Nothing, Positive
from transformer_norms.model.connections import CONNECTIONS, Stream, Streams
from transformer_norms.norms import Layer
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.division import exact
from transformer_norms.norms.rmsnorm import RMSNorm

Entries = tuple[Stream, ...]


class First:
    """X = (x0,)"""

    def __call__(self, x0: Stream, *_: Any) -> Entries:
        return (x0,)


class AttendingSum(nn.Module):
    """sum_i a_i X_i, a = softmax over i of w . rmsnorm(X_i), w = 0 at the start"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.norm = nn.Parameter(torch.zeros(width)), RMSNorm(width)

    def forward(self, entries: Entries) -> Stream:
        with exact(entries[0].device.type):
            keys = (self.norm(wide(entry)) for entry in entries)
            logits = [torch.einsum("...d,d->...", key, self.query) for key in keys]
            weights = torch.stack(logits).softmax(0).unsqueeze(-1)
            terms = [a * wide(x) for a, x in zip(weights, entries, strict=True)]
        return sum(terms[1:], terms[0]).to(entries[0].dtype)


class AttendAndNorm(nn.Module):
    """final(sum_i a_i X_i), a = softmax over i of w . rmsnorm(X_i)"""

    def __init__(self, width: int, final: Layer) -> None:
        super().__init__()
        self.attend, self.norm = AttendingSum(width), final

    def forward(self, entries: Entries) -> Stream:
        return self.norm(self.attend(entries))


@CONNECTIONS("attention_residual")
class AttentionResidual(nn.Module):
    """X has the embedded tokens and what each sub-layer added      Attention Residuals, Kimi Team
    2026, arXiv:2603.15031

    With `blocks`, it has one entry for each of at most so many groups, and u is added to the entry
    of its group. As in the paper's figure 2, groups are of whole blocks of the model. They are of
    the same size, the least that makes no more groups than that, and the last may be smaller. With
    w = 0 a sub-layer reads the mean of the entries, which is the stream of the residual block times
    a number.
    """

    enter, leave = First, AttendAndNorm

    def __init__(
        self, width: int, index: int, count: int, depth: int, *, blocks: Nothing | Positive
    ) -> None:
        super().__init__()
        size = 1 if blocks == "none" else count // depth * -(-depth // blocks)
        self.attend, self.begins = AttendingSum(width), index % size == 0

    def read(self, entries: Entries) -> Stream:
        """sum_i a_i X_i, a = softmax over i of w . rmsnorm(X_i)"""
        return self.attend(entries)

    def write(self, entries: Entries, u: Stream) -> Entries:
        """X = (*X, u), or u is added to the last entry"""
        return (*entries, u) if self.begins else (*entries[:-1], entries[-1] + u)

    def parts(self, entries: Entries) -> Mapping[str, Streams]:
        return {"": torch.stack(entries, -2)}
