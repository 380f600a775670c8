"""Small models as the analyses of trained models get them, and their streams put together here."""

from pathlib import Path

import numpy as np
import torch
from combinations import combined
from small_studies import lively

from transformer_norms.analysis.trained.subjects import Loaded

WIDTH, DEPTH, CONTEXT, VOCAB = 12, 3, 6, 17
SIZES = f"model=nano model.width={WIDTH} model.heads=2 model.depth={DEPTH} model.context={CONTEXT}"


@torch.no_grad()
def model_and_text(*typed, **words):
    """A model in float64 whose gains and biases are not ones and zeros, and 20 tokens."""
    more = ["trainer.precision=fp64", "trainer.device=cpu", "data.val_tokens=100"]
    more += ["trainer.batch_size=2"]
    config = combined(*SIZES.split(), *more, *typed, **words)
    model = lively(config, VOCAB, 0.2)
    tokens = np.random.default_rng(2).integers(VOCAB, size=20).astype(np.uint16)
    return Loaded(Path("nowhere"), model.eval(), config, config, tokens, CONTEXT, "fp64")


@torch.no_grad()
def streams_by_hand(loaded, tokens, without=None):
    """The stream at each boundary [time, width] of one sequence, and its summed loss; `without` is
    the block that is left out. Of two streams, both."""
    model = loaded.model
    x0 = model.embed(model.scale(model.embedding.weight[tokens[None, :-1]]))
    if hasattr(model.position, "position"):
        x0 = x0 + model.position.position.weight[: len(tokens) - 1]
    x, angles = model.enter(x0, tokens[None, :-1]), model.position.angles(0, len(tokens) - 1)
    found = [x0[0].numpy()]
    for i, block in enumerate(model.blocks):
        if i != without:
            x = block(x, x0, angles, None)
            found.append([s[0].numpy() for s in x] if isinstance(x, tuple) else x[0].numpy())
    logits = model.logits(model.final(x))[0]
    chosen = logits.log_softmax(-1)[torch.arange(len(tokens) - 1), tokens[1:]]
    return found, -chosen.sum().item()


def sequences(loaded):
    """The sequences of the text: windows of CONTEXT tokens and one more, the last one shorter."""
    tokens = torch.from_numpy(loaded.tokens.astype(np.int64))
    return [tokens[at : at + CONTEXT + 1] for at in range(0, len(tokens) - 1, CONTEXT)]
