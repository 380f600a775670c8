"""Attention with a cap, a window or a bias in one kernel, which holds no [time, time] logits. For a
GPU: on a CPU flex attention refuses whatever wants a gradient."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Pattern = Any  # of kernels.py, which imports this file


# Not traced into a compiled block, which would make the mask anew in every call.
@torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cap: float | None,
    scale: float,
    pattern: Pattern,
) -> Tensor:
    """softmax(cap * tanh(scale * q k^T / cap) + bias) v over what the pattern's queries see, of
    [batch, heads, time, head_dim]"""
    mask = seen_blocks(q.shape[2], pattern, str(q.device))
    score = score_of(cap, pattern, str(q.device))
    # Probes want blocks eager, and not this kernel. A second cap is compiled as a number, as the
    # first is: with a variable in its place the kernel cannot be compiled.
    with torch.compiler.set_stance("default"), config.patch(specialize_float=True):
        return compiled()(q, k, v, score_mod=score, block_mask=mask, scale=scale)


@cache
def compiled() -> Callable[..., Any]:
    """A worker of a sweep may have runs of many shapes and caps, each compiled once."""
    return torch.compile(flex_attention, recompile_limit=64)  # type: ignore[call-overload]


@lru_cache(maxsize=64)
def score_of(cap: float | None, pattern: Pattern, device: str) -> Callable[..., Tensor] | None:
    """A score comes scaled. One function for each cap and bias, or each call would be compiled
    anew."""
    if cap is None and pattern.bias is None:
        return None
    own = pattern.bias
    bias = None if own is None else own.on(torch.device(device), torch.float32)

    def score(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = score if cap is None else cap * torch.tanh(score / cap)
        return score if bias is None else score + bias(head, i, j)

    return score


@lru_cache(maxsize=8)
def seen_blocks(time: int, pattern: Pattern, device: str) -> BlockMask:
    at_once = device.startswith("cuda")  # else all pairs of tokens are written down on the way
    return create_block_mask(
        lambda b, h, i, j: pattern.sees(i, j),
        None,
        None,
        time,
        time,
        device=device,
        _compile=at_once,
    )
