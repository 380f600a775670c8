"""How the work of a step is divided among ranks, their replicas and their threads."""

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.training.causality import examine_rows
from transformer_norms.training.parallel.micro_batches import micro_batch_count
from transformer_norms.training.parallel.ranks import Ranks
from transformer_norms.training.parallel.replicas import obstacle, replica_count
from transformer_norms.training.settings import TrainerSettings
from transformer_norms.training.tensors import sharded


@dataclass(frozen=True)
class Division:
    """A step of `micro_batches`, shared by `ranks` processes, each of `replicas` of the model. A
    process has `threads`, which its replicas share. The last digits of a run depend on
    `micro_batches`, and on how many threads one operator has."""

    micro_batches: int
    ranks: int
    replicas: int
    threads: int

    @property
    def threads_each(self) -> int:
        return self.threads // self.replicas


def divide(
    settings: TrainerSettings,
    model: Transformer,
    optimizer: Callable[..., Any],
    ranks: Ranks,
    threads: int,
) -> Division:
    """Returns the division of a run that begins, with so many threads for each process. Raises
    ConfigError where a step cannot be shared by so many ranks. `optimizer` is one of OPTIMIZERS."""
    _check_sequences(settings.batch_size, settings.accumulation, ranks.count)
    replicas = replica_count(settings, model, threads, optimizer, ranks.count)
    count = micro_batch_count(settings.accumulation, replicas, ranks.count)
    _check_rows(settings, model, ranks, count)
    return Division(count, ranks.count, replicas, threads)


def resume_division(
    before: Division, settings: TrainerSettings, model: Transformer, ranks: Ranks, cores: int
) -> Division:
    """Returns the division of a run that goes on, with so many cores for each process. It keeps the
    micro-batches, and the threads of an operator, so that the digits are those of one number of
    ranks. What other ranks and their replicas shared is shared by today's, as far as cores go."""
    count = lcm(before.micro_batches, ranks.count)
    replicas, each = before.replicas, max(1, before.threads_each)
    if sharded(model.embedding.weight) or settings.device != "cpu":
        replicas, each = 1, max(1, min(before.threads, cores))
    elif ranks.count != before.ranks:
        shared = before.replicas * before.ranks // ranks.count
        most = min(shared, cores // each)
        even = [n for n in range(2, most + 1) if count % (n * ranks.count) == 0]
        possible = (n for n in even if obstacle(settings, model, each * n, n, ranks.count) is None)
        replicas = max(possible, default=1)
    _check_sequences(settings.batch_size, before.micro_batches, ranks.count)
    _check_rows(settings, model, ranks, count)
    return Division(count, ranks.count, replicas, each * replicas)


def _check_sequences(sequences: int, parts: int, ranks: int) -> None:
    """Raises ConfigError where so many ranks cannot share a step that has `parts` micro-batches or
    a multiple of them."""
    count = lcm(parts, ranks)
    if sequences % count:
        near = max(1, round(sequences / count)) * count
        fewer = max(n for n in range(1, ranks) if sequences % lcm(parts, n) == 0)
        raise ConfigError(
            f"trainer.batch_size={sequences}: {ranks} processes share a step as {count} "
            f"micro-batches, so it should be a multiple of {count}, as {near} is; with "
            f"{sequences} there can be {fewer} process{'es' * (fewer > 1)}"
        )


def _check_rows(settings: TrainerSettings, model: Transformer, ranks: Ranks, count: int) -> None:
    """Raises ConfigError where other processes would compute something else than one."""
    if ranks.count == 1:
        return
    rows = examine_rows(model)
    if rows.counted:
        raise ConfigError(
            "the model keeps running averages (as norm=batchnorm does), which several processes "
            "would each keep of their own share; train it in one process"
        )
    if not rows.rows_are_independent and count > settings.accumulation:
        raise ConfigError(
            f"trainer.accumulation={settings.accumulation}: {ranks.count} processes share {count} "
            "micro-batches, and a row of this model's batch depends on the rows beside it; "
            f"trainer.accumulation={count} says so"
        )
