"""The machine, the versions and the commit that the record of a run names, and how many days a run
takes on this machine."""

import gc
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from transformer_norms import processes
from transformer_norms.config.tree import Config
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.position import kv_sources
from transformer_norms.model.settings import BlockSizes, block_sizes, head_sizes

DAY = 86400.0
SHARE = 0.5  # of the speed of a product of matrices that training reaches; it is a rough guess
SLOWEST = 1e10  # FLOP/s that any machine reaches: what takes less than a day at it is not measured
VOCABULARIES = {"byte": 257, "gpt2": 50257, "cl100k": 100277}
_SIZES = {"cpu": 1024, "cuda": 8192}  # of the matrices whose product is timed


def versions() -> dict[str, str]:
    names = ("torch", "numpy", "hydra-core", "tiktoken", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def device(kind: str) -> str:
    """Returns the processor's or the GPU's own name."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def commit() -> dict[str, Any]:
    """Returns the commit of the package's own clone, and whether its files were changed since.
    Both are None outside of git."""
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


@contextmanager
def deterministic(kind: str) -> Iterator[None]:
    """While it is entered, a GPU computes the same digits each time. An operation that cannot do so
    raises RuntimeError, which names it. A CPU computes the same digits without it.

    It has to be entered before the first product of matrices on a GPU, since the process reads only
    then how cuBLAS may divide its memory."""
    if kind == "cpu":
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
    """Counts a GPU's tensors anew, and returns its free memory to other processes, for a run in a
    process that trained others before. The peak of a process on a CPU cannot be reset."""
    if kind == "cuda":
        gc.collect()  # a compiled model is part of a cycle
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def days_line(configs: Collection[Config], runs: int, more: str = "") -> str:
    """Returns a line if `runs` runs like these take more than a day here, or an empty text."""
    if not configs or runs < 1:
        return ""
    flops = sum(map(rough_flops, configs)) / len(configs) * runs
    if flops < SLOWEST * DAY:
        return ""
    keys = next(iter(configs)).trainer
    speed = SHARE * product_speed(keys.device, keys.precision) * _devices(keys.device)
    days = flops / speed / DAY
    if days < 1:
        return ""
    what = f"{runs} runs take" if runs > 1 else "this takes"
    return (
        f"warning: {what} about {days:,.0f} day{'s' * (days >= 1.5)} on this machine; a smaller "
        f"model= or trainer.steps= takes less{more}"
    )


def rough_flops(config: Config) -> float:
    """Returns about how many FLOPs a run takes: for each token 6 for each weight of a product, and
    12 for each number of a head and each token that attention sees; a third of that for each token
    of an evaluation."""
    sizes, keys = config.model, config.trainer
    sources = kv_sources(config.architecture.kv_from_block, sizes.depth)
    blocks = [
        _block_weights(config, block_sizes(sizes, i), own=source == i)
        for i, source in enumerate(sources)
    ]
    kind = config.tokenizer.type
    vocabulary = VOCABULARIES.get(kind) or config.tokenizer.get("vocab_size", 50257)
    weights = sum(own for own, _ in blocks) + vocabulary * sizes.width
    attention = sum(seen for _, seen in blocks)
    read = keys.steps * keys.batch_size * sizes.context
    evaluations = keys.steps // keys.eval_every if keys.eval_every else 0
    return 6.0 * (weights + attention) * (read + (evaluations + 1) * config.data.val_tokens / 3)


def _block_weights(config: Config, sizes: BlockSizes, own: bool) -> tuple[int, int]:
    """Returns the weights of a block's products, and the numbers of its heads times the context.
    The block has `own` keys and values, or another's."""
    inner = head_sizes(config.architecture, sizes)
    both = sizes.head_dim - inner.rope_dim + inner.value_dim  # of one key, and its value
    reads = [(inner.q_rank, sizes.heads * sizes.head_dim)]
    reads += [(inner.kv_rank, sizes.kv_heads * both)] * own
    qkv = sizes.width * inner.rope_dim * own
    qkv += sum(rank * (sizes.width + out) if rank else sizes.width * out for rank, out in reads)
    mlp = (3 if MLPS[config.mlp.type].gated else 2) * sizes.mlp_width
    gates = {"none": 0, "per_head": sizes.heads, "elementwise": sizes.heads * inner.value_dim}
    gate = gates[config.architecture.attention_gate]
    block = qkv + sizes.width * (sizes.heads * inner.value_dim + gate + mlp)
    if config.architecture.value_gate != "none":  # in every block, at most
        block += config.architecture.value_gate * sizes.kv_heads
    return block, sizes.heads * (sizes.head_dim + inner.value_dim) * sizes.context


def product_speed(device: str, precision: str) -> float:
    """Returns the FLOP/s of a product of two large matrices."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[precision]
    size = _SIZES[device]
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        (matrix @ matrix)[0, 0].item()
        seconds.append(time.perf_counter() - begun)
    return 2.0 * size**3 / min(seconds)


def _devices(device: str) -> int:
    """Returns how many devices train at a time: the ranks of one run, or the GPUs of a sweep."""
    if device == "cpu":
        return 1
    return processes.count() if processes.launched() else max(1, torch.cuda.device_count())
