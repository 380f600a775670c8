"""Whether a model looks ahead: asked of the model itself, before it is trained."""

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_norms.model.transformer import Transformer

TOKENS = 12
ROUNDING = 1e-3  # a leak is of the order of 1


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
    both times. A norm that takes statistics over a batch shows here what it hides in eval, and
    noise (`stirred`) what a block hides that begins as nothing.
    """
    time = min(TOKENS, model.context)
    if time == 1:
        return 0.0
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (1, time), generator=generator).expand(time, time)
    later = torch.ones(time, time, dtype=torch.bool).triu()  # row t: token t and those behind
    changed = torch.where(later, (tokens + 1) % vocab_size, tokens)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    logits, moved = stirred(
        model, lambda: (_drawn_alike(model, tokens), _drawn_alike(model, changed))
    )
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    distance = (moved - logits)[~later].abs().max()
    return (distance / logits.std().clamp_min(1e-12)).item()


def stirred(model: Transformer, logits: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    """`logits()` of the model with noise in every vector, and in every matrix that is all zero: a
    block that an initialization has switched off would hide what it does. Of the model as it is
    where those are not finite. Afterwards it is as it was."""
    generator = torch.Generator().manual_seed(0)
    kept = [(p, p.detach().clone()) for p in model.parameters() if p.dim() < 2 or not p.any()]
    try:
        for parameter, value in kept:
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            fan_in = value.shape[-1] if value.dim() > 1 else 1
            parameter.data += noise.to(value.device) / fan_in**0.5
        found = logits()
    finally:
        for parameter, value in kept:
            parameter.data.copy_(value)
    return found if all(tensor.isfinite().all() for tensor in found) else logits()


def _drawn_alike(model: Transformer, tokens: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model(tokens.to(next(model.parameters()).device)).cpu()
