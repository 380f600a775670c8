"""The loss by position on windows that are longer than the trained ones, and on another text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from transformer_norms.analysis.trained.subjects import Loaded
from transformer_norms.data.batches import windows
from transformer_norms.model.transformer import Transformer
from transformer_norms.training.loss import LOGITS

MULTIPLES = (1, 2, 4)  # of a window's tokens
BINS = 8  # of positions, in a window of the usual length


@dataclass(frozen=True)
class Positions:
    """The loss of each predicted token, in the order of the text, on windows of `multiple` times
    `context` tokens. Positions in a window are counted from 0.

    Two positions of a window have other tokens, so their losses differ by the text. What compares
    is a token in long windows and the same token in windows of the usual length.
    """

    context: int
    multiple: int
    nats: np.ndarray

    def tokens_at(self, first: int, end: int | None = None) -> np.ndarray:
        """Which tokens stand at the positions from `first` until before `end`: a mask."""
        at = np.arange(len(self.nats)) % (self.multiple * self.context)
        return (at >= first) & (at < (len(self.nats) if end is None else end))

    def loss(self, tokens: np.ndarray | None = None) -> float:
        """The mean loss of the tokens of a mask, or of all."""
        return float((self.nats if tokens is None else self.nats[tokens]).mean())

    @property
    def bins(self) -> dict[tuple[int, int], np.ndarray]:
        """The tokens of each bin of positions, by the first and the last position."""
        length = max(1, self.context // BINS)
        end = min(len(self.nats), self.multiple * self.context)
        starts = range(0, end, length)
        return {(at, min(at + length, end) - 1): self.tokens_at(at, at + length) for at in starts}


def multiples(loaded: Loaded) -> dict[int, str]:
    """For each of MULTIPLES the reason why it cannot be measured, empty where it can."""
    reasons = {}
    for multiple in MULTIPLES:
        length, most = multiple * loaded.context, loaded.model.context
        reasons[multiple] = ""
        if length > most and getattr(loaded.model.position, "bounded", True):
            kind = loaded.config.choices["position"]
            reasons[multiple] = f"{kind} positions end at the context of {most} tokens"
        elif multiple > 1 and length > loaded.tokens_read:
            reasons[multiple] = f"the text that is read has {loaded.tokens_read} tokens"
    return reasons


@torch.no_grad()
def losses_by_position(
    loaded: Loaded, tokens: np.ndarray, multiple: int, tell: Callable[[int, int], None]
) -> Positions:
    """Reads each token once, in windows of `multiple` times the usual length. A batch has as many
    tokens as usual, or one window."""
    length, limit = multiple * loaded.context, loaded.config.data.val_tokens
    rows = max(1, loaded.batch_size // multiple)
    nats, done = np.empty(min(limit, len(tokens) - 1)), 0
    with allow_context(loaded.model, length):
        for batch in windows(tokens, length, limit, rows):
            tell(done, len(nats))
            own = token_losses(loaded, batch).double().flatten().cpu().numpy()
            nats[done : done + len(own)] = own
            done += len(own)
    return Positions(loaded.context, multiple, nats)


@contextmanager
def allow_context(model: Transformer, length: int) -> Iterator[None]:
    """Inside it the model reads sequences of `length` tokens."""
    before, model.context = model.context, max(length, model.context)
    try:
        yield
    finally:
        model.context = before


def token_losses(
    loaded: Loaded, batch: Int64[Tensor, "batch time_and_one"]
) -> Float[Tensor, "batch time"]:
    """The cross-entropy of each token in nats, with LOGITS logits at a time."""
    model, batch = loaded.model, batch.to(loaded.device)
    with torch.autocast(loaded.device, torch.bfloat16, enabled=loaded.precision == "bf16"):
        states, targets = model.states(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
        at_once, nats = max(1, LOGITS // model.vocab_size), []
        for piece, own in zip(states.split(at_once), targets.split(at_once), strict=True):
            logits = model.logits(piece)
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            nats.append(F.cross_entropy(wide, own, reduction="none"))
    return torch.cat(nats).view(len(batch), -1)
