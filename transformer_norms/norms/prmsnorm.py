from typing import Annotated

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from transformer_norms.kinds import Epsilon, Flag, Number
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import Affine, Gain, wide
from transformer_norms.norms.parts.division import divide, root_mean_square


@NORMS("prmsnorm")
class PRMSNorm(Affine):
    """gain * x / sqrt(mean(first(x, share)**2) + eps)      Zhang & Sennrich 2019, arXiv:1910.07467

    first(x, share) are the first int(share * width) coordinates, at least one. eps stands inside
    the root, as in the authors' TensorFlow code; in their PyTorch code it stands outside.
    """

    def __init__(
        self,
        width: int,
        *,
        eps: Epsilon = 1e-8,
        share: Annotated[Number, Field(gt=0, le=1)] = 0.0625,
        gain: Gain = "learned",
        bias: Flag = False,
    ) -> None:
        super().__init__(width, gain=gain, bias=bias)
        self.length = root_mean_square(max(1, int(share * width)), eps)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        gain, bias = self.gain_and_bias(y.dtype)
        y = divide(y, gain, self.length)
        return (y if bias is None else y + bias).to(x.dtype)
