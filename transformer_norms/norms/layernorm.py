import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from transformer_norms.kinds import Epsilon, Flag
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import Affine, Gain, wide


@NORMS("layernorm")
class LayerNorm(Affine):
    """gain * (x - mean(x)) / sqrt(var(x) + eps) + bias      Ba et al. 2016, arXiv:1607.06450

    var is the biased variance, mean((x - mean(x))**2).
    """

    def __init__(
        self, width: int, *, eps: Epsilon = 1e-5, gain: Gain = "learned", bias: Flag = True
    ) -> None:
        super().__init__(width, gain=gain, bias=bias)
        self.width, self.eps = width, eps

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        gain, bias = self.gain_and_bias(y.dtype)
        gain = gain if gain is None else gain.expand(self.width)
        return F.layer_norm(y, (self.width,), gain, bias, self.eps).to(x.dtype)
