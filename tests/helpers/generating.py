"""Logits as a model computes them while it generates: piece by piece, from a cache."""

import torch


def from_a_cache(model, tokens, pieces):
    """Returns the logits of pieces of so many tokens, side by side, and the cache."""
    cache = model.new_cache()
    return torch.cat([model(piece, cache=cache) for piece in tokens.split(pieces, 1)], 1), cache
