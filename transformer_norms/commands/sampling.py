"""Text from a trained run, token by token."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Int

from transformer_norms.errors import ConfigError, InputError
from transformer_norms.model.transformer import Transformer
from transformer_norms.run.loading import load


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

    `prompt` is int64 [time], at least one id; `model` is in eval mode, on any device.
    `top_k` and `top_p` narrow the choice (`narrow`). Keys and values of the ids read so far are
    kept. When the context is full, its later half is read again and generation goes on from there.
    """
    check_options(tokens, temperature, top_k, top_p, seed)
    generator, device = torch.Generator().manual_seed(seed), model.embedding.weight.device
    seen = torch.as_tensor(prompt)[-model.context :].tolist()
    cache, unread = model.new_cache(), seen
    for _ in range(tokens):
        if cache[0].length + len(unread) > model.context:
            cache, unread = model.new_cache(), seen[-(model.context // 2) or -1 :]
        logits = model(torch.tensor([unread], device=device), cache=cache)[0, -1].cpu().double()
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


def check_options(tokens: int, temperature: float, top_k: int, top_p: float, seed: int) -> None:
    """Raises ConfigError for an option of sampling out of its range."""
    if tokens < 1:
        raise ConfigError(f"--tokens {tokens}: at least 1")
    if not 0 <= temperature <= 100:
        raise ConfigError(f"--temperature {temperature}: from 0 (the likeliest token) to 100")
    if top_k < 0:
        raise ConfigError(f"--top-k {top_k}: at least 1 token, or 0 for all")
    if not 0 < top_p <= 1:
        raise ConfigError(f"--top-p {top_p}: above 0, and at most 1, which keeps all tokens")
    if not 0 <= seed < 2**32:  # of a larger seed torch's generator reads the last 32 bits alone
        raise ConfigError(f"--seed {seed}: from 0 to {2**32 - 1}")


def sample(
    run: Transformer | str | Path,
    prompt: str = "",
    tokens: int = 200,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    plugins: str = "none",
    average: bool = False,
) -> str:
    """Returns the prompt and its continuation, up to the end of a document.

    `run` is a run's folder or a part of its name, as `load` takes it, or a model that `load` has
    returned. `tokens` and the options are those of `generate`, `plugins` and `average` of `load`.
    Raises ConfigError for a wrong option, for one of `load` with a loaded model, and where a model
    has no tokenizer.
    """
    check_options(tokens, temperature, top_k, top_p, seed)
    drawing = partial(generate, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if isinstance(run, Transformer) and (average or plugins != "none"):
        raise ConfigError("average and plugins: are of load; name a run, in place of a model")
    model = run if isinstance(run, Transformer) else load(run, plugins, average)
    if (words := model.tokenizer) is None:
        raise ConfigError("the model has no tokenizer; a model that `load` returned has one")
    start = words.encode(prompt).tolist()
    if not start:
        start = [words.end] if words.end is not None else words.encode("\n").tolist()[:1] or [0]
    ids = list(start) if prompt else []
    for chosen in drawing(model, torch.tensor(start), tokens):
        if chosen == words.end:
            break
        ids.append(chosen)
    return words.decode(ids)
