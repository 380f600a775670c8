from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon, Positive
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.division import divide, root_mean_square
from transformer_norms.norms.parts.matrix import Matrix


@NORMS("gatednorm")
class GatedNorm(nn.Module):
    """gain * x / sqrt(mean(x**2) + eps)
    * sigmoid(product(gate_up, silu(product(gate_down, gain * x / sqrt(mean(x**2) + eps)))))

    Qiu et al. 2026, arXiv:2601.22966. gate_down is a matrix of `rank` rows, gate_up one of as many
    columns. A norm outside of a model starts with both at zero, where it is half of RMSNorm.
    """

    def __init__(
        self, width: int, *, eps: Epsilon = 1e-6, rank: Annotated[Positive, Field(le=4096)] = 16
    ) -> None:
        super().__init__()
        self.length = root_mean_square(width, eps)
        self.gain = nn.Parameter(torch.ones(width))
        self.gate_down, self.gate_up = Matrix(width, rank), Matrix(rank, width)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        y = divide(y, self.gain.to(y.dtype), self.length)
        return (y * torch.sigmoid(self.gate_up(F.silu(self.gate_down(y))))).to(x.dtype)
