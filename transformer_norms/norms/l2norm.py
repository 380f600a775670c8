from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.kinds import Epsilon
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import wide
from transformer_norms.norms.parts.division import divide, euclidean


@NORMS("l2norm")
class L2Norm(nn.Module):
    """x / max(norm(x), eps)      nGPT, Loshchilov et al. 2024, arXiv:2410.01131

    nGPT's own code divides without a clamp. At zero the gradient is that of x / eps.
    """

    def __init__(self, width: int, *, eps: Epsilon = 1e-6) -> None:
        super().__init__()
        self.length = euclidean(width, eps)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return divide(wide(x), None, self.length).to(x.dtype)
