"""Tokens as batches. The tokens of a batch are a pure function of (seed, step)."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor


class Batches:
    """`batches(step)` has `context` tokens to read and the one after them, for every row.

    In each epoch the text is cut into K = (n - context) // context windows. Neighbours overlap by
    one token. The start of the first window, and the order, are drawn from (seed, epoch). Each
    window comes once an epoch; a run has to remember nothing but `step`.

    `batches[row]` is one row; those of a step are step * batch_size and the rows after it. So
    torch's DataLoader(batches, batch_size, sampler=range(steps * batch_size)) gives the same.
    """

    def __init__(self, tokens: np.ndarray, context: int, batch_size: int, seed: int) -> None:
        self.tokens = tokens
        self.context = context
        self.batch_size = batch_size
        self.seed = seed
        self.windows_per_epoch = (len(tokens) - context) // context
        if self.windows_per_epoch < 1:
            raise ValueError(f"{len(tokens)} tokens are too few for model.context={context}")
        self._starts = lru_cache(maxsize=2)(self._draw_starts)

    def __call__(self, step: int) -> Int64[Tensor, "batch time"]:
        return self._read(np.arange(step * self.batch_size, (step + 1) * self.batch_size))

    def __getitem__(self, row: int) -> Int64[Tensor, " time"]:
        return self._read(np.array([row]))[0]

    def _read(self, samples: np.ndarray) -> Int64[Tensor, "batch time"]:
        epochs, places = np.divmod(samples, self.windows_per_epoch)
        starts = [
            self._starts(epoch)[places[epochs == epoch]] for epoch in np.unique(epochs).tolist()
        ]
        return _rows(self.tokens, np.concatenate(starts), self.context)

    def _draw_starts(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng((self.seed, epoch))
        offset = generator.integers(self.context)
        return offset + self.context * generator.permutation(self.windows_per_epoch)


def windows(
    tokens: np.ndarray, context: int, limit: int, batch_size: int
) -> Iterator[Int64[Tensor, "batch time"]]:
    """Windows that predict tokens 1 .. min(limit, n - 1), in order, each exactly once.

    The last window may be shorter, and is then a batch alone.
    """
    predicted = _predicted(tokens, limit)
    full, rest = divmod(predicted, context)
    for first in range(0, full, batch_size):
        starts = np.arange(first, min(first + batch_size, full)) * context
        yield _rows(tokens, starts, context)
    if rest:
        yield _rows(tokens, np.array([full * context]), rest)


def held_out_bytes(tokens: np.ndarray, limit: int, byte_lengths: np.ndarray) -> int:
    """UTF-8 bytes of the tokens that `windows` predicts, the denominator of bits per byte."""
    return int(byte_lengths[tokens[1 : _predicted(tokens, limit) + 1]].sum())


def _predicted(tokens: np.ndarray, limit: int) -> int:
    return max(min(limit, len(tokens) - 1), 0)


def _rows(tokens: np.ndarray, starts: np.ndarray, context: int) -> Int64[Tensor, "batch time"]:
    return torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64))
