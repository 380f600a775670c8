"""Constraints on the weights, applied at the start and after every optimizer step."""

from collections.abc import Callable
from contextlib import nullcontext
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from transformer_norms.model.initialization import Embedding, FromLatent, Linear
from transformer_norms.norms import nothing

# Modules whose vectors are not vectors of the stream.
ELSEWHERE = (".value_embedding", ".value_gate", ".smear_gate", ".input_embedding")
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
            module.weight.div_(length.clamp(min=torch.finfo(length.dtype).tiny))


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
        self.readers = [LargestLogits(attention) for attention in self.attentions]
        for attention, reader in zip(self.attentions, self.readers, strict=True):
            attention.observe = reader

    def forget(self) -> None:
        for reader in self.readers:
            reader.logits.fill_(float("-inf"))

    def found(self) -> Tensor:
        """Returns the largest logits [block, head] since `forget`."""
        return torch.stack([reader.logits for reader in self.readers])

    @torch.no_grad()
    def clip(self, largest: Tensor) -> Tensor:
        """Scales the weights by the largest logits of the whole step, without waiting for a GPU.
        Returns the factors g [block, head]: 1, which changes no digit, for the other heads."""
        factors = torch.where(largest > self.threshold, self.threshold / largest, 1.0)
        for attention, own in zip(self.attentions, factors, strict=True):
            shared = attention.groups > 1 or attention.value is None or attention.shares_kv
            turned, rest = attention.rope_dim, attention.head_dim - attention.rope_dim
            each = [own] * turned + [own if shared else own.sqrt()] * rest
            self._scale(attention.query, torch.stack(each, 1).flatten())
            if not shared:
                self._scale(attention.key, own.sqrt().repeat_interleave(rest))
        return factors

    def _scale(self, linear: nn.Module, factors: Tensor) -> None:
        for parameter in linear.parameters():
            rows = factors.to(parameter.dtype).view(-1, *(1 for _ in parameter.shape[1:]))
            parameter.mul_(self.cut(rows.expand(parameter.shape).contiguous(), parameter))


class LargestLogits:
    """Keeps the largest logit of each head of one attention. A compiled block writes it as well."""

    def __init__(self, attention: Any) -> None:
        weight, heads = attention.query.weight, attention.groups * attention.kv_heads
        self.lock = Lock()
        self.logits = torch.full((heads,), float("-inf"), dtype=weight.dtype, device=weight.device)

    def __deepcopy__(self, memory: Any) -> "LargestLogits":
        return self  # replicas share it

    def __call__(self, q: Tensor, k: Tensor, attend: Any) -> None:
        if attend.training:
            own = attend.largest(q, k)
            # Replicas, which are not compiled, write at the same time.
            with nullcontext() if torch.compiler.is_compiling() else self.lock:
                self.logits.copy_(torch.maximum(self.logits, own))
