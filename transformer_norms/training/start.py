"""Measures an untrained model: three numbers that say whether two variants start comparably."""

import torch
from torch import Tensor

from transformer_norms.model.transformer import Transformer
from transformer_norms.training.measures import Place, Start, key_of, place_of
from transformer_norms.training.probes import round_digits, watch

SEQUENCES, TOKENS, POSITIONS = 2, 256, 64  # what is measured at most, the logits at some positions


@torch.no_grad()
def measure_start(model: Transformer, tokens: Tensor | None = None) -> Start:
    """Measures the model as it is, without dropout, on the first tokens of `tokens` [batch, time],
    or on random ones. Nothing is drawn from torch's generators, and the model is left as it was."""
    if tokens is None:
        generator = torch.Generator().manual_seed(0)
        shape = SEQUENCES, min(TOKENS, model.context)
        tokens = torch.randint(model.vocab_size, shape, generator=generator)
    tokens = tokens[:SEQUENCES, : min(TOKENS, model.context)]
    tokens = tokens.to(model.embedding.weight.device)
    training = model.training
    model.eval()
    with watch(model) as readings:
        states = model.states(tokens)
        at = torch.linspace(0, tokens.shape[1] - 1, POSITIONS).round().long().unique()
        logits = model.logits(states[:, at.to(states.device)]).double()
    model.train(training)
    stream = readings[key_of(Place("stream_rms", "embedding", None))]
    branches = [
        reading
        for key, reading in readings.items()
        if (place := place_of(key)) and place.measure == "branch_over_stream"
    ]
    numbers = stream, torch.stack(branches).mean(), logits.std(-1, correction=0).mean()
    return Start(*(round_digits(number.item()) for number in numbers))
