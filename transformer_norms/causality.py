"""Whether a model looks ahead: asked of the model itself, before it is trained."""

import torch
from torch import nn

from transformer_norms.model import Transformer

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

    One text, once for each of its places, changed there and behind. Dropout is off. A norm that
    takes statistics over a batch shows here what it hides in eval.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    dropouts = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.training]
    for dropout in dropouts:
        dropout.eval()
    try:
        time = min(TOKENS, model.context)
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocab_size, (1, time), generator=generator).expand(time, time)
        later = torch.ones(time, time, dtype=torch.bool).triu()  # row t: token t and those behind
        changed = torch.where(later, (tokens + 1) % vocab_size, tokens)
        device = next(model.parameters()).device
        logits = model(tokens.to(device))
        moved = (model(changed.to(device)) - logits)[~later.to(device)].abs()
        return (moved.max() / logits.std().clamp_min(1e-12)).item() if time > 1 else 0.0
    finally:
        for dropout in dropouts:
            dropout.train()
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
