"""Computes a loss and its gradient piece by piece: the logits of a batch are never all in memory.

The loss that a run trains on is chosen by name (`loss=cross_entropy`). Reported and compared is the
cross-entropy in nats, for every loss.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from transformer_norms.model.transformer import Transformer
from transformer_norms.names import Registry
from transformer_norms.training.graphs.compiling import Compilation

LOSSES = Registry("loss")
Batch = Int[Tensor, "batch time"]  # one token more than the model reads: inputs and targets overlap
Logits = Float[Tensor, "tokens vocab"]
Targets = Int[Tensor, " tokens"]
Criterion = Callable[[Logits, Targets], Tensor]
# The most logits at a time on a CPU, 128 MiB in float32: with a large vocabulary, those of a whole
# batch take more memory than all the rest. On a GPU, where small products are slow, they may take
# this share of its memory.
LOGITS, SHARE = 1 << 25, 1 / 16
# On a GPU the head's rows are filled up to a multiple of this: products with an odd vocabulary have
# no fast kernel there.
ALIGNED = {"cpu": 1, "cuda": 64, "mps": 1}


@LOSSES("cross_entropy")
class CrossEntropy:
    """-log softmax(logits)[target]

    Any class can be registered whose instances give the loss of a piece of a batch, summed over its
    tokens and differentiable, in the dtype of the logits. Its settings are its constructor's
    arguments. Replicas share an instance, so it keeps no state. `gradient` is optional.
    """

    def __call__(self, logits: Logits, targets: Targets) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="sum")

    @torch.no_grad()
    def gradient(
        self, logits: Logits, targets: Targets, share: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the sum of the loss, the sum of the cross-entropy (here the same), and in
        `memory`, which has the logits' shape, the gradient of `share` times the loss:
        (softmax(logits) - one_hot(targets)) * share.

        Autograd would fill three such memories: log-probabilities, their gradient, and the logits'.
        """
        log_probabilities = torch.log_softmax(logits, -1, dtype=memory.dtype, out=memory)
        nats = F.nll_loss(log_probabilities, targets, reduction="sum")
        gradient = log_probabilities.exp_().mul_(share)
        column = targets[:, None]
        return nats, nats, gradient.scatter_add_(1, column, -share.expand(column.shape))


class ModelLoss:
    """The loss of `model` per token, in float32 at least; `precision=bf16` runs the model under
    autocast. The gradient is that of `criterion`, one of LOSSES.

    Calling it gives the cross-entropy; `backward` uses `criterion`. A batch is cut into as few
    pieces as have LOGITS logits at most, whose lengths differ by one token at most. Where replicas
    compute at the same time, the pieces of each are smaller by the number of replicas.

    `compilation` compiles the head with the loss of a piece, and what comes before the head. Its
    graphs are those of micro-batches of `rows` sequences.
    """

    # Whether the bf16 copy of a weight stays until the forward pass ends: all of them together are
    # half the weights, which a rank with a shard of them has no room for.
    keeps_casts = True

    def __init__(
        self,
        model: Transformer,
        criterion: Criterion,
        *,
        device: str,
        precision: str,
        compilation: Compilation | None = None,
        rows: int = 0,
    ) -> None:
        self.model, self.criterion, self.device = model, criterion, device
        self.gradient = getattr(criterion, "gradient", None)
        self.bf16, self.side_by_side = precision == "bf16", 1
        self.compilation, self.shape = compilation or Compilation(), (rows, model.context + 1)
        self.head = self.compilation(_head_losses, "the head", "block", "whole")
        self.body = self.compilation(_states, "what comes before the head", "whole")

    def __call__(self, batch: Batch) -> Tensor:
        """Returns the mean cross-entropy over tokens."""
        return self.sum(batch) / batch[:, 1:].numel()

    def sum(self, batch: Batch) -> Tensor:
        """Returns the sum of the cross-entropy over tokens. A batch of another shape than those
        that are trained on is computed without graphs, so that nothing is compiled for it."""
        eager = self.compilation.active and batch.shape != self.shape
        with torch.compiler.set_stance("force_eager") if eager else nullcontext():
            pieces = self._pieces(*self._states(batch))
            return torch.stack([self._nats(*piece) for piece in pieces]).sum()

    def backward(self, batch: Batch, parts: int) -> Float[Tensor, " 2"]:
        """Adds the gradients of the mean loss over tokens, divided by the number of `parts`.
        Returns that loss and the cross-entropy, likewise divided.

        Each piece's logits are gone before the next piece's are computed, whose gradient takes its
        memory. The joined gradients of all states then go down through the model.
        """
        states, targets = self._states(batch)
        pieces = self._pieces(states.detach(), targets)
        share = states.new_ones((), dtype=self._dtype(states)) / parts / targets.numel()
        # One memory for all pieces, of which the first is the longest: fresh allocations cost more
        # than the arithmetic.
        longest = 0 if self.gradient is None else len(pieces[0][1])
        memory = share.new_empty(longest, self.model.vocab_size)
        sums = [self._piece_backward(*piece, share, memory) for piece in pieces]
        del memory
        states.backward(torch.cat([cast(Tensor, piece.grad) for piece, _ in pieces]))
        return torch.stack(
            [torch.stack(each).sum() / targets.numel() / parts for each in zip(*sums, strict=True)]
        )

    def _piece_backward(
        self, states: Tensor, targets: Tensor, share: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the summed loss and the summed cross-entropy of a piece."""
        states.requires_grad_()
        if self.gradient is None or self.compilation.active:
            loss, nats = self.head(self, states, targets)
            (loss * share).backward()
            return loss.detach(), nats
        logits = self._logits(states)
        loss, nats, gradient = self.gradient(logits, targets, share, memory[: len(targets)])
        logits.backward(gradient.to(logits.dtype))
        return loss, nats

    def _states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns what the head reads, [tokens, width], and the token that follows each."""
        batch = move_batch(batch, self.device)
        if self.compilation.mode == "whole":
            self.model.prepare(batch.shape[1] - 1, batch.device)
        with self._autocast():
            return self.body(self.model, batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()

    def _pieces(self, states: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        logits = len(targets) * self.model.vocab_size * self.side_by_side
        count = min(len(targets), -(-logits // most_logits(self.device)))
        while self.compilation.active and len(targets) % count:  # one shape, and so one graph
            count += 1
        pieces = states.tensor_split(count), targets.tensor_split(count)
        return list(zip(*pieces, strict=True))

    def _nats(self, states: Tensor, targets: Tensor) -> Tensor:
        if self.compilation.active:  # the graph of a training step is compiled already
            return self.head(self, states.detach().requires_grad_(), targets)[1]
        logits = self._logits(states)
        return F.cross_entropy(logits.to(self._dtype(logits)), targets, reduction="sum")

    def _logits(self, states: Tensor) -> Logits:
        with self._autocast():
            return self.model.logits(states, ALIGNED[self.device])

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device, torch.bfloat16, enabled=self.bf16, cache_enabled=self.keeps_casts
        )

    @staticmethod
    def _dtype(tensor: Tensor) -> torch.dtype:
        return torch.promote_types(tensor.dtype, torch.float32)


def _states(model: Transformer, tokens: Tensor) -> Tensor:
    return model.states(tokens)


def _head_losses(loss: ModelLoss, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the summed loss and the summed cross-entropy of a piece."""
    logits = loss._logits(states)
    wide = logits.to(loss._dtype(logits))
    nats = F.cross_entropy(wide.detach(), targets, reduction="sum")
    return loss.criterion(wide, targets), nats


def most_logits(device: str) -> int:
    """Returns how many logits a piece of a batch has at most."""
    if device != "cuda":
        return LOGITS
    return int(SHARE * torch.cuda.get_device_properties(device).total_memory) // 4


def move_batch(batch: Batch, device: str) -> Batch:
    """Copies from locked memory: else each copy would wait for the GPU."""
    return page_lock(batch, device).to(device, non_blocking=device == "cuda")


def page_lock(batch: Batch, device: str) -> Batch:
    """Returns the batch in memory from which a GPU reads while the processor works."""
    return batch.pin_memory() if device == "cuda" and not batch.is_cuda else batch
