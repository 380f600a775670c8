"""Attention with a cap, a window or a bias in one kernel, which holds no [time, time] logits. For a
GPU: on a CPU flex attention refuses all that wants a gradient."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dynamo import config
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Pattern = Any  # of kernels.py, which imports this file
# A worker of a sweep may have runs of many shapes and caps. A second cap is compiled as a number,
# as the first is: with a variable in its place the kernel cannot be compiled.
LIMIT = 64
config.specialize_float = True


class KernelArguments(NamedTuple):
    """The kernel's arguments for a pattern and a cap: which blocks of keys it reads for `time`
    queries, and what it does to their logits."""

    time: int
    mask: BlockMask
    score: Callable[..., Tensor] | None


def make_seen(time: int, cap: float | None, pattern: Pattern, device: str) -> KernelArguments:
    """A graph in which this is traced makes the mask in every call."""
    pattern = replace(pattern)  # not the object of one block, for which a graph would be alone
    make: Callable[..., BlockMask] = create_block_mask
    if device.startswith("cuda") and not torch.compiler.is_compiling():
        make = torch.compile(make)  # else all pairs of tokens are written down on the way
    mask = make(lambda b, h, i, j: pattern.sees(i, j), None, None, time, time, device=device)
    return KernelArguments(time, mask, score_of(cap, pattern, device))


# One score for each cap and bias, or each call would be compiled again.
kept_seen = lru_cache(maxsize=64)(make_seen)


def score_of(cap: float | None, pattern: Pattern, device: str) -> Callable[..., Tensor] | None:
    """A score comes scaled."""
    if cap is None and pattern.bias is None:
        return None
    own = pattern.bias
    bias = None if own is None else own.on(torch.device(device), torch.float32)

    def score(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = score if cap is None else cap * torch.tanh(score / cap)
        return score if bias is None else score + bias(head, i, j)

    return score


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cap: float | None,
    scale: float,
    pattern: Pattern,
    seen: KernelArguments | None = None,
) -> Tensor:
    """softmax(cap * tanh(scale * q k^T / cap) + bias) v over what the pattern's queries see, of
    [batch, heads, time, head_dim]. A graph reads the mask that was `seen` before it."""
    traced = torch.compiler.is_compiling()
    if seen is None or seen.time != q.shape[2]:
        seen = (make_seen if traced else kept_seen)(q.shape[2], cap, pattern, str(q.device))
    how: dict[str, Any] = {"score_mod": seen.score, "block_mask": seen.mask, "scale": scale}
    attend: Callable[..., Tensor] = flex_attention
    if traced:
        return attend(q, k, v, **how)
    # Probes want blocks eager, and not this kernel.
    with torch.compiler.set_stance("default"), config.patch(recompile_limit=LIMIT):
        return compiled()(q, k, v, **how)


@cache
def compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention)
