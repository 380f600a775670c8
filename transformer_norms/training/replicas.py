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
from transformer_norms.training.causality import stirred
from transformer_norms.training.loss import Batch, ModelLoss
from transformer_norms.training.settings import TrainerSettings

USUAL = 2  # of `auto`; more were not measured
# Tokens times width. With a smaller stream, and with blocks that are computed again, the threads
# wait for the interpreter, which they share.
STREAM = 1 << 16
TOKENS = 12
ROUNDING = 1e-5  # of the logits' standard deviation; more, and other rows have a part in them


class Replicas:
    """A ModelLoss computed by `count` replicas of its model side by side: the same sums and
    gradients to rounding, and the same digits each time. What cannot be shared out evenly, the
    model computes by itself.

    Replicas have the model's own weights and buffers, and gradients of their own. They know nothing
    of modules that are put into the model, or weights that are frozen, after they were made.
    """

    def __init__(self, loss: ModelLoss, count: int) -> None:
        loss.side_by_side = count
        self.model = loss.model
        self.losses = [loss, *(_replica(loss) for _ in range(count - 1))]
        self.parameters = [list(each.model.parameters()) for each in self.losses]
        self.threads = ThreadPoolExecutor(count - 1, "replica")

    def __call__(self, batch: Batch) -> Tensor:
        """The mean over tokens, by the model alone: what watches it sees all of the batch."""
        return self.losses[0](batch)

    def sum(self, batch: Batch) -> Tensor:
        """Over tokens."""
        return torch.stack(self._each(batch, lambda loss, share, _: loss.sum(share))).sum()

    def backward(self, batch: Batch, parts: int) -> Tensor:
        """Adds the gradients of the mean loss over tokens, divided by `parts`. Returns that loss
        and the cross-entropy, likewise divided."""
        shares = self._each(batch, lambda loss, share, of: loss.backward(share, parts * of))
        for parameters in self.parameters[1:]:
            _move_gradients(parameters, self.parameters[0])
        return torch.stack([torch.stack(each).sum() for each in zip(*shares, strict=True)])

    def _each(self, batch: Batch, work: Callable[[ModelLoss, Batch, int], Tensor]) -> list[Any]:
        """work(loss, share of the batch, number of shares), side by side."""
        count, graph = len(self.losses), torch.is_grad_enabled()
        if len(batch) % count:
            return [work(self.losses[0], batch, 1)]
        training = self.model.training

        def at_work(loss: ModelLoss, share: Batch) -> Tensor:
            if loss.model.training != training:
                loss.model.train(training)
            with torch.set_grad_enabled(graph):  # which a new thread does not know
                return work(loss, share, count)

        own, *others = zip(self.losses, batch.chunk(count), strict=True)
        begun = [self.threads.submit(at_work, *other) for other in others]
        try:
            first = at_work(*own)
        finally:  # whatever comes next finds them at rest
            wait(begun)
        return [first, *(each.result() for each in begun)]


def _replica(loss: ModelLoss) -> ModelLoss:
    """The same loss of a copy of its model with the same weights and buffers, in their memory."""
    memory: dict[int, Any] = {id(buffer): buffer for buffer in loss.model.buffers()}
    for parameter in loss.model.parameters():
        memory[id(parameter)] = nn.Parameter(parameter.detach(), parameter.requires_grad)
    other = copy.copy(loss)
    other.model = copy.deepcopy(loss.model, memory)
    return other


def _move_gradients(source: Iterable[nn.Parameter], target: Iterable[nn.Parameter]) -> None:
    """Adds them to those of `target`."""
    for own, other in zip(target, source, strict=True):
        if other.grad is not None:
            own.grad = other.grad if own.grad is None else own.grad.add_(other.grad)
            other.grad = None


def replica_count(
    settings: TrainerSettings, model: Transformer, threads: int, optimizer: Callable[..., Any]
) -> int:
    """The number of replicas that share a batch: `settings.replicas`, or, where that is `auto`,
    USUAL if replicas save time and are possible. ConfigError where a typed number is not possible.

    A registered `optimizer` whose step is made of matrix products says `all_threads=True`: with the
    threads divided among replicas it takes longer than they save.
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
    if not apart(model):
        return "a row of this model's batch is not independent of the others, or it draws numbers"
    return None


@torch.no_grad()
def apart(model: Transformer) -> bool:
    """Whether a row's logits in training mode are the same beside other rows, nothing is drawn,
    and no buffer changes. It is so of all norms but batchnorm, and without dropout."""
    time = min(TOKENS, model.context)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.vocab_size, (2, time), generator=generator)
    before = [buffer.clone() for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        together, alone = stirred(
            model, lambda: (model(tokens), torch.cat([model(row) for row in tokens.split(1)]))
        )
        drawn = not torch.equal(state, torch.get_rng_state())
    changed = False
    for buffer, value in zip(model.buffers(), before, strict=True):
        changed |= not torch.equal(buffer, value)
        buffer.copy_(value)
    distance = (together - alone).abs().max() / together.std().clamp_min(1e-12)
    return not (drawn or changed) and bool(distance < ROUNDING)
