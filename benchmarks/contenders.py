"""What is timed here: a size, and a Trainer of this project at that size."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError
from transformer_norms.processes import cores
from transformer_norms.training.loss import ModelLoss
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.parallel.micro_batches import MicroBatches
from transformer_norms.training.parallel.ranks import ALONE, Ranks
from transformer_norms.training.parallel.work_division import divide, thread_count
from transformer_norms.training.trainer import Trainer

CLIP = 1.0
Batches = Callable[[int], Tensor]


@dataclass(frozen=True)
class Size:
    """depth-width-context-batch-vocabulary; heads of 32 dimensions, above width 128 of 64."""

    depth: int
    width: int
    context: int
    batch: int
    vocabulary: int

    @classmethod
    def read(cls, text: str) -> "Size":
        numbers = text.split("-")
        if len(numbers) != 5 or not all(n.isdecimal() and int(n) > 0 for n in numbers):
            raise ConfigError(f"--sizes {text}: five numbers above 0 as in 4-128-64-12-65")
        return cls(*(int(number) for number in numbers))

    def __str__(self) -> str:
        return f"{self.depth}-{self.width}-{self.context}-{self.batch}-{self.vocabulary}"

    @property
    def heads(self) -> int:
        return max(1, self.width // (32 if self.width <= 128 else 64))

    def overrides(self) -> list[str]:
        sizes = {key: getattr(self, key) for key in ("depth", "width", "heads", "context")}
        return [f"model.{key}={value}" for key, value in sizes.items()]

    def batches(self) -> Batches:
        """The same few random batches for all, one token longer than the context."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch, self.context + 1)
        few = [torch.randint(self.vocabulary, shape, generator=generator) for _ in range(8)]
        return lambda step: few[step % len(few)]


def ours(
    size: Size,
    overrides: list[str],
    batches: Batches,
    *,
    probe_every: int = 0,
    device: str = "cpu",
    ranks: Ranks = ALONE,
    loss: Callable[..., ModelLoss] = ModelLoss,
) -> Trainer:
    """A run's own Trainer, fed from memory, its probes off: they would add to the first step. It
    has more steps to make than are timed, so that no schedule ends."""
    fixed = [f"trainer.clip={CLIP}", f"trainer.device={device}", "trainer.steps=10000000"]
    fixed += [f"trainer.batch_size={size.batch}", f"trainer.probe_every={probe_every}"]
    config = compose([*size.overrides(), *fixed, *overrides])
    keys = config.trainer
    torch.set_num_threads(thread_count(keys, config.model, size.vocabulary, cores()))
    if keys.compile in ("block", "whole"):
        torch._dynamo.config.recompile_limit = 100  # blocks of all contenders are of one class
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # else they would be eager, unseen
    model = build_model(config, size.vocabulary)
    optimizer = OPTIMIZERS[config.optimizer.type]
    replicas = divide(keys, model, optimizer, torch.get_num_threads()).replicas
    trainer = build_trainer(config, model, batches, lambda: (), replicas, ranks=ranks, loss=loss)
    # Random tokens cannot be learned, which is not a divergence here.
    trainer.divergence.warmup = keys.steps
    return trainer


def as_in_a_run(trainer: Trainer) -> Trainer:
    """On a GPU, each step of a run begins before the GPU has ended the one before it."""
    from transformer_norms.training.graphs.ahead import StepsAhead, can_step_ahead

    trainer.ahead = StepsAhead(trainer) if can_step_ahead(trainer) else None
    return trainer


def trained(trainer: Trainer) -> None:
    """One step, the threads divided among the replicas, as in a run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads // trainer.micro_batches.replicas.count)
    reason = trainer.train_step()
    torch.set_num_threads(threads)
    assert reason is None, reason


def trained_alone(trainer: Trainer) -> None:
    """One step without replicas: only this thread's operators are recorded."""
    shared = trainer.micro_batches
    trainer.micro_batches = MicroBatches(
        trainer.loss,
        count=shared.count,
        accumulation=trainer.settings.accumulation,
        replicas=1,
        ranks=trainer.ranks,
        seed=shared.seed,
    )
    trainer.train_step()
    trainer.micro_batches = shared


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
