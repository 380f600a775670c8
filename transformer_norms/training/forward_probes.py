"""What a forward pass has inside: the stream between blocks, what is added to it, attention.

The model is not written for being watched: hooks are put in for one pass and taken out again.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.model.block import DualBlock, ParallelBlock, SerialBlock, SubLayer
from transformer_norms.model.transformer import Transformer
from transformer_norms.training.measures import Place, key_of

Readings = dict[str, Tensor]  # numbers by key, still where they were computed
QUERIES = 256  # of a sequence: with all of a long context a probe takes longer than training steps

# What the branch of a sub-layer is added to, from the sub-layer, what it reads, and what the block
# was given: its stream and the embedded tokens.
ADDED_TO: dict[type[nn.Module], Callable[..., Tensor]] = {
    SerialBlock: lambda sub_layer, x, start, x0: sub_layer.skip(x, start, x0),
    ParallelBlock: lambda sub_layer, h, x, x0: x,
    DualBlock: lambda sub_layer, x, streams, x0: x,
}


@contextmanager
def watched(model: Transformer) -> Iterator[Readings]:
    """Readings of the forward pass inside of it; the model is itself again however that ends."""
    readings: Readings = {}
    with ExitStack() as stack:
        for i, block in enumerate(model.blocks):
            _watch_streams(stack, readings, i, block)
            for name in ("attention", "mlp"):
                _watch_branch(stack, readings, i, block, name)
            _watch_attention(stack, readings, i, block)
        yield readings


def _watch_streams(stack: ExitStack, readings: Readings, i: int, block: nn.Module) -> None:
    def entered(block: nn.Module, given: tuple[Any, ...]) -> None:
        # Two streams enter the first block as one.
        x = given[0][0] if isinstance(given[0], tuple) else given[0]
        readings.update(of_stream(x, "embedding", None))

    def left(block: nn.Module, given: tuple[Any, ...], y: Any) -> None:
        streams = dict(zip("xr", y, strict=True)) if isinstance(y, tuple) else {"": y}
        for part, stream in streams.items():
            readings.update(of_stream(stream, part, i))

    if i == 0:
        stack.callback(block.register_forward_pre_hook(entered).remove)
    stack.callback(block.register_forward_hook(left).remove)


def of_stream(x: Tensor, part: str, block: int | None) -> Readings:
    x = x.double()
    mean, rms = x.mean(), _rms(x)
    square = (x - mean).square_()
    found = {
        "stream_rms": rms,
        "stream_mean": mean,
        "stream_largest": x.abs().amax() / rms,
        "stream_kurtosis": square.square().mean() / square.mean().square(),
    }
    return {key_of(Place(measure, part, block)): value for measure, value in found.items()}


def _rms(x: Tensor) -> Tensor:
    return x.double().square().mean().sqrt()


def _watch_branch(
    stack: ExitStack, readings: Readings, i: int, block: nn.Module, name: str
) -> None:
    sub_layer: SubLayer = getattr(block, name)
    update, added_to = sub_layer.update, ADDED_TO[type(block)]
    key = key_of(Place("branch_over_stream", name, i))
    start: list[Any] = []

    def entered(block: nn.Module, given: tuple[Any, ...]) -> None:
        start[:] = given[:2]

    def updated(x: Tensor, *context: Any) -> Tensor:
        added = update(x, *context)
        readings[key] = _rms(added) / _rms(added_to(sub_layer, x, *start))
        return added

    stack.callback(block.register_forward_pre_hook(entered).remove)
    stack.enter_context(_replaced(sub_layer, "update", updated))


def _watch_attention(stack: ExitStack, readings: Readings, i: int, block: Any) -> None:
    """Reads the logits that the attention itself gives; one without a softmax has none."""
    attend = block.attention.f.attend
    if not hasattr(attend, "logits"):
        return

    def read(attend: Any, given: tuple[Tensor, ...]) -> None:
        q, k, *_ = given
        at = spread(q.shape[2]).to(q.device)
        logits = attend.logits(q[:, :, at], k, at)
        entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
        readings[key_of(Place("attention_logit", "", i))] = logits.amax()
        readings[key_of(Place("attention_entropy", "", i))] = entropy.mean()

    stack.callback(attend.register_forward_pre_hook(read).remove)


def spread(time: int) -> Tensor:
    """The queries that are read: all, or QUERIES at even distances, the first and the last among
    them."""
    if time <= QUERIES:
        return torch.arange(time)
    return torch.linspace(0, time - 1, QUERIES, dtype=torch.float64).round().long()


@contextmanager
def _replaced(owner: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Within it `owner.name` is `value`, whether that was the object's own or its class's."""
    own = {key: kept for key, kept in vars(owner).items() if key == name}
    vars(owner)[name] = value
    try:
        yield
    finally:
        del vars(owner)[name]
        vars(owner).update(own)
