"""What is known of a text before any model: the losses of the two simplest ones, and leaks."""

import math
from collections.abc import Iterable

import numpy as np


def uniform_entropy(vocab_size: int) -> float:
    """ln V: nats per token of a model that knows nothing."""
    return math.log(vocab_size)


def unigram_entropy(train: np.ndarray, val: np.ndarray, vocab_size: int) -> float:
    """-sum_t q(t) ln p(t), p(t) = (count in train + 1) / (n + V), q the frequencies in val.

    Nats per token of val for a model that knows how often each token occurs, and nothing else.
    """
    counts = np.bincount(train, minlength=vocab_size) + 1.0
    held_out = np.bincount(val, minlength=vocab_size)
    return float(-(held_out @ np.log(counts / counts.sum())) / max(held_out.sum(), 1))


def repeated_share(train: Iterable[str], val: list[str]) -> float:
    """The share of val's documents that also stand in train, but for case and white space."""
    known = {_normalized(text) for text in val}
    shared = known & {_normalized(text) for text in train}
    return sum(_normalized(text) in shared for text in val) / max(len(val), 1)


def _normalized(text: str) -> int:
    # 64 bits of Python's own hash: for counting, in this process alone.
    return hash(" ".join(text.split()).casefold())
