"""Capped attention in one kernel, which holds no [time, time] logits. For a GPU: on a CPU flex
attention refuses whatever wants a gradient."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


# Not traced into a compiled block, which would make the mask anew in every call.
@torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
def fused(q: Tensor, k: Tensor, v: Tensor, cap: float, scale: float) -> Tensor:
    """softmax(cap * tanh(scale * q k^T / cap)) v, causal, of [batch, heads, time, head_dim]"""
    mask = causal_blocks(q.shape[2], str(q.device))
    with torch.compiler.set_stance("default"):  # probes want blocks eager, and not this kernel
        return compiled()(q, k, v, score_mod=bound(cap), block_mask=mask, scale=scale)


@cache
def compiled() -> Callable[..., Any]:
    """A worker of a sweep may have runs of many shapes and caps, each compiled once."""
    return torch.compile(flex_attention, recompile_limit=64)  # type: ignore[call-overload]


@cache
def bound(cap: float) -> Callable[..., Tensor]:
    """A score comes scaled. One function for each cap, or each call would be compiled anew."""
    return lambda score, batch, head, i, j: cap * torch.tanh(score / cap)


@lru_cache(maxsize=8)
def causal_blocks(time: int, device: str) -> BlockMask:
    at_once = device.startswith("cuda")  # else all pairs of tokens are written down on the way
    return create_block_mask(
        lambda b, h, i, j: i >= j, None, None, time, time, device=device, _compile=at_once
    )
