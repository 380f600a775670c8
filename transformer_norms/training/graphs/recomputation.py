"""Activation checkpointing: less memory for more time.

Chen et al. 2016, arXiv:1604.06174.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from transformer_norms.model.transformer import straight


def recompute(block: nn.Module, *given: Any, run: Callable[..., Any] = straight) -> Any:
    """Returns run(block, *given), and keeps only what is given for the backward pass, which runs
    the block again with the same dropout: no digit of a gradient changes."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _restored_buffers(block)

    return checkpoint(run, block, *given, use_reentrant=False, context_fn=contexts)


@contextmanager
def _restored_buffers(block: nn.Module) -> Iterator[None]:
    """Leaves running averages where the first pass left them."""
    before = [buffer.clone() for buffer in block.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(block.buffers(), before, strict=True):
                buffer.copy_(value)
