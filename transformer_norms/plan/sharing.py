"""How a step is divided among devices: a function of the config and of their number."""

from dataclasses import dataclass

from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.training.parallel.micro_batches import micro_batch_count


@dataclass(frozen=True)
class Layout:
    """A step is `micro_batches` of `sequences` each. Each device has `replicas` of the model, side
    by side, and each replica computes `share` micro-batches one after another. `pieces` is by how
    much the micro-batches are smaller than those that were asked for."""

    devices: int
    parallel: str
    replicas: int
    micro_batches: int
    sequences: int
    pieces: int

    @property
    def share(self) -> int:
        return self.micro_batches // (self.devices * self.replicas)

    @property
    def sets(self) -> int:
        """The most sets of gradients of a replica at a time. The tree adds halves: while the last
        micro-batch is computed, the sum of each left half on the way to it waits."""
        return (self.share - 1).bit_length() + 1


def divide_step(config: Config, devices: int, accumulation: int | None = None) -> Layout:
    """Returns the layout of a config's step; ConfigError where the devices cannot share it evenly.
    `accumulation` stands for that of the config."""
    settings, parallel = config.trainer, config.parallel.type
    replicas = 1 if settings.replicas == "auto" else settings.replicas
    if devices > 1 and parallel == "none":
        raise ConfigError(
            f"--devices {devices}: parallel=none is one process on one device; type parallel=ddp "
            "or parallel=fsdp"
        )
    if replicas > 1 and settings.device != "cpu":
        raise ConfigError(f"trainer.replicas={replicas}: they are for a CPU")
    asked = accumulation or settings.accumulation
    count = micro_batch_count(asked, replicas, devices)
    if settings.batch_size % count:
        workers = f"{devices} x {replicas}" if replicas > 1 else f"{devices}"
        raise ConfigError(
            f"--devices {devices}: {settings.batch_size} sequences (trainer.batch_size) cannot be "
            f"shared evenly among {workers} with trainer.accumulation={asked}"
        )
    sequences = settings.batch_size // count
    return Layout(devices, parallel, replicas, count, sequences, count // asked)
