"""The machine, the versions and the commit of a run, for its record."""

import gc
import os
import platform
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


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
        gc.collect()  # a compiled model is part of a cycle
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
