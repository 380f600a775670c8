"""The plan of one run: what it has to compute, to hold and to send."""

from dataclasses import dataclass
from typing import Any

from transformer_norms.config.tree import Config
from transformer_norms.data.settings import expected_vocab_size
from transformer_norms.errors import ConfigError
from transformer_norms.plan.memory import Memory, memory_of
from transformer_norms.plan.rehearsal import Stage
from transformer_norms.plan.sharing import Layout, divide_step
from transformer_norms.plan.speed import DAY, Cluster, Speed, speed_of
from transformer_norms.training.accelerators import find_accelerator


@dataclass(frozen=True)
class Hardware:
    """What was typed of the devices. Without an accelerator no time is planned."""

    devices: int = 1
    accelerator: str | None = None
    utilisation: float = 0.4

    def cluster(self, precision: str) -> Cluster | None:
        """Returns the devices with their peak in that precision; ConfigError without one."""
        if self.accelerator is None:
            return None
        accelerator = find_accelerator(self.accelerator)
        if precision not in accelerator.peaks:
            raise ConfigError(
                f"--accelerator {self.accelerator}: its data sheet has no FLOP/s for "
                f"trainer.precision={precision}; it has {' and '.join(accelerator.peaks)}"
            )
        peak = accelerator.peaks[precision]
        return Cluster(accelerator, self.devices, peak, self.utilisation)


@dataclass(frozen=True)
class RunPlan:
    """`parameters` are numbers, by group of the optimizer. `flops` are those of a token, forward
    and backward; `again` those of it that activation checkpointing computes once more."""

    config: Config
    vocab_size: int
    parameters: dict[str, int]
    flops: float
    again: float
    layout: Layout
    memory: Memory
    cluster: Cluster | None
    speed: Speed | None

    @property
    def tokens_per_step(self) -> int:
        return self.config.trainer.batch_size * self.config.model.context

    @property
    def tokens(self) -> int:
        return self.config.trainer.steps * self.tokens_per_step

    @property
    def seconds(self) -> float | None:
        return self.speed.step * self.config.trainer.steps if self.speed else None

    def values(self) -> dict[str, Any]:
        """Returns the numbers of --json, in bytes, seconds and FLOPs."""
        layout, speed = self.layout, self.speed
        values: dict[str, Any] = {
            "parameters": {"all": sum(self.parameters.values()), **self.parameters},
            "vocab_size": self.vocab_size,
            "flops_per_token": self.flops,
            "flops_per_token_again": self.again,
            "tokens_per_step": self.tokens_per_step,
            "tokens": self.tokens,
            "flops": self.flops * self.tokens,
            "devices": layout.devices,
            "parallel": layout.parallel,
            "micro_batches": layout.micro_batches,
            "sequences": layout.sequences,
            "memory": {name: dict(parts) for name, parts in self.memory.phases.items()},
            "rest": self.memory.rest,
            "peak_memory": self.memory.peak,
        }
        if self.seconds is not None and speed is not None:
            values |= {
                "step_seconds": speed.step,
                "exchange_seconds": speed.exchange,
                "tokens_per_second": self.tokens_per_step / speed.step,
                "days": self.seconds / DAY,
                "device_hours": layout.devices * self.seconds / 3600,
            }
        return values


def plan_run(config: Config, hardware: Hardware, vocab_size: int | None = None) -> RunPlan:
    """Returns the plan of a run on this hardware."""
    cluster = hardware.cluster(config.trainer.precision)
    layout = divide_step(config, hardware.devices)
    stage = Stage(config, vocab_size or expected_vocab_size(config.tokenizer))
    flops, again = stage.flops_per_token()
    speed = None
    if cluster is not None:
        tokens = config.trainer.batch_size * config.model.context
        speed = speed_of(cluster, layout, (flops + again) * tokens, stage.sizes())
    return RunPlan(
        config, stage.model.vocab_size, stage.numbers(), flops, again, layout,
        memory_of(stage, layout), cluster, speed,
    )  # fmt: skip
