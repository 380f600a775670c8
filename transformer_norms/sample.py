"""python -m transformer_norms.sample FOLDER --prompt TEXT      text from a trained run"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Int

from transformer_norms.cli import Parser, run_command
from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.run.loading import load, tokenizer


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: Int[torch.Tensor, "time"],  # noqa: F821 (a shape)
    tokens: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
) -> Iterator[int]:
    """Yields `tokens` further ids, drawn from softmax(logits / temperature); the likeliest at 0.

    Keys and values of the ids read so far are kept. When the context is full, its later half is
    read again and generation goes on from there.
    """
    generator = torch.Generator().manual_seed(seed)
    seen = prompt[-model.context :].tolist()
    cache, unread = model.new_cache(), seen
    for _ in range(tokens):
        if cache[0].length + len(unread) > model.context:
            cache, unread = model.new_cache(), seen[-(model.context // 2) or -1 :]
        logits = model(torch.tensor([unread]), cache=cache)[0, -1].double()
        if temperature == 0:
            chosen = int(logits.argmax())
        else:
            weights = (logits / temperature).softmax(-1)
            chosen = int(torch.multinomial(weights, 1, generator=generator))
        seen = [*seen, chosen][-model.context :]
        unread = [chosen]
        yield chosen


def sample(
    folder: str | Path,
    prompt: str,
    tokens: int = 200,
    *,
    temperature: float = 0.8,
    seed: int = 0,
    plugins: str = "none",
) -> str:
    """Returns the prompt and its continuation, up to the end of a document, from a run folder."""
    words = tokenizer(folder)
    start = words.encode(prompt).tolist()
    if not start:
        start = [words.end if words.end is not None else words.encode("\n")[0].item()]
    model = load(folder, plugins)
    ids = list(start) if prompt else []
    for chosen in generate(model, torch.tensor(start), tokens, temperature=temperature, seed=seed):
        if chosen == words.end:
            break
        ids.append(chosen)
    return words.decode(ids)


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m transformer_norms.sample", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="a run folder, as runs/main/...")
    parser.add_argument("--prompt", default="", help="what the text begins with")
    parser.add_argument("--tokens", type=int, default=200, help="how many to add (default 200)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plugins", default="none", help="the folder of a norm of your own")
    return run_command(partial(_print, parser, arguments))


def _print(parser: Parser, arguments: list[str] | None) -> int:
    typed = parser.parse_args(arguments)
    if typed.tokens < 1 or not 0 <= typed.temperature <= 100:
        raise ConfigError("--tokens must be at least 1 and --temperature between 0 and 100")
    options = {key: getattr(typed, key) for key in ("temperature", "seed", "plugins")}
    print(sample(typed.folder, typed.prompt, typed.tokens, **options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
