"""Constraints on the weights, applied at the start and after every optimizer step."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.model.initialization import Embedding, FromLatent, Linear
from transformer_norms.norms import nothing

ELSEWHERE = (
    ".value_embedding",
    ".value_gate",
    ".smear_gate",
    ".input_embedding",
)  # whose vectors are none of the stream's
WRITES = ("output", "down")  # whose columns, not rows, are vectors of the stream


@torch.no_grad()
def unit_length(model: nn.Module) -> None:
    """Every vector of a weight that lies in the stream's space has length 1: the rows of what reads
    the stream and of the embeddings, the columns of what writes to it.

    nGPT, Loshchilov et al. 2024, arXiv:2410.01131
    """
    for name, module in model.named_modules():
        reads_stream = not isinstance(module, FromLatent)
        matrix = reads_stream and isinstance(module, (Linear, Embedding))
        if matrix and not name.endswith(ELSEWHERE):
            axis = 0 if name.rpartition(".")[2] in WRITES else 1
            length = torch.linalg.vector_norm(module.weight, dim=axis, keepdim=True)
            module.weight.div_(length.clamp_min(torch.finfo(length.dtype).tiny))


CONSTRAINTS: dict[str, Callable[..., object]] = {"none": nothing, "unit_length": unit_length}


class QKClip:
    """W_q * sqrt(g) and W_k * sqrt(g), g = threshold / S, for every head whose S was above the
    threshold: S is the head's largest scale * q k^T in the batch of a step
    Kimi Team 2025, arXiv:2507.20534 (MuonClip)

    S is that of the weights before the step, over the pairs that queries see, without cap and bias.
    The biases of q and k are scaled as the weights. Keys that several heads share, or that are
    values too, or another block's, stay as they are, also the dimensions that all heads share, and
    W_q of the head is multiplied by g there.

    `cut` puts a whole tensor into shards like those of another. The model's attentions are read in
    training mode alone.
    """

    def __init__(
        self, model: nn.Module, threshold: float, cut: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        blocks: Any = model.blocks
        self.attentions = [block.attention.f for block in blocks]
        self.threshold, self.cut = threshold, cut
        self.largest: dict[int, Tensor] = {}  # by block, of each head since `forget`
        for i, attention in enumerate(self.attentions):
            attention.attend.register_forward_pre_hook(reader(i, threshold, self.largest))

    def forget(self) -> None:
        self.largest.clear()

    def found(self) -> Tensor:
        """Returns the largest logits [block, head] since `forget`."""
        return torch.stack([self.largest[i] for i in range(len(self.attentions))])

    @torch.no_grad()
    def clip(self, largest: Tensor) -> list[float]:
        """Scales the weights by the largest logits of the whole step, and returns the factors g."""
        above = largest > self.threshold
        factors = torch.where(above, self.threshold / largest, 1.0)
        for attention, own, clipped in zip(self.attentions, factors, above.any(1), strict=True):
            if clipped:
                shared = attention.groups > 1 or attention.value is None or attention.keeps
                turned, rest = attention.rope_dim, attention.head_dim - attention.rope_dim
                each = [own] * turned + [own if shared else own.sqrt()] * rest
                self._scale(attention.query, torch.stack(each, 1).flatten())
                if not shared:
                    self._scale(attention.key, own.sqrt().repeat_interleave(rest))
        return [float(factor) for factor in factors[above]]

    def _scale(self, linear: nn.Module, factors: Tensor) -> None:
        for parameter in linear.parameters():
            rows = factors.to(parameter.dtype).view(-1, *(1 for _ in parameter.shape[1:]))
            parameter.mul_(self.cut(rows.expand(parameter.shape).contiguous(), parameter))


def reader(i: int, least: float, largest: dict[int, Tensor]) -> Callable[..., None]:
    """Returns the hook that reads the logits of block i before its attention. Replicas share it."""
    lock = Lock()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def read(attend: Any, given: tuple[Tensor, ...]) -> None:
        if not attend.training:
            return
        own = attend.largest(*given[:2], least)
        with lock:
            largest[i] = torch.maximum(largest[i], own) if i in largest else own

    return read
