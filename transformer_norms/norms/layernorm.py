import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon, Flag
from transformer_norms.norms import NORMS


@NORMS("layernorm")
class LayerNorm(nn.Module):
    """gain * (x - mean(x)) / sqrt(var(x) + eps) + bias      Ba et al. 2016, arXiv:1607.06450

    var is the biased variance, mean((x - mean(x))^2). Without `bias` it is PaLM's (2204.02311).
    """

    def __init__(self, width: int, *, eps: Epsilon, bias: Flag) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = x.to(self.gain.dtype)  # float32 under autocast, float64 in a float64 model
        return F.layer_norm(y, self.gain.shape, self.gain, self.bias, self.eps).to(x.dtype)
