"""Where every run starts: weights drawn by name, so that variants of one seed start alike.

Each weight is N(0, 1) from a CPU generator seeded by (seed, name, shape), in float32, and then
scaled by the init rule. Nothing else is drawn: norms, gains, biases start where their class says.
"""

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from transformer_norms.formula import Formula
from transformer_norms.kinds import Nothing, Number
from transformer_norms.model.architecture import ROLES, Biased
from transformer_norms.model.sizes import Sizes, block_values, formula_values
from transformer_norms.norms import nothing

# The roles that may have a bias. `true` gives one to all but the head.
BIASED = get_args(Biased)


def biased(spec: bool | Collection[str]) -> frozenset[str]:
    """The roles that have a bias, of `architecture.bias`: true, false or the roles themselves."""
    usual = frozenset(BIASED) - {"head"} if spec else frozenset()
    return usual if isinstance(spec, bool) else frozenset(spec)


class Linear(nn.Linear):
    """torch's Linear, drawn by `InitRule` and by nothing else."""

    std: float | None = None  # its deviation under any rule

    def reset_parameters(self) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class FromLatent(Linear):
    """A Linear that reads a latent of attention. The latent's width is what `d` means in formulas
    of its deviation and of its learning rate."""


class Einsum(Linear):
    """A Linear drawn with flax's default deviation, as in google-deepmind/gemma."""

    std = 0.01


class ZeroLinear(Linear):
    """A Linear whose weight starts at 0 under any rule."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.weight)


class Embedding(nn.Embedding):
    """torch's Embedding, drawn by `InitRule` and by nothing else."""

    std: float | None = None

    def reset_parameters(self) -> None: ...


def read_deviations(std: Mapping[str, str | float]) -> dict[str, Formula]:
    """Returns the formula of each role's standard deviation. Raises ValueError if a role is unknown
    or `default` is missing."""
    unknown = sorted(set(std) - {"default", *ROLES})
    if unknown or "default" not in std:
        raise ValueError(
            f"std names {unknown or 'no default'}; it needs default and may name {ROLES}"
        )
    return {role: Formula(formula) for role, formula in std.items()}


class InitRule:
    """The standard deviation of each weight as a formula of N, R, d, dh, m, fan_in, fan_out and,
    inside blocks, i and l. Where a matrix reads a latent, d is the latent's width. `std` maps roles
    to formulas, `default` is for the rest. `truncate` is the number of standard deviations
    beyond which nothing is drawn, or none.
    """

    def __init__(
        self,
        *,
        std: Mapping[str, str | float],
        truncate: Nothing | Annotated[Number, Field(ge=0.1, le=10)],
    ) -> None:
        self.std = read_deviations(std)
        self.truncate = None if truncate == "none" else float(truncate)

    @torch.no_grad()
    def apply(
        self,
        model: nn.Module,
        seed: int,
        sizes: Sizes,
        cut: Callable[[Tensor, Tensor], Tensor] = nothing,
    ) -> None:
        """Draws every weight whole. `cut(drawn, weight)` returns what of it `weight` holds."""
        for name, module in model.named_modules():
            drawn = isinstance(module, (nn.Linear, nn.Embedding))
            if drawn and not isinstance(module, ZeroLinear):
                weight = module.weight
                z = draw(f"{name}.weight", tuple(weight.shape), seed)
                if self.truncate is not None and getattr(module, "std", None) is None:
                    z = truncated(z, self.truncate)
                weight.copy_(cut(z * self.deviation(name, module, sizes), weight))

    def formula(self, name: str, module: nn.Module) -> Formula:
        """Returns the formula of a module's own deviation, or of its role's, by its last name."""
        if (own := getattr(module, "std", None)) is not None:
            return Formula(own)
        return self.std.get(name.rpartition(".")[2], self.std["default"])

    def deviation(self, name: str, module: nn.Linear | nn.Embedding, sizes: Sizes) -> float:
        """Returns the factor of a module's weight, which is drawn from N(0, 1)."""
        return float(self.formula(name, module)({**_values(name, sizes), **own_values(module)}))


def rule_of(init: Mapping[str, Any]) -> InitRule:
    """The rule of a config's `init`, whose file says more than the rule."""
    return InitRule(std=init["std"], truncate=init["truncate"])


def draw(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """N(0, 1) in float32: a pure function of its arguments, on any device, in any wrapper."""
    digest = hashlib.sha256(f"{seed}/{name}/{shape}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def truncated(z: Tensor, bound: float) -> Tensor:
    """N(0, 1) to the normal cut off at +-bound: z moves to the same quantile, none is redrawn."""
    inside = math.erf(bound / math.sqrt(2))
    quantile = torch.erf(z.double() / math.sqrt(2)) * inside
    return (torch.erfinv(quantile) * math.sqrt(2)).float()


def deviation_inside(truncate: str | float) -> float:
    """Returns the standard deviation of N(0, 1) cut off at +-truncate: 1 where nothing is cut."""
    if truncate == "none":
        return 1.0
    bound = float(truncate)
    density = math.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * bound * density / math.erf(bound / math.sqrt(2)))


def _values(name: str, sizes: Sizes) -> dict[str, float]:
    inside = re.match(r"blocks\.(\d+)\.", name)
    return formula_values(sizes) if inside is None else block_values(sizes, int(inside[1]))


def own_values(module: nn.Linear | nn.Embedding) -> dict[str, float]:
    """Returns what formulas call fan_in and fan_out of a weight, and d where it reads a latent. A
    table's rows are its fan_in."""
    rows, columns = module.weight.shape
    if isinstance(module, nn.Linear):
        width = {"d": columns} if isinstance(module, FromLatent) else {}
        return {"fan_in": columns, "fan_out": rows, **width}
    return {"fan_in": rows, "fan_out": columns}
