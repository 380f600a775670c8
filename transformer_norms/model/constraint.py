"""Constraints on the weights, applied at the start and after every optimizer step."""

from collections.abc import Callable

import torch
from torch import nn

from transformer_norms.model.initialization import Embedding, Linear
from transformer_norms.norms import nothing

ELSEWHERE = (".value_embedding", ".value_gate")  # whose vectors are none of the stream's
WRITES = ("output", "down")  # whose columns, not rows, are vectors of the stream


@torch.no_grad()
def unit_length(model: nn.Module) -> None:
    """Every vector of a weight that lies in the stream's space has length 1: the rows of what reads
    the stream and of the embeddings, the columns of what writes to it.

    nGPT, Loshchilov et al. 2024, arXiv:2410.01131
    """
    for name, module in model.named_modules():
        if isinstance(module, (Linear, Embedding)) and not name.endswith(ELSEWHERE):
            axis = 0 if name.rpartition(".")[2] in WRITES else 1
            length = torch.linalg.vector_norm(module.weight, dim=axis, keepdim=True)
            module.weight.div_(length.clamp_min(torch.finfo(length.dtype).tiny))


CONSTRAINTS: dict[str, Callable[..., object]] = {"none": nothing, "unit_length": unit_length}
