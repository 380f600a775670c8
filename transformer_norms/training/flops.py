"""How many FLOPs training takes, and what share of a device's peak a run made use of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from transformer_norms.training.accelerators import peak_of
from transformer_norms.training.loss import Batch
from transformer_norms.training.trainer import Trainer


def flops_per_token(trainer: Trainer, context: int) -> float:
    """Returns the FLOPs of one training pass, forward and backward, counted on one sequence."""
    tokens = trainer.batches(0)[:1, : context + 1]
    trainer.model.eval()
    flops = training_flops(trainer.loss.sum, tokens) / context
    trainer.model.train()
    return flops


@torch.no_grad()
def training_flops(forward: Callable[[Batch], Any], batch: Batch) -> int:
    """Returns the FLOPs of the forward and the backward pass of a batch.

    Matrix products are counted in the forward pass; the gradient of a product is two of its size.
    Attention is counted over all pairs of tokens, also those that a causal mask hides. Under a
    sliding window each query counts as many keys as the window has. What is computed again in the
    backward pass and the optimizer are left out.
    """
    # A compiled block that meets the counter's mode is never compiled again in this process.
    eager = torch.compiler.set_stance("force_eager")
    counter = FlopCounterMode(display=False)
    with eager, counter, missed_by(counter) as missed:
        forward(batch)
    return 3 * (counter.get_total_flops() + sum(missed))


@contextmanager
def missed_by(counter: FlopCounterMode) -> Iterator[list[int]]:
    """Yields the FLOPs of each attention less those that the counter sees: torch knows no kernel of
    a processor, and a kernel under the mask of a window computes pairs that no query sees."""
    missed: list[int] = []

    def begin(module: nn.Module, given: Any) -> None:
        if hasattr(module, "flops"):
            missed.append(counter.get_total_flops())

    def end(module: Any, given: Any, context: Any) -> None:
        if hasattr(module, "flops"):
            q, k, v, *_ = given
            missed[-1] += module.flops(q, k, v) - counter.get_total_flops()

    hooks = register_module_forward_pre_hook(begin), register_module_forward_hook(end)
    try:
        yield missed
    finally:
        for hook in hooks:
            hook.remove()


def work(trainer: Trainer, context: int, device: str, precision: str) -> dict[str, float | None]:
    """Returns the FLOPs of a run, and their share of those that the device of that name could have
    computed: None where its peak is not known, and where float32 products are computed in TF32."""
    flops = flops_per_token(trainer, context) * trainer.tokens
    tf32 = precision == "fp32" and torch.get_float32_matmul_precision() != "highest"
    peak = None if tf32 or not trainer.seconds else peak_of(device, precision)
    share = peak and round(flops / trainer.seconds / (peak * trainer.ranks.count), 4)
    return {"flops": flops, "model_flops_utilisation": share}
