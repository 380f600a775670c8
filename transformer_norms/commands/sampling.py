"""Text from a trained run, token by token."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float, Int
from pydantic import Field

from transformer_norms.errors import InputError
from transformer_norms.kinds import Integer, Number, node
from transformer_norms.model.transformer import Transformer
from transformer_norms.run.loading import load, tokenizer
from transformer_norms.validation import check


@node
class Options:
    """The options of `generate`. A temperature of 0 takes the likeliest token; a top_k of 0, and a
    top_p of 1, keep all tokens."""

    tokens: Annotated[Integer, Field(ge=1)]
    temperature: Annotated[Number, Field(ge=0, le=100)] = 0.8
    top_k: Annotated[Integer, Field(ge=0)] = 0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    seed: Annotated[Integer, Field(ge=0, lt=2**32)] = 0  # torch reads 32 bits of a seed


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: Int[torch.Tensor, "time"],  # noqa: F821 (a shape)
    tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[int]:
    """Yields `tokens` further ids, drawn from softmax(logits / temperature); the likeliest at 0.

    `top_k` and `top_p` narrow the choice (`narrow`). Keys and values of the ids read so far are
    kept. When the context is full, its later half is read again and generation goes on from there.
    """
    generator = torch.Generator().manual_seed(seed)
    seen = prompt[-model.context :].tolist()
    cache, unread = model.new_cache(), seen
    for _ in range(tokens):
        if cache[0].length + len(unread) > model.context:
            cache, unread = model.new_cache(), seen[-(model.context // 2) or -1 :]
        logits = model(torch.tensor([unread]), cache=cache)[0, -1].double()
        if not logits.isfinite().all():
            raise InputError("the model gives logits that are not finite: its run has diverged")
        if temperature == 0:
            chosen = int(logits.argmax())
        else:
            # The largest becomes 0, which is finite over every temperature.
            weights = narrow((logits - logits.max()) / temperature, top_k, top_p).softmax(-1)
            chosen = int(torch.multinomial(weights, 1, generator=generator))
        seen = [*seen, chosen][-model.context :]
        unread = [chosen]
        yield chosen


def narrow(
    logits: Float[torch.Tensor, "vocab"],  # noqa: F821 (a shape)
    top_k: int = 0,
    top_p: float = 1.0,
) -> Float[torch.Tensor, "vocab"]:  # noqa: F821
    """Returns the logits with -inf at each token that may not be drawn.

    First the `top_k` likeliest tokens stay, and those as likely as the last of them; 0 keeps all.
    Of these stay the likeliest whose probabilities first sum to `top_p`: a token goes if those
    likelier than it sum to `top_p` already (nucleus sampling, Holtzman et al. 2020,
    arXiv:1904.09751). The likeliest token always stays.
    """
    if 0 < top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -math.inf)
    if top_p < 1:
        falling, order = logits.sort(descending=True)
        weights = falling.softmax(-1)
        goes = weights.cumsum(-1) - weights >= top_p
        logits = logits.scatter(0, order, falling.masked_fill(goes, -math.inf))
    return logits


def sample(
    folder: str | Path, prompt: str, tokens: int = 200, plugins: str = "none", **options: float
) -> str:
    """Returns the prompt and its continuation, up to the end of a document, from a run folder.
    `options` are those of `generate`. Raises ConfigError for one out of its range."""
    checked = check("", {"tokens": tokens, **options}, Options)
    words = tokenizer(folder)
    start = words.encode(prompt).tolist()
    if not start:
        start = [words.end] if words.end is not None else words.encode("\n").tolist()[:1] or [0]
    model = load(folder, plugins)
    ids = list(start) if prompt else []
    for chosen in generate(model, torch.tensor(start), **checked):
        if chosen == words.end:
            break
        ids.append(chosen)
    return words.decode(ids)
