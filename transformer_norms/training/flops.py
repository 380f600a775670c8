"""How many FLOPs training takes, and what share of a device's peak a run made use of."""

import re
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from transformer_norms.training.trainer import Trainer

# FLOP/s of dense matrix products by the data sheets, in float32 without TF32. A key matches what
# follows "NVIDIA " or "Tesla " in the device's name: a variant with another name has other figures.
PEAKS = {
    # NVIDIA A100 data sheet
    r"A100-(SXM4|PCIE)-\d+GB|A100 80GB PCIe": {"bf16": 312e12, "fp32": 19.5e12},
    # NVIDIA H100 data sheet. Its bf16 figure, as that of H200, L4 and L40S, is for sparse products:
    # half of it.
    r"H100 80GB HBM3": {"bf16": 989e12, "fp32": 67e12},
    r"H100 PCIe": {"bf16": 756e12, "fp32": 51e12},
    # NVIDIA H200 data sheet, SXM
    r"H200": {"bf16": 989e12, "fp32": 67e12},
    # NVIDIA L4, L40S and A10 data sheets
    r"L4": {"bf16": 121e12, "fp32": 30.3e12},
    r"L40S": {"bf16": 362e12, "fp32": 91.6e12},
    r"A10": {"bf16": 125e12, "fp32": 31.2e12},
    # NVIDIA Ampere GA102 and Ada white papers, bf16 with float32 accumulation
    r"GeForce RTX 3090": {"bf16": 71e12, "fp32": 35.6e12},
    r"GeForce RTX 4090": {"bf16": 165e12, "fp32": 82.6e12},
    # NVIDIA V100 and T4 data sheets; neither has bf16
    r"V100-SXM2-\d+GB": {"fp32": 15.7e12},
    r"V100-PCIE-\d+GB": {"fp32": 14e12},
    r"T4": {"fp32": 8.1e12},
}


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
    """Returns the FLOPs of one training pass, forward and backward, counted on one sequence.

    Matrix products are counted in the forward pass, those of attention over all pairs of tokens;
    the gradient of a product is two of its size. What is computed again in the backward pass and
    the optimizer are left out.
    """
    tokens = trainer.batches(0)[:1, : context + 1]
    trainer.model.eval()
    # A compiled block that meets the counter's mode is never compiled again in this process.
    eager = torch.compiler.set_stance("force_eager")
    counter = FlopCounterMode(display=False, custom_mapping=ATTENTION)
    with torch.no_grad(), eager, counter:
        trainer.loss.sum(tokens)
    trainer.model.train()
    return 3 * counter.get_total_flops() / context


def peak(device: str, precision: str) -> float | None:
    """Returns the most FLOP/s that the device of that name gives; None where its data sheet is not
    known here, as for a CPU, and where float32 products are computed in TF32."""
    if precision == "fp32" and torch.get_float32_matmul_precision() != "highest":
        return None
    name = re.sub(r"^(NVIDIA|Tesla) ", "", device)
    known = (peaks for names, peaks in PEAKS.items() if re.fullmatch(names, name))
    return next(known, {}).get(precision)


def utilisation(flops: float, seconds: float, peak: float | None) -> float | None:
    """Returns the model's FLOPs as a share of those that the device could have computed."""
    return round(flops / seconds / peak, 4) if peak and seconds > 0 else None


def work(trainer: Trainer, context: int, device: str, precision: str) -> dict[str, float | None]:
    """Returns what a run computed, and how well it used the device of that name."""
    flops = flops_per_token(trainer, context) * trainer.tokens
    used = utilisation(flops, trainer.seconds, peak(device, precision))
    return {"flops": flops, "model_flops_utilisation": used}
