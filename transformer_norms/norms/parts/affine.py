"""The gain and the bias that follow a normalization, and the dtype that both are computed in."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn
from typing_extensions import TypeAliasType

from transformer_norms.kinds import Flag, Number, Text
from transformer_norms.norms import Place

Gain = Literal["learned", "scalar", "offset", "none"]
Start = TypeAliasType(
    "Start", Annotated[Number, Field(ge=-100, le=100)]
)  # where a learned number starts
STARTS = ("attention", "mlp", "final")


def _each(starts: Mapping[str, float]) -> Mapping[str, float]:
    if starts.keys() != set(STARTS):
        raise ValueError(f"it should be a number, or one for each of {', '.join(STARTS)}")
    return starts


# One start for all norms of a model, or one each for those of attention, of mlps and before the
# head. A norm on the embedded tokens starts as attention's, one around a block as those of mlps.
Starts = TypeAliasType("Starts", Start | Annotated[Mapping[Text, Start], AfterValidator(_each)])


STANDS_FOR = {"embed": "attention", "block": "mlp"}


def start_at(starts: Starts, place: Place) -> float:
    """Returns the start of a learned number of the norm at `place`."""
    if not isinstance(starts, Mapping):
        return float(starts)
    return float(starts[STANDS_FOR.get(place, place)])


def wide(x: Tensor) -> Tensor:
    """x in the dtype of a norm's arithmetic: float32, or float64 where x is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Affine(nn.Module):
    """The parameters of LayerNorm, of RMSNorm and of its kin: a `gain` of ones, or one number for
    all features (`scalar`), or an `offset` of zeros whose gain is 1 + offset, so that weight decay
    draws the gain to 1 and not to 0, or none of them; and a bias.
    """

    gain: nn.Parameter | None
    offset: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, width: int, *, gain: Gain, bias: Flag) -> None:
        super().__init__()
        count, offset = {"learned": width, "scalar": 1}.get(gain), gain == "offset"
        self.register_parameter("gain", nn.Parameter(torch.ones(count)) if count else None)
        self.register_parameter("offset", nn.Parameter(torch.zeros(width)) if offset else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(width)) if bias else None)

    def gain_and_bias(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Returns the gain and the bias in the dtype of the arithmetic."""
        gain, offset, bias = (
            None if kept is None else kept.to(dtype) for kept in (self.gain, self.offset, self.bias)
        )
        return gain if offset is None else 1 + offset, bias
