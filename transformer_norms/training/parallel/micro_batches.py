"""The gradient of a step, as a sum over micro-batches that is added in one fixed order.

This file decides which process (rank) and which copy of the model (replica) computes a micro-batch.
The order of the sum does not depend on that, so 1, 2 and 4 ranks give the same bits.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import lcm

import torch
from torch import Tensor

from transformer_norms.signals import Interrupted, Stopping
from transformer_norms.training.loss import Batch, ModelLoss
from transformer_norms.training.parallel.ranks import Ranks, add_in_tree
from transformer_norms.training.parallel.replicas import Replicas, add_gradients, take_gradients


class MicroBatches:
    """The `count` micro-batches of a step, shared evenly by the ranks and by the replicas of each.

    The windows of an evaluation have 1/`accumulation` of a step's sequences. They are cut into
    pieces of a micro-batch's size where they can be.
    """

    def __init__(
        self,
        loss: ModelLoss,
        *,
        count: int,
        accumulation: int,
        replicas: int,
        ranks: Ranks,
        seed: int,
    ) -> None:
        assert count % lcm(accumulation, replicas * ranks.count) == 0
        self.count, self.pieces, self.ranks, self.seed = count, count // accumulation, ranks, seed
        # Where more micro-batches are computed at a time, each has fewer logits at a time.
        loss.side_by_side = self.pieces
        self.loss = loss
        self.replicas = Replicas(loss, replicas)
        self.share = count // ranks.count // replicas  # micro-batches of each replica
        self.interruptible = self.share > 1  # between its micro-batches
        self.stopping = Stopping()  # whose signals cut a step short

    def backward(self, batch: Batch, step: int) -> Tensor:
        """Leaves the gradient of the mean loss over the batch's tokens in the model's parameters.
        Returns that loss and the cross-entropy. All is the same on all ranks, and all raise
        Interrupted if a signal to one of them cuts the step short."""
        own, each, interrupted = self.own(batch), self.share, False

        def add_share(loss: ModelLoss, replica: int) -> Tensor:
            return self._add(loss, own[replica * each :][:each], step)

        try:
            total = add_in_tree(self.replicas.run(add_share, self.replicas.count), torch.add)
        except Interrupted:
            interrupted = True
        if self.interruptible and self.ranks.any(interrupted):
            raise Interrupted
        gradients = self.replicas.gradients()
        self.ranks.add([total, *gradients])
        return total

    def own(self, batch: Batch) -> list[tuple[int, Tensor]]:
        """Returns the micro-batches of this rank, each with the number of its first sequence."""
        rows, share = len(batch) // self.count, self.count // self.ranks.count
        parts = [(i * rows, part) for i, part in enumerate(batch.split(rows))]
        return parts[self.ranks.rank * share :][:share]

    def _add(self, loss: ModelLoss, parts: Sequence[tuple[int, Batch]], step: int) -> Tensor:
        """Leaves the sum of the gradients of some micro-batches in the parameters of one model."""
        if len(parts) == 1:
            self._check_signals()
            first, part = parts[0]
            seed_dropout(self.seed, step, first)
            return loss.backward(part, self.count)
        half = len(parts) // 2
        parameters = list(loss.model.parameters())
        total = self._add(loss, parts[:half], step)
        before = take_gradients(parameters)
        total = total + self._add(loss, parts[half:], step)
        add_gradients(parameters, before)
        return total

    def _check_signals(self) -> None:
        """Raises Interrupted where a signal has come to this rank. The ranks agree at the end."""
        if self.interruptible and self.stopping.stop_requested:
            raise Interrupted

    def forget_gradients(self) -> None:
        """Drops the gradients of all replicas."""
        for parameters in self.replicas.parameters:
            take_gradients(parameters)

    def sums(self, windows: Iterable[Batch]) -> Iterator[tuple[Tensor, int]]:
        """Yields the sum of the cross-entropy over the tokens of each window, the same on all
        ranks, and how many tokens these are."""
        windows = iter(windows)
        while several := list(islice(windows, self.ranks.count * self.replicas.count)):
            cut = [
                window.chunk(self.pieces) if len(window) % self.pieces == 0 else [window]
                for window in several
            ]
            sums = iter(self._sums([piece for pieces in cut for piece in pieces]))
            for window, pieces in zip(several, cut, strict=True):
                own = [*islice(sums, len(pieces))]
                yield add_in_tree(own, torch.add), window[:, 1:].numel()

    def _sums(self, pieces: Sequence[Batch]) -> Iterator[Tensor]:
        """Yields the sum of each piece, which one replica of one rank computes. A rank for which
        there is no piece computes the last one again: ranks gather sharded weights together."""
        width, parameter = self.replicas.count, self.replicas.parameters[0][0]
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        for begin in range(0, len(pieces), self.ranks.count * width):
            group = pieces[begin : begin + self.ranks.count * width]
            own = group[self.ranks.rank * width :][:width] or group[-1:]
            sums = torch.zeros(width, dtype=dtype, device=parameter.device)
            for i, one in enumerate(self._sums_here(own)):
                sums[i] = one
            yield from self.ranks.stack(sums).flatten()[: len(group)]

    def _sums_here(self, pieces: Sequence[Batch]) -> list[Tensor]:
        return self.replicas.run(lambda loss, i: loss.sum(pieces[i]), len(pieces))


def seed_dropout(seed: int, step: int, first: int) -> None:
    """Makes what a micro-batch drops depend on the step and on the number of its first sequence in
    the step's batch. Nothing else is drawn while a model trains."""
    text = f"{seed}/{step}/{first}" if first else f"{seed}/{step}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    torch.default_generator.manual_seed(number)
    # A step that draws nothing may be captured, and then the generator cannot be set.
    if torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.manual_seed(number)
    elif torch.backends.mps.is_available():
        torch.mps.manual_seed(number)
