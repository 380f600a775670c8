"""The cross-entropy of a model's tokens. Its logits live a piece at a time."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from transformer_norms.model import Transformer

Batch = Int[Tensor, "batch time"]  # one token more than the model reads: inputs and targets overlap
# At a time, 128 MiB in float32: of a large vocabulary, a batch's take more than all the rest.
LOGITS = 1 << 25


class CrossEntropy:
    """Nats per token of `model`, in float32 at least; `precision=bf16` runs it under autocast.

    Pieces are equal to a token, and as few as have LOGITS logits: all of a small vocabulary is one.
    Of several that are computed side by side, they are smaller by as much.
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

        Each piece's logits and gradients are gone before the next piece's are computed; what they
        add up to for the states then goes down the model.
        """
        states, targets = self._states(batch)
        total, gradients = states.new_zeros((), dtype=self._dtype(states)), list[Any]()
        for piece, wanted in self._pieces(states.detach(), targets):
            share = self._nats(piece.requires_grad_(), wanted) / targets.numel() / parts
            share.backward()
            total += share.detach()
            gradients.append(piece.grad)
        states.backward(torch.cat(gradients))
        return total

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


def moved(batch: Batch, device: str) -> Batch:
    """From memory that does not page, or a GPU would be waited for before each copy."""
    batch = batch.pin_memory() if device == "cuda" else batch
    return batch.to(device, non_blocking=True)
