"""The numbers on the two roads of a sub-layer: a on the skip, b on the branch."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.formula import Formula
from transformer_norms.norms import nothing

LEARNED = ("scalar", "vector")


def coefficient(spec: Any, width: int, values: Mapping[str, float]) -> Callable[..., Any]:
    """`1` · `(2*N)**0.25` · `{learn: scalar | vector, init: FORMULA}`  ->  x times that."""
    if isinstance(spec, Mapping):
        if set(spec) != {"learn", "init"} or spec["learn"] not in LEARNED:
            raise ValueError(
                f"{dict(spec)} is no coefficient: learn: scalar or vector, init: number"
            )
        return Learned((width,) if spec["learn"] == "vector" else (), Formula(spec["init"])(values))
    value = Formula(spec)(values)
    return nothing if value == 1 else Times(value)


class Times:
    """value * x, a constant: no module, no parameter."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, x: Tensor, *_: Any) -> Tensor:
        return self.value * x


class Learned(nn.Module):
    """gain * x, one number or one a feature, learned from `init` on."""

    def __init__(self, shape: tuple[int, ...], init: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full(shape, float(init)))

    def forward(self, x: Float[Tensor, "*batch width"], *_: Any) -> Float[Tensor, "*batch width"]:
        return x * self.gain.to(x.dtype)
