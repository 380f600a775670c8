"""Whether a model looks ahead: asked of the model itself, before it is trained."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from transformer_norms.model import Transformer

TOKENS = 12
ROUNDING = 1e-3  # a leak is of the order of 1
STIR = 1.0  # standard deviation of what is added to gains, biases, gates, and matrices of zeros


def leaks(model: Transformer, vocab_size: int) -> list[str]:
    """What is to be said of a model that looks ahead."""
    moved = leak(model, vocab_size)
    if moved < ROUNDING:
        return []
    return [
        "the model looks ahead: in training, later tokens move earlier logits by "
        f"{moved:.2g} standard deviations; its loss is no language model's"
    ]


@torch.no_grad()
def leak(model: Transformer, vocab_size: int) -> float:
    """How far later tokens, or other rows of the batch, move earlier logits in training mode, in
    standard deviations of the logits: 0 for a causal model in float64, rounding in float32.

    One text, once for each of its places, changed there and behind. What dropout draws is the same
    both times. A norm that takes statistics over a batch shows here what it hides in eval.
    """
    time = min(TOKENS, model.context)
    if time == 1:
        return 0.0
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (1, time), generator=generator).expand(time, time)
    later = torch.ones(time, time, dtype=torch.bool).triu()  # row t: token t and those behind
    changed = torch.where(later, (tokens + 1) % vocab_size, tokens)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with stirred(model):
        logits, moved = (_drawn_alike(model, of) for of in (tokens, changed))
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    distance = (moved - logits)[~later].abs().max()
    return (distance / logits.std().clamp_min(1e-12)).item()


@contextmanager
def stirred(model: Transformer) -> Iterator[None]:
    """The model with noise in every vector, and in every matrix that is all zero: a block that an
    initialization has switched off would hide what it does. Afterwards it is as it was."""
    generator = torch.Generator().manual_seed(0)
    kept = [(p, p.detach().clone()) for p in model.parameters() if p.dim() < 2 or not p.any()]
    try:
        for parameter, value in kept:
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            parameter.data += STIR * noise.to(value.device)
        yield
    finally:
        for parameter, value in kept:
            parameter.data.copy_(value)


def _drawn_alike(model: Transformer, tokens: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model(tokens.to(next(model.parameters()).device)).cpu()
