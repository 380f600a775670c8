"""A whole step of a small model as one CUDA graph.

A GPU computes each kernel of such a step faster than the processor starts it. A captured step is
started once, and computes the same digits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer_norms.errors import describe_error
from transformer_norms.progress import say
from transformer_norms.training.loss import Batch, ModelLoss

Trainer = Any  # of trainer.py, which imports this file

SMALL = 1e12  # FLOPs of a step, some 10 ms of a large GPU
WARM = 3  # steps before it is captured: libraries allocate their memory in the first ones


def can_capture(trainer: Trainer) -> bool:
    """Returns whether a step is small, and the same work each time: nothing in it is drawn, and
    nothing but tensors changes. A plugin may do what cannot be seen."""
    config, settings = trainer.model.config, trainer.settings
    parameters = sum(parameter.numel() for parameter in trainer.parameters)
    return (
        settings.device == "cuda"
        and config is not None
        and config.model.dropout == 0
        and config.plugins == "none"
        and 6.0 * parameters * settings.batch_size * trainer.model.context < SMALL
        and not (trainer.averages or settings.activation_checkpointing)
        and trainer.ranks.count == 1
        and trainer.qk_clip is None
        and type(trainer.loss) is ModelLoss  # and not one that waits for other runs
        and not trainer.loss.compilation.active
        and all(isinstance(optimizer, torch.optim.AdamW) for optimizer in trainer.optimizers)
    )


class StepGraph:
    """Calls `advance`, and after WARM calls replays what it gave the device to do."""

    def __init__(self, advance: Callable[..., tuple[Tensor, Tensor]], trainer: Trainer) -> None:
        self.advance, self.compilation = advance, trainer.loss.compilation
        self.stream, self.calls = torch.cuda.Stream(), 0
        self.batch: Tensor | None = None
        self.numbers: tuple[Tensor, Tensor] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
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
