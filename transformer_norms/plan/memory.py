"""The memory of one device, by part, at the fullest moment of each phase of a step."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.plan.rehearsal import Bytes, Stage
from transformer_norms.training.parallel.micro_batches import micro_batch_count

GIB = 2**30
# Assumed: the CUDA context and the workspaces of cuBLAS; an interpreter with torch.
REST = {"cuda": 1.5 * GIB, "cpu": 0.4 * GIB}
FREE = 0.1  # of a device's memory, which an allocator cannot use


@dataclass(frozen=True)
class Layout:
    """A step is `micro_batches` of `sequences` each. Each replica of the model computes `share` of
    them one after another. `pieces` is by how much they are smaller than trainer.accumulation
    says."""

    replicas: int
    micro_batches: int
    sequences: int
    pieces: int

    @property
    def share(self) -> int:
        return self.micro_batches // self.replicas

    @property
    def sets(self) -> int:
        """The most sets of gradients of a replica at a time. The tree adds halves: while the last
        micro-batch is computed, the sum of each left half on the way to it waits."""
        return (self.share - 1).bit_length() + 1


def divide_step(config: Config) -> Layout:
    """Returns the layout of a config's step on one device; ConfigError where there is none."""
    settings = config.trainer
    replicas = 1 if settings.replicas == "auto" else settings.replicas
    if replicas > 1 and settings.device != "cpu":
        raise ConfigError(f"trainer.replicas={replicas}: they are for a CPU")
    count = micro_batch_count(settings.accumulation, replicas, 1)
    if settings.batch_size % count:
        raise ConfigError(
            f"trainer.replicas={replicas}: they cannot share {settings.batch_size} sequences "
            f"(trainer.batch_size) evenly with trainer.accumulation={settings.accumulation}"
        )
    return Layout(replicas, count, settings.batch_size // count, count // settings.accumulation)


@dataclass(frozen=True)
class Memory:
    """Bytes by part for each phase: `backward` is the forward and the backward pass, `sum` the
    addition of gradients, `update` the optimizer's step. `rest` is there all the time."""

    phases: dict[str, Bytes]
    rest: int

    @cached_property
    def peak(self) -> int:
        return self.rest + max(parts.total() for parts in self.phases.values())

    def fits(self, capacity: float) -> bool:
        return self.peak <= (1 - FREE) * capacity


def memory_of(stage: Stage, layout: Layout) -> Memory:
    """Returns what a device holds: the weights and moments once, and gradients for each replica.
    The stage rehearses one micro-batch."""
    passes = stage.rehearse(layout.sequences, layout.pieces)
    kept = Counter({part: stage.update[part] for part in ("weights", "moments")})
    micro_batch = Counter({part: size for part, size in passes.items() if part not in kept})
    weights = stage.weights
    waiting = Counter(gradients=(layout.sets - 1) * weights)
    backward, added = kept.copy(), kept.copy()
    for _ in range(layout.replicas):
        backward += micro_batch + waiting
        added += Counter(gradients=layout.sets * weights)
    phases = {"backward": backward, "sum": added, "update": stage.update}
    return Memory(phases, int(REST[stage.config.trainer.device]))
