"""The machine, the versions and the commit that the record of a run names."""

import gc
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "numpy", "hydra-core", "tiktoken", "safetensors"):
        with suppress(PackageNotFoundError):  # tiktoken, an extra
            found[name] = version(name)
    return found


def device(kind: str) -> str:
    """Returns the processor's or the GPU's own name."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    if kind == "mps":
        return f"mps, {platform.platform()}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def git(folder: Path, *words: str) -> str | None:
    """Returns what git says in a folder, or None where it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> dict[str, Any]:
    """Returns the commit of the package's own clone, and whether its files were changed since.
    Both are None outside of git."""
    here = Path(__file__).parent
    head = git(here, "rev-parse", "HEAD")
    # Only what is tracked: a run's own folder must not make the code look changed.
    changed = git(here, "status", "--porcelain", "--untracked-files=no") if head else None
    return {"commit": head, "dirty": None if changed is None else bool(changed)}


@contextmanager
def deterministic(kind: str) -> Iterator[None]:
    """While it is entered, a CUDA GPU computes the same digits each time. An operation that cannot
    do so raises RuntimeError, which names it. A CPU computes the same digits without it, and of
    Apple's mps nothing is promised.

    It has to be entered before the first product of matrices on a GPU, since the process reads only
    then how cuBLAS may divide its memory."""
    if kind != "cuda":
        yield
        return
    memory: Any = torch.utils.deterministic
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # its own choice on an H100
    before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # which finds errors, and takes time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=warns)
        memory.fill_uninitialized_memory = before[1]


def peak_memory(kind: str) -> int:
    """Returns the most bytes that the GPU's tensors took, or that this process held in memory."""
    if kind == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_memory(kind: str) -> None:
    """Resets a GPU's peak of memory, and returns its free memory to other processes, for a run in
    a process that trained others before. The peak of a process on a CPU cannot be reset."""
    if kind == "cuda":
        gc.collect()  # a compiled model is part of a cycle
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
