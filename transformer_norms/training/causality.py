"""Whether a model looks ahead or reads several rows of a batch, measured before it trains."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import PLUGIN
from transformer_norms.training.tensors import shard_like, sharded, whole

TOKENS = 12
# The distance of two outputs that differ by rounding, in standard deviations of the logits. Where a
# model looks ahead it is about 1. The second is for other rows, which replicas and ranks divide.
ROUNDING, ROUNDING_OF_ROWS = 1e-3, 1e-5


def pass_warnings(model: Transformer, vocab_size: int) -> list[str]:
    """Returns the warning of a model that looks ahead. Raises ConfigError where a plugin's module
    holds a tensor that nothing trains, or returns another shape."""
    own = [m for m in model.modules() if type(m).__module__.startswith(PLUGIN)]
    if own and not sharded(model.embedding.weight):
        _check_modules(model, own)
    distance = lookahead(model, vocab_size)
    if not distance >= ROUNDING:  # NaN is not: that model diverges
        return []
    return [
        "the model looks ahead or keeps state: in training, later tokens move earlier logits by "
        f"{distance:.2g} standard deviations; its loss is not a language model's"
    ]


def _check_modules(model: Any, own: Sequence[nn.Module]) -> None:
    """Raises ConfigError where a plugin's module has a tensor that is not a parameter, or where an
    attention or an mlp returns another shape."""
    known = set(model.parameters())
    for module, (name, value) in ((m, item) for m in own for item in vars(m).items()):
        for leaf in tree_leaves(value):
            tensors = leaf.parameters() if isinstance(leaf, nn.Module) else [leaf]
            if any(getattr(t, "requires_grad", False) and t not in known for t in tensors):
                raise ConfigError(
                    f"{type(module).__name__}.{name} requires a gradient, and nothing trains it: "
                    "write nn.Parameter(...), or nn.ParameterList or nn.ModuleList of several"
                )

    def check_shape(last: int, layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        wanted = [*given[0].shape[:-1], given[last].shape[-1]]
        if (shape := list(getattr(output, "shape", [type(output)]))) != wanted:
            raise ConfigError(f"{type(layer).__name__} returns {shape}; wanted is {wanted}")

    layers = [pair for b in model.blocks for pair in ((2, b.attention.f.attend), (0, b.mlp.f))]
    hooks = [m.register_forward_hook(partial(check_shape, last)) for last, m in layers]
    shape, generator = (2, min(TOKENS, model.context)), torch.Generator().manual_seed(0)
    seeded_pass(model, torch.randint(model.vocab_size, shape, generator=generator))
    for hook in hooks:
        hook.remove()


@torch.no_grad()
def lookahead(model: Transformer, vocab_size: int) -> float:
    """Returns how far later tokens, or other rows of the batch, move earlier logits: 0 for a causal
    model in float64, rounding in float32.

    The batch holds one text once for each of its places, changed from there on by one id. A
    norm that takes statistics over a batch shows here what it hides in evaluation.
    """
    time = min(TOKENS, model.context)
    if time == 1:
        return 0.0
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (1, time), generator=generator).expand(time, time)
    later = torch.ones(time, time, dtype=torch.bool).triu()  # row t: token t and those after it
    changed = torch.where(later, (tokens + 1) % vocab_size, tokens)
    return compare_passes(model, tokens, changed, ~later).distance


class LogitDistance(NamedTuple):
    """How far the logits of two batches are apart, in standard deviations, whether a pass of the
    model draws numbers (dropout), and whether it changes a buffer (running averages)."""

    distance: float
    drawn: bool
    counted: bool

    @property
    def rows_are_independent(self) -> bool:
        return self.distance < ROUNDING_OF_ROWS


def compare_passes(model: Transformer, one: Tensor, other: Tensor, kept: Tensor) -> LogitDistance:
    """Compares the logits of two batches in training mode, at the places of the mask `kept`.
    Dropout and buffers are the same both times, and noise shows what a block hides that begins as
    nothing. Where logits under noise are not finite, those of the model without noise count. The
    model and torch's generators are left as they were."""

    def both_passes() -> list[tuple[Tensor, bool, bool]]:
        return [seeded_pass(model, tokens) for tokens in (one, other)]

    with noise_in(model):
        passes = both_passes()
    if not all(logits.isfinite().all() for logits, _, _ in passes):
        passes = both_passes()
    (logits, logits_of_other), drawn, counted = zip(*passes, strict=True)
    distance = (logits_of_other - logits)[kept].abs().max() / logits.std().clamp_min(1e-12)
    return LogitDistance(distance.item(), any(drawn), any(counted))


@torch.no_grad()
def examine_rows(model: Transformer) -> LogitDistance:
    """Compares the first rows of two batches that differ in their second row: they are the same
    unless rows depend on each other, as under batchnorm."""
    generator = torch.Generator().manual_seed(0)
    shape = 3, 1, min(TOKENS, model.context)
    first, second, third = torch.randint(model.vocab_size, shape, generator=generator)
    one, other = torch.cat((first, second)), torch.cat((first, third))
    return compare_passes(model, one, other, torch.tensor([True, False]))


@contextmanager
def noise_in(model: Transformer) -> Iterator[None]:
    """Inside it the model has noise in every vector, and in every matrix that is all zero: a block
    that an initialization has switched off would hide what it does."""
    generator = torch.Generator().manual_seed(0)
    switched_off = (p for p in model.parameters() if p.dim() < 2 or not whole(p.any()))
    kept = [(p, p.detach().clone()) for p in switched_off]
    try:
        for parameter, value in kept:
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            fan_in = value.shape[-1] if value.dim() > 1 else 1
            parameter.data += shard_like(noise.to(value.device) / fan_in**0.5, parameter)
        yield
    finally:
        for parameter, value in kept:
            parameter.data.copy_(value)


def seeded_pass(model: Transformer, tokens: Tensor) -> tuple[Tensor, bool, bool]:
    """Returns the logits of a pass, whether it draws numbers, and whether it changes a buffer. The
    buffers and torch's generators are left as they were."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state, given = torch.get_rng_state(), tokens.to(model.embedding.weight.device)
        logits: Tensor = functional_call(model, buffers, given)
        drawn = not torch.equal(state, torch.get_rng_state())
    counted = any(not torch.equal(kept, buffers[name]) for name, kept in model.named_buffers())
    return logits.cpu(), drawn, counted
