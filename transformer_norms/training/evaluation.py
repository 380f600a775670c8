"""Computes the loss on held-out text: the sum over all tokens, and the losses of its blocks."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_norms.kinds import is_finite
from transformer_norms.training.loss import Batch
from transformer_norms.training.parallel.micro_batches import MicroBatches
from transformer_norms.training.tensors import double

MOST_BLOCKS = 64  # of a text whose losses a run records


class Evaluation(NamedTuple):
    """`nats` is the sum over the `tokens` that were predicted. `blocks` are the losses of blocks of
    the text, in order."""

    nats: float
    tokens: int
    blocks: list[float]


def evaluate(
    micro_batches: MicroBatches, windows: Iterable[Batch], stop: Callable[[], bool]
) -> Evaluation | None:
    """Computes the loss of windows of text; returns None once `stop` says so."""
    loss, sums, counts = micro_batches.loss, list[Tensor](), list[int]()
    loss.model.eval()
    try:
        # With gradients the graphs are those of training: nothing is compiled for evaluation.
        with torch.set_grad_enabled(loss.compilation.active):
            for sum_of_window, count in micro_batches.sums(windows):
                sums.append(double(sum_of_window.detach().clone()))
                counts.append(count)
                if stop():
                    return None
    finally:
        loss.model.train()
    nats = float(sum(sums))
    return Evaluation(nats, sum(counts), _blocks(sums, counts) if is_finite(nats) else [])


def _blocks(sums: Sequence[Tensor], counts: Sequence[int]) -> list[float]:
    """Returns the losses of at most MOST_BLOCKS blocks, of as many windows each. The rest at the
    end belongs to the last block."""
    whole = sum(count == counts[0] for count in counts)
    size = -(-whole // MOST_BLOCKS) or 1
    starts = [*range(0, whole - size + 1, size)]
    ends = [*starts[1:], len(counts)]
    return [
        round(torch.stack([*sums[a:b]]).sum().item() / sum(counts[a:b]), 6)
        for a, b in zip(starts, ends, strict=True)
    ]
