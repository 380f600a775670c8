import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.division import divide, euclidean


@NORMS("scalenorm")
class ScaleNorm(nn.Module):
    """gain * x / max(norm(x), eps)      Nguyen & Salazar 2019, arXiv:1910.05895

    gain is one number and starts at sqrt(width), where this is RMSNorm.
    """

    def __init__(self, width: int, *, eps: Epsilon = 1e-5) -> None:
        super().__init__()
        self.length = euclidean(width, eps)
        self.gain = nn.Parameter(torch.full((1,), width**0.5))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        return divide(y, self.gain.to(y.dtype), self.length).to(x.dtype)
