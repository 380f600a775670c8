from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon, Number
from transformer_norms.norms import NORMS, Place
from transformer_norms.norms.parts.affine import Starts, start_at, wide
from transformer_norms.norms.parts.division import divide, root_mean_square

_BOUNDS = {"attention": 2.0, "mlp": 1.0, "final": 1.0}  # the paper's lambda


@NORMS("bhyt")
class BHyT(nn.Module):
    """gain * tanh(bound * x / (kappa * sqrt(mean(x**2) + eps)))

    Byun et al. 2026, arXiv:2601.09719. bound (the paper's lambda) is one number. It bounds what
    tanh reads, except for features beyond kappa root mean squares.
    """

    def __init__(
        self,
        width: int,
        *,
        eps: Epsilon = 1e-6,
        kappa: Annotated[Number, Field(ge=0.01, le=1e4)] = 10.0,
        bound_init: Starts = _BOUNDS,
        place: Place = "attention",
    ) -> None:
        super().__init__()
        self.length, self.kappa = root_mean_square(width, eps), float(kappa)
        self.gain = nn.Parameter(torch.ones(width))
        self.bound = nn.Parameter(torch.full((1,), start_at(bound_init, place)))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        gain, bound = self.gain.to(y.dtype), self.bound.to(y.dtype)
        return (gain * torch.tanh(divide(y, bound / self.kappa, self.length))).to(x.dtype)
