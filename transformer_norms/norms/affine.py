"""The gain and the bias that follow a normalization, and the dtype that both are computed in."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.kinds import Flag, Number

Gain = Literal["learned", "offset", "none"]
Start = Annotated[Number, Field(ge=-100, le=100)]  # where a learned number starts


def wide(x: Tensor) -> Tensor:
    """x in the dtype of a norm's arithmetic: float32, or float64 where x is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Affine(nn.Module):
    """The parameters of LayerNorm, RMSNorm and PRMSNorm: a `gain` of ones, or an `offset` of zeros
    whose gain is 1 + offset, so that weight decay draws the gain to 1 and not to 0, or neither; and
    a bias.
    """

    gain: nn.Parameter | None
    offset: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, width: int, *, gain: Gain, bias: Flag) -> None:
        super().__init__()
        learned, offset = gain == "learned", gain == "offset"
        self.register_parameter("gain", nn.Parameter(torch.ones(width)) if learned else None)
        self.register_parameter("offset", nn.Parameter(torch.zeros(width)) if offset else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(width)) if bias else None)

    def gain_and_bias(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Returns the gain and the bias in the dtype of the arithmetic."""
        gain, offset, bias = (
            None if kept is None else kept.to(dtype) for kept in (self.gain, self.offset, self.bias)
        )
        return gain if offset is None else 1 + offset, bias
