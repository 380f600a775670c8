"""A step in parallel on a CPU: replicas of the model, each with its share of the batch.

Operators that each run on all threads wait for the slowest thread some hundred times a step;
replicas with a thread each wait for one another once. benchmarks/README.md has what that gives.
"""

import copy
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.training.causality import logits_under_noise
from transformer_norms.training.loss import Batch, ModelLoss
from transformer_norms.training.settings import TrainerSettings

USUAL = 2  # replicas under `auto`; more were not measured
# Tokens times width. With a smaller stream, and with blocks that are computed again, the threads
# wait for the interpreter, which they share.
STREAM = 1 << 16
TOKENS = 12
ROUNDING = 1e-5  # in standard deviations of the logits; a larger distance comes from other rows


class Replicas:
    """A ModelLoss that `count` replicas of its model compute side by side: the same sums and
    gradients to rounding, and the same digits each time. A batch that cannot be shared evenly is
    computed by the model alone.

    Replicas share the model's weights and buffers, and have gradients of their own. They do not see
    modules that are put into the model, or weights that are frozen, after they were made.
    """

    def __init__(self, loss: ModelLoss, count: int) -> None:
        loss.side_by_side = count
        self.model = loss.model
        self.losses = [loss, *(_replica(loss) for _ in range(count - 1))]
        self.parameters = [list(each.model.parameters()) for each in self.losses]
        self.threads = ThreadPoolExecutor(count - 1, "replica")

    def __call__(self, batch: Batch) -> Tensor:
        """Returns the mean cross-entropy over tokens. The model computes it alone, so that the
        probes see the whole batch."""
        return self.losses[0](batch)

    def sum(self, batch: Batch) -> Tensor:
        """Returns the sum of the cross-entropy over tokens."""
        return torch.stack(self._each(batch, lambda loss, share, _: loss.sum(share))).sum()

    def backward(self, batch: Batch, parts: int) -> Tensor:
        """Adds the gradients of the mean loss over tokens, divided by `parts`. Returns that loss
        and the cross-entropy, likewise divided."""
        shares = self._each(batch, lambda loss, share, count: loss.backward(share, parts * count))
        for parameters in self.parameters[1:]:
            _move_gradients(parameters, self.parameters[0])
        return torch.stack([torch.stack(each).sum() for each in zip(*shares, strict=True)])

    def _each(self, batch: Batch, work: Callable[[ModelLoss, Batch, int], Tensor]) -> list[Any]:
        """Runs work(loss, share of the batch, number of shares) side by side for all replicas."""
        count, graph = len(self.losses), torch.is_grad_enabled()
        if len(batch) % count:
            return [work(self.losses[0], batch, 1)]
        training = self.model.training

        def run(loss: ModelLoss, share: Batch) -> Tensor:
            if loss.model.training != training:
                loss.model.train(training)
            with torch.set_grad_enabled(graph):  # a new thread does not inherit this
                return work(loss, share, count)

        own, *others = zip(self.losses, batch.chunk(count), strict=True)
        begun = [self.threads.submit(run, *pair) for pair in others]
        try:
            first = run(*own)
        finally:  # after an error, too, no replica is still at work
            wait(begun)
        return [first, *(each.result() for each in begun)]


def _replica(loss: ModelLoss) -> ModelLoss:
    """Returns the same loss for a copy of its model, whose weights and buffers share the memory of
    the model's."""
    memory: dict[int, Any] = {id(buffer): buffer for buffer in loss.model.buffers()}
    for parameter in loss.model.parameters():
        memory[id(parameter)] = nn.Parameter(parameter.detach(), parameter.requires_grad)
    replica = copy.copy(loss)
    replica.model = copy.deepcopy(loss.model, memory)
    return replica


def _move_gradients(source: Iterable[nn.Parameter], target: Iterable[nn.Parameter]) -> None:
    """Adds the gradients of `source` to those of `target`, and clears them."""
    for giver, taker in zip(source, target, strict=True):
        if giver.grad is not None:
            taker.grad = giver.grad if taker.grad is None else taker.grad.add_(giver.grad)
            giver.grad = None


def replica_count(
    settings: TrainerSettings, model: Transformer, threads: int, optimizer: Callable[..., Any]
) -> int:
    """Returns how many replicas share a batch: `settings.replicas`, or, where that is `auto`, USUAL
    if replicas save time and are possible. ConfigError where a typed number is not possible.
    `optimizer` is one of OPTIMIZERS.
    """
    wanted = settings.replicas
    count = USUAL if wanted == "auto" else wanted
    if wanted == "auto" and (
        getattr(optimizer, "all_threads", False)
        or settings.activation_checkpointing
        or _sequences(settings) * model.context * model.width < STREAM
    ):
        return 1
    obstacle = None if count == 1 else _obstacle(settings, model, threads, count)
    if obstacle is None:
        return count
    if wanted == "auto":
        return 1
    raise ConfigError(
        f"trainer.replicas={wanted}: {obstacle}; auto takes {USUAL} where they can be and gain time"
    )


def _sequences(settings: TrainerSettings) -> int:
    """The number of sequences that the model reads at a time."""
    return settings.batch_size // settings.accumulation


def _obstacle(
    settings: TrainerSettings, model: Transformer, threads: int, count: int
) -> str | None:
    """The reason why `count` replicas are not possible, or None."""
    if settings.device != "cpu":
        return f"they are for a CPU, and trainer.device is {settings.device}"
    if threads % count:
        return f"{threads} threads cannot be shared evenly among so many"
    if _sequences(settings) % count:
        return f"{_sequences(settings)} sequences at a time cannot be shared evenly among so many"
    if settings.compile:
        return "trainer.compile=true is for one"
    if not rows_independent(model):
        return "a row of this model's batch is not independent of the others, or it draws numbers"
    return None


@torch.no_grad()
def rows_independent(model: Transformer) -> bool:
    """Returns whether a row's logits in training mode are the same beside other rows, nothing is
    drawn, and no buffer changes: true without dropout for every norm but batchnorm."""
    time = min(TOKENS, model.context)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.vocab_size, (2, time), generator=generator)
    before = [buffer.clone() for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        together, alone = logits_under_noise(
            model, lambda: (model(tokens), torch.cat([model(row) for row in tokens.split(1)]))
        )
        drawn = not torch.equal(state, torch.get_rng_state())
    changed = False
    for buffer, value in zip(model.buffers(), before, strict=True):
        changed |= not torch.equal(buffer, value)
        buffer.copy_(value)
    distance = (together - alone).abs().max() / together.std().clamp_min(1e-12)
    return not (drawn or changed) and bool(distance < ROUNDING)
