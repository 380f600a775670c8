"""The time of each norm's kernels, beside a copy of the bytes that they cannot do without.

Forward a norm reads x and writes y; backward it reads x and y's gradient and writes x's: five
tensors. A copy reads as much as it writes, so one of two and a half tensors moves the same bytes.
"""

from statistics import median
from typing import Any

import torch
from norms import norms, pass_of
from rounds import Steps, interleaved
from side_by_side import synchronized

COPY = "copy"
CALLS = 20  # in one go: to wait for the device takes as long as a small kernel


def kernels(
    tokens: int, width: int, device: str, compiled: bool, rounds: int, seconds: float
) -> dict[str, Any]:
    """Seconds of each norm, forward and backward, on bfloat16 [tokens, width]; `of_copy` is the
    time of the copy over the norm's: the share of the memory's measured bandwidth."""
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 100  # norms of one class share their forward
    x = torch.randn(tokens, width, device=device).bfloat16().requires_grad_()
    grad = torch.randn_like(x)
    source = torch.empty(5 * x.numel() // 2, device=device, dtype=x.dtype)
    target = torch.empty_like(source)
    steps: Steps = {COPY: repeated(lambda: target.copy_(source), device)}
    for name, norm in norms(width).items():
        inputs = [x, *norm.to(device).parameters()]
        steps[name] = repeated(pass_of(norm, inputs, grad), device)
        if compiled:
            whole = torch.compile(norm, fullgraph=True)
            steps[f"{name}, compiled"] = repeated(pass_of(whole, inputs, grad), device)
    for step in steps.values():
        step()
    times = interleaved(steps, 1, rounds, seconds)
    taken = {name: median(values) / CALLS for name, values in times.items()}
    moved = 5 * x.numel() * x.element_size()
    return {
        "tokens": tokens,
        "width": width,
        "bytes": moved,
        "copy_bytes_a_second": moved / taken[COPY],
        "seconds": taken,
        "of_copy": {name: taken[COPY] / value for name, value in taken.items()},
    }


def repeated(step: Any, device: str) -> Any:
    def several() -> None:
        for _ in range(CALLS):
            step()

    return synchronized(several, device)


def table(result: dict[str, Any]) -> list[str]:
    """Under 80 columns."""
    lines = [
        f"\nnorms on bfloat16 [{result['tokens']}, {result['width']}], forward and backward: "
        f"{result['bytes'] / 1e6:.1f} MB",
        f"to read and write; a copy moves {result['copy_bytes_a_second'] / 1e9:.0f} GB/s",
        f"{'':28}{'us':>10}{'of the bandwidth':>20}",
    ]
    for name, value in result["seconds"].items():
        lines.append(f"{name:28}{1e6 * value:10.1f}{result['of_copy'][name]:20.0%}")
    return lines
