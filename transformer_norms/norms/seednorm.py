import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import Start, wide
from transformer_norms.norms.parts.division import divide, root_mean_square


@NORMS("seednorm")
class SeeDNorm(nn.Module):
    """(gain + alpha * tanh(sum(beta * x))) * x / sqrt(mean(x**2) + eps)

    Cai et al. 2025, arXiv:2510.22777. One tanh a token; beta starts at zero, where this is RMSNorm.
    """

    def __init__(self, width: int, *, eps: Epsilon = 1e-6, alpha_init: Start = 1.0) -> None:
        super().__init__()
        self.length = root_mean_square(width, eps)
        self.gain = nn.Parameter(torch.ones(width))
        self.alpha = nn.Parameter(torch.full((width,), float(alpha_init)))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        gain, alpha, beta = (p.to(y.dtype) for p in (self.gain, self.alpha, self.beta))
        own = torch.tanh((beta * y).sum(-1, keepdim=True))
        return (torch.addcmul(gain, alpha, own) * divide(y, None, self.length)).to(x.dtype)
