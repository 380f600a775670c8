"""What a run ran on and with, for its record."""

import os
import platform
import re
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from transformer_norms.model import straight
from transformer_norms.trainer import Trainer

# FLOP/s of the data sheets, of dense matrix products, in float32 without TF32. By what follows
# "NVIDIA " or "Tesla " in the device's name: a variant of another name has other figures.
PEAKS = {
    # NVIDIA A100 data sheet
    r"A100-(SXM4|PCIE)-\d+GB|A100 80GB PCIe": {"bf16": 312e12, "fp32": 19.5e12},
    # NVIDIA H100 data sheet; its bf16 figures, as H200's, L4's and L40S's, hold for sparse products
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


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    names = ("torch", "numpy", "hydra-core", "tiktoken", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def device(kind: str) -> str:
    """The processor's or the GPU's own name."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def commit() -> dict[str, Any]:
    """The commit of the package's own clone, and whether it was changed; None outside of git."""
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    # Only what is tracked: a run's own folder must not make the code look changed.
    changed = git("status", "--porcelain", "--untracked-files=no") if head else None
    return {"commit": head, "dirty": None if changed is None else bool(changed)}


def peak_memory(kind: str) -> int:
    """Bytes: the most that the GPU's tensors took, or that this process held in memory."""
    if kind == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_memory(kind: str) -> None:
    """For a run in a process that had others before it: a GPU's tensors are counted anew, and what
    is free again is there for other processes. What a process held at most stays with it."""
    if kind == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def flops(trainer: Trainer, context: int) -> float:
    """FLOPs a token of one training pass, forward and backward, counted on one sequence.

    Counts what torch's counter counts: matrix products and attention. Recomputation and the
    optimizer are left out.
    """
    tokens, model = trainer.batches(0)[:1, : context + 1], trainer.model
    through, model.through = model.through, straight
    with FlopCounterMode(display=False) as counter:
        trainer.loss(tokens).backward()
    model.through = through
    for parameter in trainer.parameters:
        parameter.grad = None
    return counter.get_total_flops() / context


def peak(device: str, precision: str) -> float | None:
    """FLOP/s of the device of that name at most; None where no data sheet is known here, as of a
    CPU, and where float32 products are not float32's."""
    if precision == "fp32" and torch.get_float32_matmul_precision() != "highest":
        return None
    name = re.sub(r"^(NVIDIA|Tesla) ", "", device)
    known = (peaks for names, peaks in PEAKS.items() if re.fullmatch(names, name))
    return next(known, {}).get(precision)


def utilisation(flops: float, seconds: float, peak: float | None) -> float | None:
    """The share of what the device could have computed that went into the model's FLOPs."""
    return round(flops / seconds / peak, 4) if peak and seconds > 0 else None
