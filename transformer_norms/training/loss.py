"""The cross-entropy of a model's tokens. Its logits live a piece at a time."""

from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from transformer_norms.model.transformer import Transformer

Batch = Int[Tensor, "batch time"]  # one token more than the model reads: inputs and targets overlap
# At a time, 128 MiB in float32: of a large vocabulary, a batch's take more than all the rest.
LOGITS = 1 << 25


class CrossEntropy:
    """Nats per token of `model`, in float32 at least; `precision=bf16` runs it under autocast.

    Pieces are equal to a token, and as few as have LOGITS logits: all of a small vocabulary is one.
    Where replicas compute theirs side by side, each replica's are smaller by their number.
    """

    def __init__(self, model: Transformer, *, device: str, precision: str) -> None:
        self.model, self.device = model, device
        self.bf16, self.side_by_side = precision == "bf16", 1

    def __call__(self, batch: Batch) -> Tensor:
        """The mean over tokens."""
        return self.sum(batch) / batch[:, 1:].numel()

    def sum(self, batch: Batch) -> Tensor:
        """Over tokens."""
        pieces = self._pieces(*self._states(batch))
        return torch.stack([self._nats(*piece) for piece in pieces]).sum()

    def backward(self, batch: Batch, parts: int) -> Tensor:
        """Adds the gradients of the mean over tokens, divided by `parts`, and gives that loss.

        Each piece's logits are gone before the next piece's are computed, whose gradient takes its
        memory; what they add up to for the states then goes down the model.
        """
        states, targets = self._states(batch)
        pieces = self._pieces(states.detach(), targets)
        share = states.new_ones((), dtype=self._dtype(states)) / parts / targets.numel()
        # One for all pieces, of which the first is the longest: fresh pages take longer than sums.
        memory = share.new_empty(len(pieces[0][1]), self.model.vocab_size)
        nats = [self._piece_backward(*piece, share, memory) for piece in pieces]
        del memory
        states.backward(torch.cat([cast(Tensor, piece.grad) for piece, _ in pieces]))
        return torch.stack(nats).sum() / targets.numel() / parts

    def _piece_backward(
        self, states: Tensor, targets: Tensor, share: Tensor, memory: Tensor
    ) -> Tensor:
        with self._autocast():
            logits = self.model.logits(states.requires_grad_())
        nats, gradient = nats_and_gradient(logits, targets, share, memory[: len(targets)])
        logits.backward(gradient.to(logits.dtype))
        return nats

    def _states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the head reads, [tokens, width], and the token that follows each."""
        batch = moved(batch, self.device)
        with self._autocast():
            return self.model.states(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()

    def _pieces(self, states: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        logits = len(targets) * self.model.vocab_size * self.side_by_side
        count = min(len(targets), -(-logits // LOGITS))
        pieces = states.tensor_split(count), targets.tensor_split(count)
        return list(zip(*pieces, strict=True))

    def _nats(self, states: Tensor, targets: Tensor) -> Tensor:
        with self._autocast():
            logits = self.model.logits(states)
        return F.cross_entropy(logits.to(self._dtype(logits)), targets, reduction="sum")

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bf16)

    @staticmethod
    def _dtype(tensor: Tensor) -> torch.dtype:
        return torch.promote_types(tensor.dtype, torch.float32)


@torch.no_grad()
def nats_and_gradient(
    logits: Tensor, targets: Tensor, share: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """F.cross_entropy, summed, of [tokens, vocabulary]; and in `memory`, of the logits' shape, the
    gradient of `share` of it: (softmax(logits) - one_hot(targets)) * share.

    Autograd would fill three such memories: log-probabilities, their gradient, and the logits'.
    """
    log_probabilities = torch.log_softmax(logits, -1, dtype=memory.dtype, out=memory)
    nats = F.nll_loss(log_probabilities, targets, reduction="sum")
    gradient = log_probabilities.exp_().mul_(share)
    column = targets[:, None]
    return nats, gradient.scatter_add_(1, column, -share.expand(column.shape))


def moved(batch: Batch, device: str) -> Batch:
    """From memory that does not page, or a GPU would be waited for before each copy."""
    batch = batch.pin_memory() if device == "cuda" else batch
    return batch.to(device, non_blocking=True)
