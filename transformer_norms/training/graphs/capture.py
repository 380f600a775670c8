"""A whole training step as one CUDA graph.

A processor needs longer to start the kernels of a step than an H100 needs to compute them, even
with 124M parameters. A captured step is started once, and computes the same digits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer_norms.errors import describe_error
from transformer_norms.progress import say
from transformer_norms.training.loss import Batch, ModelLoss
from transformer_norms.training.parallel.micro_batches import seed_dropout

Trainer = Any  # of trainer.py, which imports this file

WARM = 3  # steps before it is captured: they compile it, and libraries allocate their memory


def can_capture(trainer: Trainer) -> bool:
    """Returns whether a step is the same work each time, and nothing but tensors changes. A plugin
    may do what cannot be seen."""
    config, settings = trainer.model.config, trainer.settings
    one_draw = trainer.micro_batches.count == 1  # a graph begins with the seed of its step
    return (
        settings.device == "cuda"
        and config is not None
        and (config.model.dropout == 0 or one_draw)
        and config.plugins == "none"
        and not settings.activation_checkpointing  # which reads the generator's state
        and trainer.ranks.count == 1
        and type(trainer.loss) is ModelLoss  # and not one that waits for other runs
    )


class StepGraph:
    """Calls `advance`, and after WARM calls replays what it gave the device to do."""

    def __init__(self, advance: Callable[..., tuple[Tensor, Tensor]], trainer: Trainer) -> None:
        self.advance, self.compilation = advance, trainer.loss.compilation
        self.seed = trainer.micro_batches.seed
        self.stream, self.calls = torch.cuda.Stream(), 0
        self.batch: Tensor | None = None
        self.numbers: tuple[Tensor, Tensor] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                if "capturable" in group:
                    group["capturable"] = True

    def __call__(self, batch: Batch, number: int, probe: Any) -> tuple[Tensor, Tensor]:
        """Returns what `advance` does, in memory that the next step overwrites."""
        if self.batch is None:
            self.batch = torch.empty_like(batch, device="cuda")
        self.batch.copy_(batch, non_blocking=True)
        self.calls += 1
        if self.calls == WARM + 1:
            self._capture(number, probe)
        if self.graph is not None:
            seed_dropout(self.seed, number, 0)
            self.graph.replay()
            assert self.numbers is not None
            return self.numbers
        # Capturing needs another stream than the default one, and the same one as before.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            numbers = self.advance(self.batch, number, probe)
        torch.cuda.current_stream().wait_stream(self.stream)
        return numbers

    def _capture(self, number: int, probe: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.numbers = self.advance(self.batch, number, probe)
        except RuntimeError as error:
            say(f"a step cannot be captured, and is slower: {describe_error(error)[:300]}")
        else:
            self.graph, self.compilation.captured = graph, True
