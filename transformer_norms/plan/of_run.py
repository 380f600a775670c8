"""The plan of one run: what it has to compute and to hold."""

from dataclasses import dataclass
from typing import Any

from transformer_norms.config.tree import Config
from transformer_norms.data.settings import expected_vocab_size
from transformer_norms.plan.memory import Layout, Memory, divide_step, memory_of
from transformer_norms.plan.rehearsal import Stage


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

    @property
    def tokens_per_step(self) -> int:
        return self.config.trainer.batch_size * self.config.model.context

    @property
    def tokens(self) -> int:
        return self.config.trainer.steps * self.tokens_per_step

    def values(self) -> dict[str, Any]:
        """Returns the numbers of --json, in bytes and FLOPs."""
        return {
            "parameters": {"all": sum(self.parameters.values()), **self.parameters},
            "vocab_size": self.vocab_size,
            "flops_per_token": self.flops,
            "flops_per_token_again": self.again,
            "tokens_per_step": self.tokens_per_step,
            "tokens": self.tokens,
            "flops": self.flops * self.tokens,
            "micro_batches": self.layout.micro_batches,
            "sequences": self.layout.sequences,
            "memory": {name: dict(parts) for name, parts in self.memory.phases.items()},
            "rest": self.memory.rest,
            "peak_memory": self.memory.peak,
        }


def plan_run(config: Config, vocab_size: int | None = None) -> RunPlan:
    """Returns the plan of a run on one device."""
    layout = divide_step(config)
    stage = Stage(config, vocab_size or expected_vocab_size(config.tokenizer))
    return RunPlan(
        config, stage.model.vocab_size, stage.numbers(), *stage.flops_per_token(), layout,
        memory_of(stage, layout),
    )  # fmt: skip
