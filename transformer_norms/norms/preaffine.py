import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.division import divide, root_mean_square


@NORMS("preaffine")
class PreAffineRMSNorm(nn.Module):
    """gain * scale * x / sqrt(mean((scale * x)**2) + eps)      Qiu et al. 2026, arXiv:2601.22966

    RMSNorm of scale * x: a large scale of some features makes all others smaller, without outliers
    in the stream.
    """

    def __init__(self, width: int, *, eps: Epsilon = 1e-6) -> None:
        super().__init__()
        self.length = root_mean_square(width, eps)
        self.gain = nn.Parameter(torch.ones(width))
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        gain, scale = (p.to(y.dtype) for p in (self.gain, self.scale))
        return divide(scale * y, gain, self.length).to(x.dtype)
