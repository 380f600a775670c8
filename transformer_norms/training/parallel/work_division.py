"""How the work of a step is divided among ranks, the replicas of each, and their threads."""

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from typing import Any

from transformer_norms.errors import ConfigError
from transformer_norms.model.sizes import Sizes
from transformer_norms.model.transformer import Transformer
from transformer_norms.training.causality import examine_rows
from transformer_norms.training.settings import TrainerSettings
from transformer_norms.training.tensors import sharded

USUAL = 2  # replicas under `auto`; more were not measured
# Tokens times width, or times a sixteenth of the vocabulary. A smaller step has operators that end
# before a second thread has begun. Replicas of it wait for the interpreter, which they share.
SMALL = 1 << 16
NARROW = 128  # a wider product has work for several threads, however few its tokens


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
    threads: int,
    ranks: int = 1,
) -> Division:
    """Returns the division of a run that begins, with so many threads for each process. Raises
    ConfigError where a typed number of replicas is not possible, or where ranks cannot share a
    step. `optimizer` is one of OPTIMIZERS."""
    _check_sequences(settings.batch_size, settings.accumulation, ranks)
    replicas = settings.replicas
    if replicas == "auto":
        slower = (
            getattr(optimizer, "all_threads", False)
            or settings.activation_checkpointing
            or is_small(settings, model, model.vocab_size, ranks)
        )
        replicas = 1 if slower or obstacle(settings, model, threads, USUAL, ranks) else USUAL
    elif replicas > 1 and (reason := obstacle(settings, model, threads, replicas, ranks)):
        line = f"{reason}; auto takes {USUAL} where they can be and gain time"
        raise ConfigError(f"trainer.replicas={replicas}: {line}")
    count = lcm(settings.accumulation, replicas * ranks)
    _check_rows(settings, model, ranks, count)
    return Division(count, ranks, replicas, threads)


def resume_division(
    before: Division, settings: TrainerSettings, model: Transformer, cores: int, ranks: int = 1
) -> Division:
    """Returns the division of a run that goes on, with so many cores for each process. It keeps the
    micro-batches, and the threads of an operator, so that the digits are those of one number of
    ranks. Today's ranks and replicas share the work of the earlier ones, as far as cores go."""
    count = lcm(before.micro_batches, ranks)
    replicas, each = before.replicas, before.threads_each
    if sharded(model.embedding.weight) or settings.device != "cpu":
        replicas, each = 1, min(before.threads, cores)
    elif ranks != before.ranks:
        most = min(before.replicas * before.ranks // ranks, cores // each)
        even = (n for n in range(most, 1, -1) if count % (n * ranks) == 0)
        possible = (n for n in even if obstacle(settings, model, each * n, n, ranks) is None)
        replicas = next(possible, 1)
    _check_sequences(settings.batch_size, before.micro_batches, ranks)
    _check_rows(settings, model, ranks, count)
    return Division(count, ranks, replicas, each * replicas)


def thread_count(
    settings: TrainerSettings, sizes: Sizes, vocab_size: int, cores: int, ranks: int = 1
) -> int:
    """Returns how many threads each of `ranks` processes has: `settings.threads`. Where that is
    `auto`: one for a small step, and otherwise, or where replicas are typed, one for each core."""
    if settings.threads != "auto":
        return settings.threads
    narrow = sizes.width <= NARROW and settings.replicas == "auto"
    return 1 if narrow and is_small(settings, sizes, vocab_size, ranks) else cores


def is_small(
    settings: TrainerSettings, sizes: Transformer | Sizes, vocab_size: int, ranks: int
) -> bool:
    """Returns whether a second thread costs a step more time than it saves."""
    read = settings.batch_size // lcm(settings.accumulation, ranks)  # sequences at a time
    return read * sizes.context * max(sizes.width, vocab_size // 16) < SMALL


def obstacle(
    settings: TrainerSettings, model: Transformer, threads: int, count: int, ranks: int
) -> str | None:
    """Returns why `count` replicas are not possible, or None."""
    if sharded(model.embedding.weight):
        return "replicas share whole weights, and parallel=fsdp cuts weights in shards"
    if settings.device != "cpu":
        return f"they are for a CPU, and trainer.device is {settings.device}"
    if threads % count:
        return f"{threads} threads cannot be shared evenly among so many"
    if settings.batch_size % (count * ranks):
        return f"{settings.batch_size} sequences cannot be shared evenly among {count * ranks}"
    if settings.compile not in ("auto", "none"):
        return f"trainer.compile={settings.compile} is for one"
    rows = examine_rows(model)
    if not rows.rows_are_independent or rows.drawn or rows.counted:
        return "a row of this model's batch is not independent of the others, or it draws numbers"
    return None


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


def _check_rows(settings: TrainerSettings, model: Transformer, ranks: int, count: int) -> None:
    """Raises ConfigError where other processes would compute something else than one."""
    if ranks == 1:
        return
    rows = examine_rows(model)
    if rows.counted:
        raise ConfigError(
            "the model keeps running averages (as norm=batchnorm does), which several processes "
            "would each keep over a separate share; train it in one process"
        )
    if not rows.rows_are_independent and count > settings.accumulation:
        raise ConfigError(
            f"trainer.accumulation={settings.accumulation}: {ranks} processes share {count} "
            "micro-batches, and a row of this model's batch depends on its neighbours; "
            f"trainer.accumulation={count} says so"
        )
