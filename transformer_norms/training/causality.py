"""Whether a model looks ahead, measured on the model itself before it is trained."""

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_norms.model.transformer import Transformer
from transformer_norms.training.tensors import cut, whole

TOKENS = 12
ROUNDING = 1e-3  # in a model that looks ahead, the distance is of the order of 1


def lookahead_warnings(model: Transformer, vocab_size: int) -> list[str]:
    """Returns the warning that a run's record holds where the model looks ahead."""
    distance = lookahead(model, vocab_size)
    if distance < ROUNDING:
        return []
    return [
        "the model looks ahead: in training, later tokens move earlier logits by "
        f"{distance:.2g} standard deviations; its loss is no language model's"
    ]


@torch.no_grad()
def lookahead(model: Transformer, vocab_size: int) -> float:
    """Returns how far later tokens, or other rows of the batch, move earlier logits in training
    mode, in standard deviations of the logits: 0 for a causal model in float64, rounding in
    float32.

    The batch holds one text once for each of its places, changed there and behind. Dropout draws
    the same numbers both times. A norm that takes statistics over a batch shows here what it hides
    in evaluation, and noise (`logits_under_noise`) shows what a block hides that begins as nothing.
    """
    time = min(TOKENS, model.context)
    if time == 1:
        return 0.0
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (1, time), generator=generator).expand(time, time)
    later = torch.ones(time, time, dtype=torch.bool).triu()  # row t: token t and those behind
    changed = torch.where(later, (tokens + 1) % vocab_size, tokens)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    logits, logits_of_changed = logits_under_noise(
        model, lambda: (_seeded_logits(model, tokens), _seeded_logits(model, changed))
    )
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    distance = (logits_of_changed - logits)[~later].abs().max()
    return (distance / logits.std().clamp_min(1e-12)).item()


def logits_under_noise(
    model: Transformer, logits: Callable[[], tuple[Tensor, Tensor]]
) -> tuple[Tensor, ...]:
    """Returns `logits()` of the model with noise in every vector, and in every matrix that is all
    zero: a block that an initialization has switched off would hide what it does. Where those
    logits are not finite, returns those of the model without noise. Afterwards the model is as it
    was."""
    generator = torch.Generator().manual_seed(0)
    switched_off = (p for p in model.parameters() if p.dim() < 2 or not whole(p.any()))
    kept = [(p, p.detach().clone()) for p in switched_off]
    try:
        for parameter, value in kept:
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            fan_in = value.shape[-1] if value.dim() > 1 else 1
            parameter.data += cut(noise.to(value.device) / fan_in**0.5, parameter)
        under_noise = logits()
    finally:
        for parameter, value in kept:
            parameter.data.copy_(value)
    return under_noise if all(tensor.isfinite().all() for tensor in under_noise) else logits()


def _seeded_logits(model: Transformer, tokens: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        logits: Tensor = model(tokens.to(next(model.parameters()).device))
    return logits.cpu()
