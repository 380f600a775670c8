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


def _attention(q: Any, k: Any, v: Any, *rest: Any, **more: Any) -> int:
    """q k^T and the weights times v, over all pairs of tokens, by shapes"""
    batch, heads, queries, head_dim = q
    return int(2 * batch * heads * queries * k[2] * (head_dim + v[3]))


# For every fused kernel alike: torch's counter knows no processor's.
_KERNELS = "flash_attention flash_attention_for_cpu efficient_attention cudnn_attention".split()
ATTENTION: dict[Any, Any] = {
    getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}"): _attention for kernel in _KERNELS
}


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
    sliding window each query counts as many keys as the window has, whichever kernel computes it.
    What is computed again in the backward pass and the optimizer are left out.
    """
    # A compiled block that meets the counter's mode is never compiled again in this process.
    eager = torch.compiler.set_stance("force_eager")
    counter = FlopCounterMode(display=False, custom_mapping=ATTENTION)
    with eager, counter, count_windows(counter) as excess:
        forward(batch)
    return 3 * (counter.get_total_flops() - sum(excess))


@contextmanager
def count_windows(counter: FlopCounterMode) -> Iterator[list[int]]:
    """Yields what the counter counts too much: a kernel under a mask computes pairs that no query
    of a sliding window or of a chunk sees."""
    excess: list[int] = []

    def narrow(module: nn.Module) -> bool:
        sizes = (getattr(module, key, None) for key in ("sliding_window", "attention_chunk"))
        return any(sizes)

    def begin(module: nn.Module, given: Any) -> None:
        if narrow(module):
            excess.append(-counter.get_total_flops())

    def end(module: Any, given: Any, context: Any) -> None:
        if narrow(module):
            q, k, v, *_ = given
            excess[-1] += counter.get_total_flops() - module.flops(q, k, v)

    hooks = register_module_forward_pre_hook(begin), register_module_forward_hook(end)
    try:
        yield excess
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
