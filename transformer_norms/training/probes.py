"""The measurements inside a model while it trains; `measures.py` says what each number means.

Nothing here changes a result. The forward pass that is measured is a separate one, without dropout,
gradients or anything drawn; everything else is only read. The model does not know that it is
measured: hooks are added for one pass and removed after it.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_norms.model.block import (
    ConnectedBlock,
    ParallelBlock,
    SerialBlock,
    StreamBlock,
    SubLayer,
)
from transformer_norms.model.coefficient import Learned
from transformer_norms.model.connections import named_parts
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import Registry
from transformer_norms.training.causality import seeded_pass
from transformer_norms.training.measures import Place, Start, key_of
from transformer_norms.training.parameter_groups import groups
from transformer_norms.training.tensors import double, whole

SEQUENCES = 2  # of a batch, for the forward pass
QUERIES = 256  # of a sequence: with all of a long context a probe takes longer than training steps
START_TOKENS, START_POSITIONS = 256, 64  # of an untrained model: of a sequence, and of its logits
DIGITS = 5
Readings = dict[str, Tensor]  # numbers by key, on the device where they were computed
Values = dict[str, float | None]  # by key; None where there is no such number, as of 0 / 0


class Probe:
    """The measurements of a step where they are `due`: of the weights at its begin, their
    gradients, their change. A step that is not measured has no readings."""

    def __init__(self, model: Transformer, due: bool) -> None:
        self.model, self.due = model, due
        self.readings: Readings = {}
        self.matrices: dict[str, nn.Parameter] = {}
        if due:
            by_group = groups(model)
            named = [*by_group["embeddings"], *by_group["head"], *by_group["matrices"]]
            self.matrices = {name.removesuffix(".weight"): weight for name, weight in named}

    def forward(self, batch: Tensor, loss: Callable[[Tensor], Any]) -> None:
        """Call it before anything is drawn. `loss` runs the model in the precision of training."""
        if not self.due:
            return
        self.readings |= gain_spreads(self.model)
        self.model.eval()
        try:
            # Compiled blocks stay as they are: they neither run nor see the hooks.
            with (
                torch.no_grad(),
                torch.compiler.set_stance("force_eager"),
                watch(self.model) as readings,
            ):
                loss(batch[:SEQUENCES])
        finally:
            self.model.train()
        self.readings |= readings

    def gradients(self) -> None:
        """Call it after the backward pass and before clipping."""
        if not self.due:
            return
        present = {path: w.grad for path, w in self.matrices.items() if w.grad is not None}
        self._read("gradient_norm", present, _lengths(list(present.values())))

    @contextmanager
    def update(self) -> Iterator[None]:
        """Encloses everything that changes the weights."""
        if not self.due:
            yield
            return
        weights = [weight.detach() for weight in self.matrices.values()]
        change = [weight.clone() for weight in weights]
        norms = _lengths(change)
        yield
        torch._foreach_sub_(change, weights)
        ratios = torch._foreach_div(_lengths(change), norms)
        self._read("update_over_weight", self.matrices, ratios)

    def _read(self, measure: str, paths: Iterable[str], values: Any) -> None:
        for path, value in zip(paths, values, strict=True):
            self.readings[key_of(place(measure, path))] = value

    def values(self) -> Values:
        if not self.due:
            return {}
        numbers = torch.stack([double(value) for value in self.readings.values()]).tolist()
        return {key: round_digits(x) for key, x in zip(self.readings, numbers, strict=True)}


def _lengths(tensors: list[Tensor]) -> list[Tensor]:
    """Returns the Euclidean norm of each tensor, on all ranks where the tensors are sharded."""
    return [whole(norm) for norm in torch._foreach_norm(tensors)]


def round_digits(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


@contextmanager
def watch(model: Transformer) -> Iterator[Readings]:
    """Fills readings from the forward pass inside it. Afterwards the model has no hook left,
    however the pass ended."""
    readings: Readings = {}

    def read_stream(part: str, i: int | None, x: Tensor) -> None:
        wide = double(x)
        for name, probe in STREAM_PROBES.items():
            readings[key_of(Place(name, part, i))] = probe(wide)

    with ExitStack() as stack:
        stack.enter_context(watch_streams(model, read_stream))
        for i, block in enumerate(model.blocks):
            for name in ("attention", "mlp"):
                _watch_branch(stack, readings, i, block, name)
            _watch_attention(stack, readings, i, block)
        yield readings


@contextmanager
def watch_streams(
    model: Transformer, read: Callable[[str, int | None, Tensor], None]
) -> Iterator[None]:
    """Calls `read` with each stream at the boundaries of blocks, in order: the part, the block that
    it leaves, and the stream, [batch, time, width], or [batch, time, n, width] of n streams. The
    stream that enters the first block is the part `embedding` of None. Inside the context the model
    has hooks, and afterwards none."""

    def read_input(block: nn.Module, given: tuple[Any, ...]) -> None:
        read("embedding", None, given[1])  # x0

    def reader(i: int) -> Callable[..., None]:
        def read_output(block: nn.Module, given: tuple[Any, ...], y: Any) -> None:
            for part, stream in named_parts(block, y).items():
                read(part, i, stream)

        return read_output

    with ExitStack() as stack:
        for i, block in enumerate(model.blocks):
            if i == 0:
                stack.callback(block.register_forward_pre_hook(read_input).remove)
            stack.callback(block.register_forward_hook(reader(i)).remove)
        yield


# The number that each probe reads from a residual stream [batch, time, width] in float64, or from
# n of them, [batch, time, n, width]. A plugin adds a function in the same way. The report shows it
# under its name; MEASURES may explain it.
STREAM_PROBES = Registry("probe")


@STREAM_PROBES("stream_rms")
def _rms(x: Tensor) -> Tensor:
    return double(x).square().mean().sqrt()


@STREAM_PROBES("stream_mean")
def _mean(x: Tensor) -> Tensor:
    return x.mean()


@STREAM_PROBES("stream_drift")
def _drift(x: Tensor) -> Tensor:
    return ones_cosine(x).square().mean().sqrt()


@STREAM_PROBES("stream_largest")
def _largest(x: Tensor) -> Tensor:
    return x.abs().amax().div(_rms(x))


@STREAM_PROBES("stream_kurtosis")
def _kurtosis(x: Tensor) -> Tensor:
    square = (x - x.mean()).square_()
    return square.square().mean().div(square.mean().square())


def ones_cosine(x: Tensor) -> Tensor:
    """mean(x) / sqrt(mean(x^2)) of each token: the cosine of x and the all-ones vector. Its square
    is the share of |x|^2 that centring removes."""
    return x.mean(-1) / x.square().mean(-1).sqrt()


# The stream that a branch is added to, from the block, the sub-layer, what it reads, and what the
# block was given: its stream and the embedded tokens. Of several streams it is what the sub-layer
# reads, or the skip of what the block reads.
ADDED_TO: dict[type[nn.Module], Callable[..., Tensor]] = {
    ConnectedBlock: lambda block, sub_layer, x, streams, x0: sub_layer.skip(
        x, block.connection.read(streams), x0
    ),
    SerialBlock: lambda block, sub_layer, x, start, x0: sub_layer.skip(x, start, x0),
    ParallelBlock: lambda block, sub_layer, h, x, x0: x,
    StreamBlock: lambda block, sub_layer, x, streams, x0: x,
}


def _watch_branch(
    stack: ExitStack, readings: Readings, i: int, block: nn.Module, name: str
) -> None:
    sub_layer: SubLayer = getattr(block, name)
    update = sub_layer.update
    # A sharded block is of a subclass.
    added_to = next(stream for kind, stream in ADDED_TO.items() if isinstance(block, kind))
    key = key_of(Place("branch_over_stream", name, i))
    start: list[Any] = []

    def keep_start(block: nn.Module, given: tuple[Any, ...]) -> None:
        start[:] = given[:2]

    def read_update(x: Tensor, *context: Any) -> Tensor:
        added = update(x, *context)
        readings[key] = _rms(added) / _rms(added_to(block, sub_layer, x, *start))
        return added

    stack.callback(block.register_forward_pre_hook(keep_start).remove)
    vars(sub_layer)["update"] = read_update  # hides the method of the class
    stack.callback(vars(sub_layer).pop, "update")


def _watch_attention(stack: ExitStack, readings: Readings, i: int, block: Any) -> None:
    """Reads the logits that the attention itself gives. An attention without a softmax has none."""
    attend = block.attention.f.attend
    if not hasattr(attend, "logits"):
        return

    def read_logits(attend: Any, given: tuple[Tensor, ...]) -> None:
        q, k, *_ = given
        at = query_positions(q.shape[2]).to(q.device)
        logits = attend.logits(q[:, :, at], k, at)
        entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
        entropy = entropy.masked_fill(logits.amax(-1) == -math.inf, 0)  # of a query without a key
        readings[key_of(Place("attention_logit", "", i))] = logits.amax()
        readings[key_of(Place("attention_entropy", "", i))] = entropy.mean()

    stack.callback(attend.register_forward_pre_hook(read_logits).remove)


def query_positions(time: int) -> Tensor:
    """Returns the positions of the queries that are read: all, or QUERIES at even distances, the
    first and the last among them."""
    if time <= QUERIES:
        return torch.arange(time)
    return torch.linspace(0, time - 1, QUERIES, dtype=torch.float64).round().long()


@torch.no_grad()
def measure_start(model: Transformer, tokens: Tensor | None = None) -> Start:
    """Returns three numbers that say whether two untrained models start comparably.

    The model is measured without dropout on the first tokens of `tokens` [batch, time], or on
    random ones. Nothing is drawn from torch's generators, and the model is left as it was.
    """
    if tokens is None:
        generator = torch.Generator().manual_seed(0)
        shape = SEQUENCES, min(START_TOKENS, model.context)
        tokens = torch.randint(model.vocab_size, shape, generator=generator)
    tokens = tokens[:SEQUENCES, : min(START_TOKENS, model.context)]
    tokens = tokens.to(model.embedding.weight.device)
    training = model.training
    model.eval()
    with watch(model) as readings:
        states = model.states(tokens)
        at = torch.linspace(0, tokens.shape[1] - 1, START_POSITIONS).round().long().unique()
        logits = double(model.logits(states[:, at.to(states.device)]))
    model.train(training)
    stream = readings[key_of(Place("stream_rms", "embedding", None))]
    branches = [reading for key, reading in readings.items() if "/branch_over_stream/" in key]
    numbers = stream, torch.stack(branches).mean(), logits.std(-1, correction=0).mean()
    return Start(*(round_digits(number.item()) for number in numbers))


@torch.no_grad()
def high_losses(model: Transformer, tokens: Tensor) -> list[str]:
    """Returns the warning of an untrained model whose loss on `tokens` is above ln V + 3."""
    tokens = tokens[:SEQUENCES, : START_POSITIONS + 1].cpu()
    logits = seeded_pass(model, tokens[:, :-1])[0].double()
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
    uniform = math.log(model.vocab_size)
    line = f"the loss starts at {loss:.3g}, far above ln V = {uniform:.3g}"
    return [f"{line}; another init= may start lower"] if loss > uniform + 3 else []


@torch.no_grad()
def gain_spreads(model: nn.Module) -> Readings:
    """Returns the standard deviation of each norm's gains. That of 1 + offset is the offset's."""
    gains: dict[Place, list[Tensor]] = {}
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        gain = own.get("gain", own.get("offset"))
        # A learned coefficient is not a norm, and one number has no spread.
        if gain is not None and gain.numel() > 1 and not isinstance(module, Learned):
            gains.setdefault(place("gain_spread", path), []).append(whole(gain).flatten())
    return {key_of(at): double(torch.cat(all_)).std(correction=0) for at, all_ in gains.items()}


# A path holds more than the site: the sub-layer's function, and wrappers round the norm.
_WRAPPERS = re.compile(r"\.(f|norm|heads\.\d+)(?=\.|$)")


def place(measure: str, path: str) -> Place:
    """`blocks.3.attention.f.query` -> attention.query in block 3; `final.norm` -> final"""
    first, *rest = _WRAPPERS.sub("", path).split(".")
    if first == "blocks":
        return Place(measure, ".".join(rest[1:]), int(rest[0]))
    return Place(measure, first, None)
