from typing import Annotated

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from transformer_norms.kinds import Epsilon, Flag, Positive
from transformer_norms.norms import NORMS
from transformer_norms.norms.parts.affine import Affine, Gain, wide
from transformer_norms.norms.parts.division import divide, root_mean_square


@NORMS("group_rmsnorm")
class GroupRMSNorm(Affine):
    """gain * x / sqrt(group_mean(x**2, groups) + eps)

    group_mean(z, groups) is the mean over each of `groups` equal parts of the features.
    Dao & Gu 2024 (Mamba-2), arXiv:2405.21060; Ling Team 2025 (Ring-linear), arXiv:2510.19338.
    ValueError where `groups` does not divide the width.
    """

    def __init__(
        self,
        width: int,
        *,
        eps: Epsilon = 1e-6,
        groups: Annotated[Positive, Field(le=4096)] = 4,
        gain: Gain = "learned",
        bias: Flag = False,
    ) -> None:
        if width % groups:
            raise ValueError(f"groups: {groups} does not divide {width}, the features of a norm")
        super().__init__(width, gain=gain, bias=bias)
        self.groups, self.length = groups, root_mean_square(width // groups, eps)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        y = wide(x)
        gain, bias = self.gain_and_bias(y.dtype)
        y = divide(y.unflatten(-1, (self.groups, -1)), None, self.length).flatten(-2)
        y = y if gain is None else y * gain
        return (y if bias is None else y + bias).to(x.dtype)
