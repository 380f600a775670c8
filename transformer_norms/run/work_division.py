"""How the work of a step is divided among ranks, their replicas and their threads."""

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.model.transformer import Transformer
from transformer_norms.run import machine
from transformer_norms.run.summary import Summary
from transformer_norms.training.parallel.micro_batches import micro_batch_count
from transformer_norms.training.parallel.ranks import Ranks
from transformer_norms.training.parallel.replicas import examine_rows, replica_count
from transformer_norms.training.settings import TrainerSettings


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


def threads_of(settings: TrainerSettings, ranks: Ranks) -> int:
    """Returns how many threads a process has: those typed, or its share of the machine's cores."""
    if settings.threads == "auto":
        return max(1, machine.cores() // ranks.local_count)
    return settings.threads


def divide(
    settings: TrainerSettings, model: Transformer, optimizer: Callable[..., Any], ranks: Ranks
) -> Division:
    """Returns the division of a run that begins. Raises ConfigError where a step cannot be shared
    by so many ranks. `optimizer` is one of OPTIMIZERS."""
    threads = threads_of(settings, ranks)
    _check_sequences(settings.batch_size, lcm(settings.accumulation, ranks.count), ranks.count)
    replicas = replica_count(settings, model, threads, optimizer, ranks.count)
    count = micro_batch_count(settings.accumulation, replicas, ranks.count)
    _check_rows(settings, model, ranks, count)
    return Division(count, ranks.count, replicas, threads)


def divide_again(
    before: Summary, settings: TrainerSettings, model: Transformer, ranks: Ranks
) -> Division:
    """Returns the division of a run that goes on. It keeps the micro-batches, and the threads of an
    operator, so that its digits are those of one number of ranks. What was shared by other ranks or
    replicas is shared by as many of today's as the cores allow."""
    replicas, ranks_before = before.replicas or 1, before.ranks or 1
    each = max(1, (before.threads or 1) // replicas)
    asked = settings.accumulation
    kept = before.micro_batches or micro_batch_count(asked, replicas, ranks_before)
    count = lcm(kept, ranks.count)
    if ranks.count != ranks_before:
        most = max(1, machine.cores() // ranks.local_count // each)
        shared = max(1, replicas * ranks_before // ranks.count)
        replicas = max(
            n for n in range(1, shared + 1) if n <= most and count % (n * ranks.count) == 0
        )
    _check_sequences(settings.batch_size, count, ranks.count)
    _check_rows(settings, model, ranks, count)
    return Division(count, ranks.count, replicas, each * replicas)


def _check_sequences(sequences: int, count: int, ranks: int) -> None:
    if sequences % count:
        raise ConfigError(
            f"trainer.batch_size={sequences}: {ranks} processes share a step as {count} "
            "micro-batches, which does not divide it; --nproc-per-node, or another batch_size, does"
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
    if not rows.independent and count > settings.accumulation:
        raise ConfigError(
            f"trainer.accumulation={settings.accumulation}: {ranks.count} processes share {count} "
            "micro-batches, and a row of this model's batch depends on the rows beside it; "
            f"trainer.accumulation={count} says so"
        )
