"""What is measured: one batch forward and backward, in float64, through models as they start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.config.building import build_model
from transformer_norms.progress import Tell, each, untold
from transformer_norms.training.loss import CrossEntropy, ModelLoss

VOCABULARY = 64
SEQUENCES = 4  # of a model's context, and one token more


@dataclass(frozen=True)
class Row:
    """One block of one model. `down` and `output` are the Frobenius norms of the gradients of the
    matrices by which mlp and attention write to the stream, in nats per token; `square` is the mean
    square of the stream after the block: of x, where there are two streams x and r."""

    variant: str
    depth: int
    seed: int
    block: int  # from 1
    down: float
    output: float
    square: float


def measured(variants: Mapping[str, Sequence[Mapping[str, Any]]], tell: Tell = untold) -> list[Row]:
    """A row for each block of each model: `variants` are composed configs by a name, one for each
    depth and seed. The tokens are drawn by a config's seed, uniform, and so is its dropout."""
    models = [(name, config) for name, configs in variants.items() for config in configs]
    told = each(tell, "measuring models {:.0f}/{:.0f}", models)
    return [row for name, config in told for row in _rows(name, config)]


def _rows(name: str, config: Mapping[str, Any]) -> list[Row]:
    model, seed = build_model(config, VOCABULARY).double(), config["seed"]
    squares: list[float] = []

    def through(block: nn.Module, *given: Any) -> Any:
        streams = block(*given)
        x = streams[0] if isinstance(streams, tuple) else streams
        squares.append(x.detach().square().mean().item())
        return streams

    model.through = through
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loss = ModelLoss(model, CrossEntropy(), device="cpu", precision="fp64")(tokens(config))
    blocks: list[Any] = list(model.blocks)
    weights = [(block.mlp.f.down.weight, block.attention.f.output.weight) for block in blocks]
    gradients = torch.autograd.grad(loss, [weight for pair in weights for weight in pair])
    norms = [gradient.norm().item() for gradient in gradients]
    found = zip(norms[::2], norms[1::2], squares, strict=True)
    depth = config["model"]["depth"]
    return [Row(name, depth, seed, block, *numbers) for block, numbers in enumerate(found, start=1)]


def tokens(config: Mapping[str, Any]) -> Tensor:
    """The batch that a config's model sees, [SEQUENCES, context + 1]."""
    shape = (SEQUENCES, config["model"]["context"] + 1)
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(config["seed"]))
