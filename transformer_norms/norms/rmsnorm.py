"""RMSNorm. Each norm has a file like this one: a class whose docstring is its formula. A YAML in
configs/norm states its settings."""

from jaxtyping import Float
from torch import Tensor

from transformer_norms.kinds import Epsilon, Flag
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import Affine, Gain, wide
from transformer_norms.norms.parts.division import divide, root_mean_square


@NORMS("rmsnorm")
class RMSNorm(Affine):
    """gain * x / sqrt(mean(x**2) + eps)      Zhang & Sennrich 2019, arXiv:1910.07467"""

    def __init__(
        self, width: int, *, eps: Epsilon = 1e-6, gain: Gain = "learned", bias: Flag = False
    ) -> None:
        super().__init__(width, gain=gain, bias=bias)
        self.length = root_mean_square(width, eps)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        gain, bias = self.gain_and_bias(y.dtype)
        y = divide(y, gain, self.length)
        return (y if bias is None else y + bias).to(x.dtype)
