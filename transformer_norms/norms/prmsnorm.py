from typing import Annotated

from pydantic import Field

from transformer_norms.kinds import Epsilon, Flag, Number
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import Gain
from transformer_norms.norms.parts.division import root_mean_square
from transformer_norms.norms.rmsnorm import RMSNorm


@NORMS("prmsnorm")
class PRMSNorm(RMSNorm):
    """gain * x / sqrt(mean(first(x, share)**2) + eps)      Zhang & Sennrich 2019, arXiv:1910.07467

    first(x, share) are the first int(share * width) coordinates, at least one. eps is inside the
    root, as in the authors' TensorFlow code; in their PyTorch code it is outside.
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
        super().__init__(width, eps=eps, gain=gain, bias=bias)
        self.length = root_mean_square(max(1, int(share * width)), eps)
